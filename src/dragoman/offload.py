"""Work on large values in a thread, so that the event loop serves others meanwhile.

Small values are worked on at once: a thread costs more than they do. One call of a C function in a thread
still holds the event loop, so what works on megabytes makes many calls: see `large_json.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import cache
from threading import Lock, Thread
from typing import Any, TypeVar, cast

from dragoman.large_json import SMALL

T = TypeVar("T")

SLICE_SECONDS = 0.005
RELEASED = 20  # items that are freed at once
_THREADS = 2  # each takes its turns of the interpreter from the event loop
_DISK_THREADS = 8  # they wait more than they work


async def offload(size: int, function: Callable[[], T]) -> T:
    """Return what a function returns that works on `size` bytes; in a thread if these are many.

    Cancelling drops the result; the thread runs on.
    """
    if size <= SMALL:
        return function()
    return await asyncio.get_running_loop().run_in_executor(_pool(), function)


async def offload_disk(function: Callable[[], T]) -> T:
    """Return what a function returns that reads or writes a file: a disk may take seconds, or not answer.

    Cancelling drops the result; the thread runs on.
    """
    return await asyncio.get_running_loop().run_in_executor(_disk_pool(), function)


async def acquire_in_thread(acquire: Callable[[], T], *, release: Callable[[], object]) -> T:
    """Return what a function returns that opens or locks something and blocks meanwhile.

    If the caller is cancelled before it has the result, `release` is called once the function has ended.
    """
    guard, has_ended, is_dropped = Lock(), False, False

    def run() -> T:
        nonlocal has_ended
        try:
            return acquire()
        finally:
            with guard:
                has_ended = True
                must_release = is_dropped
            if must_release:
                release()

    try:
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        with guard:
            is_dropped = True
            must_release = has_ended
        if must_release:
            release()
        raise


async def run_in_own_thread(function: Callable[[], T]) -> T:
    """Return what a function returns that may never end, such as one that waits for a database to be back.

    Its thread is its own and keeps nothing waiting: those of executors keep the process from ending.
    Cancelling drops the result; the thread runs on.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast(T, result))

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as failure:  # noqa: BLE001 - raised to whoever awaits it
            error = failure
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, error)

    context = copy_context()
    Thread(target=context.run, args=(run,), name="dragoman-own-thread", daemon=True).start()
    return await future


class Slices:
    """Gives others the event loop during long work on it that cannot be in a thread."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def rest(self) -> None:
        """Await it between two pieces of the work: it lets others run if they have waited for a while."""
        if time.perf_counter() - self._began >= SLICE_SECONDS:
            await asyncio.sleep(0)
            self._began = time.perf_counter()

    async def release(self, items: list[Any]) -> None:
        """Empty a list piece by piece: what nobody else has is freed, which is one long call otherwise."""
        while items:
            del items[-RELEASED:]
            await self.rest()


@cache
def _disk_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_DISK_THREADS, thread_name_prefix="disk")


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="large-values")
