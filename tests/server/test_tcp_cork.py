"""Writes of one turn of the event loop leave in one TCP segment."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from dragoman.server.http.response_cycle import CorkedTransport


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str) -> Any:
        return f"the {name}"


async def test_what_is_written_in_one_round_leaves_as_one_write_and_in_order() -> None:
    wire = Wire()
    cork = CorkedTransport(cast(asyncio.Transport, wire), asyncio.get_running_loop())
    cork.write(b"head ")
    cork.write(b"body")
    assert wire.writes == []
    await asyncio.sleep(0)
    cork.write(b"more")
    await asyncio.sleep(0)
    assert wire.writes == [b"head body", b"more"]


async def test_what_is_written_through_leaves_at_once_but_not_before_what_is_held() -> None:
    wire = Wire()
    cork = CorkedTransport(cast(asyncio.Transport, wire), asyncio.get_running_loop())
    cork.write_through(b"first")
    assert wire.writes == [b"first"]
    cork.write(b"held ")
    cork.write_through(b"behind")
    assert wire.writes == [b"first"]
    await asyncio.sleep(0)
    assert wire.writes == [b"first", b"held behind"]
    wire.closed = True
    cork.write_through(b"too late")
    await asyncio.sleep(0)
    assert wire.writes == [b"first", b"held behind"]


async def test_closing_sends_what_is_held_first_and_the_rest_is_the_transport_s() -> None:
    wire = Wire()
    cork = CorkedTransport(cast(asyncio.Transport, wire), asyncio.get_running_loop())
    cork.write(b"last words")
    cork.close()
    await asyncio.sleep(0)
    assert (wire.writes, wire.closed) == ([b"last words"], True)
    assert cork.get_extra_info("peername") == "the peername"
