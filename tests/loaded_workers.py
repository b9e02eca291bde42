"""Forks the processes of pytest-xdist from one that has imported all tests.

Each of them would do it for itself otherwise: 10 s of processor time and more, most of it for libraries.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from execnet.gateway_io import popen_bootstrapline

from tests.forking import ForkServer, serve

WORKER = [sys.executable, "-u", "-c", popen_bootstrapline]


class LoadedWorkers(ForkServer):
    """The process that has collected the tests that `arguments` of pytest name, and forks the workers."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__("tests.loaded_workers", is_worker, arguments)


def is_worker(args: Any, env: Mapping[str, str]) -> bool:
    """Whether this is how execnet starts a process on this machine."""
    return list(args) == WORKER and env is os.environ


def load(arguments: Sequence[str]) -> None:
    """Collect the tests, and forget everything but the modules. What fails here is said by the workers.

    Hubs in the workers find all SQL compiled, as programs do that are forked. Nothing is captured: streams
    that modules remember as they are imported, as the MCP SDK does, stay open.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*arguments, "-n", "0", "--collect-only", "-q", "--capture", "no"])
    importlib.import_module("tests.zygote").load()  # pytest complains about plugins that it did not import


if __name__ == "__main__":
    load(sys.argv[2:])
    serve(socket.socket(fileno=int(sys.argv[1])))
