"""Sockets of this process at which no packet arrives any more, as behind a firewall that drops them."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
RETURN_NOTHING = struct.pack("HBBI", 6, 0, 0, 0)  # a filter of the kernel: of each packet it keeps 0 bytes


def find_sockets(port: int, *, is_peer: bool = False) -> Iterator[socket.socket]:
    """Duplicates of the sockets of a port, or of those that are connected to it."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if not entry.is_socket():
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as found:
                address = found.getpeername() if is_peer else found.getsockname()
                if isinstance(address, tuple) and address[1] == port:
                    yield found


@contextmanager
def dropping(port: int, *, is_peer: bool = False) -> Iterator[None]:
    """A block in which nothing arrives at a port: no connection, and no packet of one that is open.

    With `is_peer`, nothing arrives at the other ends of the connections to it that there are.
    """
    code = ctypes.create_string_buffer(RETURN_NOTHING, len(RETURN_NOTHING))
    program = struct.pack("HP", 1, ctypes.addressof(code))
    for found in find_sockets(port, is_peer=is_peer):
        found.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
    try:
        yield
    finally:
        for found in find_sockets(port, is_peer=is_peer):
            with suppress(OSError):  # it has none
                found.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


def port_of(url: str) -> int:
    """The port of a URL."""
    return int(url.rpartition(":")[2])
