"""Database outages: while the database is down, requests fail at once, and the hub tries to connect again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from dragoman.errors import DragomanError, StoreError, Unavailable
from dragoman.store.connection import Backend

FIRST_DELAY = 0.5  # seconds before the first retry
MAX_DELAY = 5.0  # seconds between retries
DELAY_RESET_SECONDS = 30.0  # seconds without an outage after which retries start at FIRST_DELAY again

log = logging.getLogger(__name__)


class Outage(NamedTuple):
    """Why the database is down, and whether it can still be read."""

    problem: DragomanError
    readable: bool


def try_prepare(backend: Backend) -> Outage | None:
    """Prepare the backend; return the outage if it is down. Raises StoreError if retrying is useless."""
    try:
        backend.prepare()
    except StoreError as error:
        if backend.outage_scope(error) is None:
            raise
        return Outage(error, readable=False)
    try:
        backend.check()
    except StoreError as error:
        reach = backend.outage_scope(error)
        if reach is None:
            raise
        return Outage(error, readable=reach == "writing")
    return None


class OutageMonitor:
    """Tracks whether the database is up, and retries while it is down. Use it from one event loop."""

    def __init__(
        self, backend: Backend, reset_connections: Callable[[], None], *, outage: Outage | None = None
    ) -> None:
        """`reset_connections` is called when the database is up again, before `on_recovery`."""
        self.on_recovery: list[Callable[[], None]] = []
        self._backend = backend
        self._reset_connections = reset_connections
        self._loop = asyncio.get_running_loop()
        self._outage: Outage | None = None
        self._retry_delay = FIRST_DELAY
        self._up_since = self._loop.time()
        self._retry_timer: asyncio.TimerHandle | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dragoman-reconnect")
        if outage is not None:
            self._go_down(outage)

    @property
    def problem(self) -> str | None:
        """Why the database is down; None while it is up."""
        return None if self._outage is None else str(self._outage.problem)

    def check_available(self, *, writing: bool) -> None:
        """Raise Unavailable if the database is down for writing, or for reading."""
        outage = self._outage
        if outage is not None and (writing or not outage.readable):
            problem = outage.problem
            raise Unavailable(f"the database is down: {problem.message}", hint=problem.hint)

    def observe_error(self, error: Exception, *, writing: bool) -> None:
        """Decide from the error of a job or query whether the database is down."""
        reach = self._backend.outage_scope(error)
        if reach == "all" or (reach == "writing" and writing):
            problem = self._backend.translate_error(error)
            if isinstance(problem, DragomanError):
                self._go_down(Outage(problem, readable=reach == "writing"))

    def go_down(self, problem: DragomanError) -> None:
        """Treat the database as down, whatever its jobs and queries return, until a retry succeeds."""
        self._go_down(Outage(problem, readable=False))

    def close(self) -> None:
        """Stop retrying. Blocks while a retry is running."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._executor.shutdown()

    def _go_down(self, outage: Outage) -> None:
        first = self._outage is None
        self._outage = outage
        if first:
            log.error("the database is down: %s", outage.problem)
            if self._loop.time() - self._up_since >= DELAY_RESET_SECONDS:
                self._retry_delay = FIRST_DELAY
            self._schedule_retry()

    def _schedule_retry(self) -> None:
        self._retry_timer = self._loop.call_later(self._retry_delay, self._start_retry)
        self._retry_delay = min(2 * self._retry_delay, MAX_DELAY)

    def _start_retry(self) -> None:
        with suppress(RuntimeError):  # closed in the meantime
            self._executor.submit(self._retry)

    def _retry(self) -> None:
        try:
            outage = try_prepare(self._backend)
        except Exception as error:  # noqa: BLE001 - logged, and retried
            outage = Outage(StoreError(str(error)), readable=False)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._apply_retry, outage)

    def _apply_retry(self, outage: Outage | None) -> None:
        self._outage = outage
        if outage is not None:
            self._schedule_retry()
            return
        self._up_since = self._loop.time()
        self._reset_connections()
        log.warning("the database is up again")
        for callback in list(self.on_recovery):
            callback()
