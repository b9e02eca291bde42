"""Heavy work: what is big is read and written in a thread, one after the other, so that others go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

# ---- Threads: a pool that is made when something is first run in it, since most agents never need one.


class Threads:
    """At most `most` threads, called `name`, for `loop.run_in_executor`."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The pool. Once closed it takes nothing more: RuntimeError, where something is given to it."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._most, thread_name_prefix=self._name)
            if self._closed:
                self._pool.shutdown(wait=False)
        return self._pool

    def close(self) -> None:
        """Let the threads go, without waiting for busy ones; what has not begun is cancelled."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


T = TypeVar("T")
BIG = 100_000  # characters, about
FEW = 32  # fields of a value that are all looked at
DEEP = 4
OTHER = 100


class Heavy:
    """Calls functions on values: at once, or in its one thread where a value is big."""

    def __init__(self) -> None:
        self._threads = Threads(1, "heavy")

    async def run(self, function: Callable[[Any], T], value: Any) -> T:
        """What the function makes of the value."""
        if weigh(value) < BIG:
            return function(value)
        return await asyncio.get_running_loop().run_in_executor(self._threads.pool, function, value)

    def close(self) -> None:
        """Let the thread go, without waiting for it."""
        self._threads.close()


def weigh(value: Any, depth: int = DEEP) -> int:
    """About how many characters a value has as JSON; guessed from some of its parts."""
    if isinstance(value, str | bytes):
        return len(value)
    if not isinstance(value, dict | list | tuple) or not value:
        return OTHER
    if not depth:
        return OTHER * len(value)
    if isinstance(value, dict):
        parts = list(value.values()) if len(value) <= FEW else [*value.values()][:3]
    else:
        parts = list(value) if len(value) <= 3 else [value[0], value[len(value) // 2], value[-1]]
    return len(value) * sum(weigh(part, depth - 1) for part in parts) // len(parts)


# ---- Live: a call under way, which can be stopped by itself.


class Live:
    """A call that this task awaits."""

    __slots__ = ("_before", "_task", "stopped")

    def __init__(self) -> None:
        self.stopped: str | None = None
        """Why the call is to stop, without what awaits it."""
        self._task: asyncio.Task[Any] | None = asyncio.current_task()
        self._before = 0 if self._task is None else self._task.cancelling()

    def stop(self, reason: str) -> bool:
        """Stop it; False when it was told already."""
        if self._task is None or self.stopped is not None:
            return False
        self.stopped = reason
        self._task.cancel(reason)
        return True

    def settle(self) -> bool:
        """It is over. Whether, beside its own stop, what awaits it was cancelled too, and has to end.

        Without a stop the count says nothing: up to Python 3.12 a task group leaves it higher when one of
        its tasks has failed.
        """
        if self._task is None or self.stopped is None:
            return False
        return self._task.uncancel() > self._before


# ---- Apart: work that is done in a task of its own, so that it holds nobody up who is cancelled.

log = logging.getLogger(__name__)

END_SECONDS = 5.0  # how long an operation may take to end once it is cancelled


async def apart(work: Awaitable[Any], name: str) -> Any:
    """What the work gives, which is done in a task of its own: who is cancelled while he awaits it is not
    held up by work that will not end, nor goes on when that ends as if nothing was.
    """
    task = asyncio.ensure_future(kept(work))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task], timeout=END_SECONDS)
        if not task.done():
            log.error("%s was stopped, and still runs after %g seconds", name, END_SECONDS)
        raise
    result, error = task.result()
    if error is not None:
        raise error
    return result


async def kept(work: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What the work gives, or what it raises: a task that raises SystemExit would end the hub."""
    try:
        return await work, None
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - whoever awaits it raises it again
        return None, error
