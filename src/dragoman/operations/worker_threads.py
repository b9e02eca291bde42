"""Threads and tasks of calls: a lazy thread pool, large values off the event loop, stopping a call."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dragoman.errors import CallError
from dragoman.large_json import measure
from dragoman.operations.results.files import is_drawable


class LazyThreadPool:
    """At most `max_threads` threads for `loop.run_in_executor`, started when first used.

    Most agents never need a thread.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The executor. A closed one raises RuntimeError when it is used."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._max_threads, thread_name_prefix=self._name)
            if self._closed:
                self._pool.shutdown(wait=False)
        return self._pool

    def close(self) -> None:
        """Release the threads without waiting for busy ones; cancel what has not started."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


T = TypeVar("T")
LARGE_SIZE = 100_000  # characters of JSON, roughly


class LargeValueWorker:
    """Runs functions on values: at once, or in its one thread if a value is large."""

    def __init__(self) -> None:
        self._thread_pool = LazyThreadPool(1, "heavy")

    async def run(self, function: Callable[[Any], T], value: Any, *, size: int | None = None) -> T:
        """Return the function's result for the value; `size` is the result of `measure` for it."""
        if (measure(value) if size is None else size) < LARGE_SIZE and not is_drawable(value):
            return function(value)
        return await asyncio.get_running_loop().run_in_executor(self._thread_pool.pool, function, value)

    def close(self) -> None:
        """Release the thread without waiting for it."""
        self._thread_pool.close()


class CancellableCall:
    """A call that the current task awaits; it can be cancelled without cancelling its caller."""

    __slots__ = ("_initial_cancellations", "_task", "stop_reason")

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        """Why this call was stopped; None if it was not, or only together with its caller."""
        self._task: asyncio.Task[Any] | None = asyncio.current_task()
        self._initial_cancellations = 0 if self._task is None else self._task.cancelling()

    def stop(self, reason: str) -> bool:
        """Stop the call. Return False if it was stopped before."""
        if self._task is None or self.stop_reason is not None:
            return False
        self.stop_reason = reason
        self._task.cancel(reason)
        return True

    def finish(self) -> bool:
        """Return whether the caller was cancelled as well, in addition to the stop of this call.

        Without a stop the count of cancellations is not reliable: up to Python 3.12 a task group leaves it
        higher after one of its tasks failed.
        """
        if self._task is None or self.stop_reason is None:
            return False
        return self._task.uncancel() > self._initial_cancellations


log = logging.getLogger(__name__)

CANCEL_GRACE_SECONDS = 5.0  # that a cancelled operation may take to end


async def run_detached(coroutine: Awaitable[Any], name: str) -> Any:
    """Await `coroutine` in its own task.

    If the caller is cancelled, cancel the task, wait up to CANCEL_GRACE_SECONDS for it, and raise
    CancelledError in any case: an operation that swallows its cancellation cannot hold up its caller.
    """
    task = asyncio.ensure_future(capture_error(coroutine))
    try:
        await wait_done(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_GRACE_SECONDS)
        if not task.done():
            log.error("%s was cancelled and still runs after %g seconds", name, CANCEL_GRACE_SECONDS)
        elif inspect.iscoroutine(coroutine):
            coroutine.close()  # if its task never started: Python would warn that it was not awaited
        raise
    result, error = task.result()
    if error is not None:
        raise error
    return result


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of this thread, if one is running."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def wait_done(task: asyncio.Future[Any]) -> None:
    """Wait until a task or future is done; unlike `await task`, cancelling this does not cancel it.

    As `asyncio.wait([task])`, in a third of its time.
    """
    if task.done():
        return
    waiter = asyncio.get_running_loop().create_future()

    def wake(_: object) -> None:
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(wake)
    await waiter


async def capture_error(coroutine: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Return the result, or the exception that was raised.

    A task that raises SystemExit or KeyboardInterrupt would end the event loop.
    """
    try:
        return await coroutine, None
    except asyncio.CancelledError:
        raise
    except GeneratorExit as error:  # raised by the operation; a coroutine must not continue after it
        return None, CallError(f"the operation raised {type(error).__name__}")
    except BaseException as error:  # noqa: BLE001 - run_detached raises it again
        return None, error
