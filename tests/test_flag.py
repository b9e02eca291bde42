"""Flags: what `asyncio.Event` promises, without its queue."""

from __future__ import annotations

import asyncio
import sys

import pytest

from dragoman.flag import Flag


def test_a_flag_has_no_queue_until_somebody_waits() -> None:
    assert sys.getsizeof(Flag()) <= 64
    assert repr(Flag()) == "Flag(unset, waiters=0)"


async def test_all_who_wait_go_on_when_it_is_set() -> None:
    flag = Flag()
    waiting = [asyncio.ensure_future(flag.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert repr(flag) == "Flag(unset, waiters=3)"
    flag.set()
    flag.set()
    await asyncio.gather(*waiting)
    assert flag.is_set()
    assert repr(flag) == "Flag(set, waiters=0)"
    await flag.wait()


async def test_who_waits_after_it_was_cleared_waits_for_the_next_time() -> None:
    flag = Flag()
    flag.set()
    flag.clear()
    waiting = asyncio.ensure_future(flag.wait())
    await asyncio.sleep(0)
    assert not flag.is_set()
    assert not waiting.done()
    flag.set()
    flag.clear()
    await waiting


async def test_who_is_cancelled_waits_no_more_and_the_others_do() -> None:
    flag = Flag()
    first, second = (asyncio.ensure_future(flag.wait()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    flag.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert repr(flag) == "Flag(set, waiters=0)"
