"""Ports for programs that have to be told one, and addresses at which nobody listens."""

from __future__ import annotations

import os
import socket
from itertools import count

FIRST, COUNT = 20_000, 12_000  # below the ports that systems give to whoever wants any
_reserved: list[socket.socket] = []
_numbers = count(os.getpid() * 97)


def free_port() -> int:
    """A port of the loopback that is free, and that no other process of the tests gets from here.

    A port that was bound to be found, and is free again, may be given to anybody before it is used. The same
    number of UDP stays bound as long as this process lives: not for programs that use both, as of HTTP/3.
    """
    while True:
        number = FIRST + next(_numbers) % COUNT
        reservation = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            reservation.bind(("127.0.0.1", number))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", number))
        except OSError:
            reservation.close()
            continue
        _reserved.append(reservation)
        return number
