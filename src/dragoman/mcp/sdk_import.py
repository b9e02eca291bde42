"""Imports of the MCP SDK at run time: it takes over a second, so no module imports it at its top that a hub
always loads.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

IMPORT_LOCK = threading.Lock()  # one for the process, as its modules are


def import_sdk_module(module: str) -> Any:
    """Import a module of the SDK, or one that needs it. Blocks: call it in a thread.

    One thread at a time: the SDK's modules import each other, and two threads that begin with different ones
    would find them half imported.
    """
    with IMPORT_LOCK:
        return importlib.import_module(module)
