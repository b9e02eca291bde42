"""Heavy work: what is big is read and written in a thread, one after the other, so that others go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

# ---- Threads: a pool that is made when something is first run in it, since most agents never need one.


class LazyThreadPool:
    """At most `most` threads, called `name`, for `loop.run_in_executor`."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The pool. Once closed it takes nothing more: RuntimeError, where something is given to it."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._max_threads, thread_name_prefix=self._name)
            if self._closed:
                self._pool.shutdown(wait=False)
        return self._pool

    def close(self) -> None:
        """Let the threads go, without waiting for busy ones; what has not begun is cancelled."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


T = TypeVar("T")
LARGE_SIZE = 100_000  # characters, about
MAX_MEASURED_FIELDS = 32  # fields of a value that are all looked at
MAX_MEASURED_DEPTH = 4
SCALAR_SIZE = 100


class LargeValueWorker:
    """Calls functions on values: at once, or in its one thread where a value is big."""

    def __init__(self) -> None:
        self._thread_pool = LazyThreadPool(1, "heavy")

    async def run(self, function: Callable[[Any], T], value: Any) -> T:
        """What the function makes of the value."""
        if estimate_size(value) < LARGE_SIZE:
            return function(value)
        return await asyncio.get_running_loop().run_in_executor(self._thread_pool.pool, function, value)

    def close(self) -> None:
        """Let the thread go, without waiting for it."""
        self._thread_pool.close()


def estimate_size(value: Any, depth: int = MAX_MEASURED_DEPTH) -> int:
    """About how many characters a value has as JSON; guessed from some of its parts."""
    if isinstance(value, str | bytes):
        return len(value)
    if not isinstance(value, dict | list | tuple) or not value:
        return SCALAR_SIZE
    if not depth:
        return SCALAR_SIZE * len(value)
    if isinstance(value, dict):
        parts = list(value.values()) if len(value) <= MAX_MEASURED_FIELDS else [*value.values()][:3]
    else:
        parts = list(value) if len(value) <= 3 else [value[0], value[len(value) // 2], value[-1]]
    return len(value) * sum(estimate_size(part, depth - 1) for part in parts) // len(parts)


# ---- Live: a call under way, which can be stopped by itself.


class CancellableCall:
    """A call that this task awaits."""

    __slots__ = ("_initial_cancellations", "_task", "stop_reason")

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        """Why the call is to stop, without what awaits it."""
        self._task: asyncio.Task[Any] | None = asyncio.current_task()
        self._initial_cancellations = 0 if self._task is None else self._task.cancelling()

    def stop(self, reason: str) -> bool:
        """Stop it; False when it was told already."""
        if self._task is None or self.stop_reason is not None:
            return False
        self.stop_reason = reason
        self._task.cancel(reason)
        return True

    def finish(self) -> bool:
        """It is over. Whether, beside its own stop, what awaits it was cancelled too, and has to end.

        Without a stop the count says nothing: up to Python 3.12 a task group leaves it higher when one of
        its tasks has failed.
        """
        if self._task is None or self.stop_reason is None:
            return False
        return self._task.uncancel() > self._initial_cancellations


# ---- Apart: work that is done in a task of its own, so that it holds nobody up who is cancelled.

log = logging.getLogger(__name__)

CANCEL_GRACE_SECONDS = 5.0  # how long an operation may take to end once it is cancelled


async def run_detached(coroutine: Awaitable[Any], name: str) -> Any:
    """What the work gives, which is done in a task of its own: who is cancelled while he awaits it is not
    held up by work that will not end, nor goes on when that ends as if nothing was.
    """
    task = asyncio.ensure_future(capture_error(coroutine))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_GRACE_SECONDS)
        if not task.done():
            log.error("%s was stopped, and still runs after %g seconds", name, CANCEL_GRACE_SECONDS)
        raise
    result, error = task.result()
    if error is not None:
        raise error
    return result


async def capture_error(coroutine: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What the work gives, or what it raises: a task that raises SystemExit would end the hub."""
    try:
        return await coroutine, None
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - whoever awaits it raises it again
        return None, error
