"""Clients of tests stay on loopback, and need none of the certificates that this machine trusts.

Each client of httpx and httpx2 reads them all otherwise, which takes longer than opening a hub.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import httpcore2


def trust_no_certificates(folder: Path) -> None:
    """Let clients of this process, and of those that it starts, trust the certificates of `folder`: none.

    Both libraries obey the variable, httpx2 only in clients that trust the environment.
    """
    os.environ.pop("SSL_CERT_FILE", None)
    os.environ["SSL_CERT_DIR"] = str(folder)
    vars(httpcore2)["default_ssl_context"] = empty_context


def empty_context(**_: Any) -> ssl.SSLContext:
    """Return a context that trusts nobody."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
