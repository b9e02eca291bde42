"""Outages: a database that is down refuses at once, and is tried again until it is up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from dragoman.errors import DragomanError, StoreError, Unavailable
from dragoman.store.connection import Backend

FIRST = 0.5  # seconds until the first try
LONGEST = 5.0  # seconds between tries
CALM = 30.0  # seconds of being up after which the tries begin with the first pause again

log = logging.getLogger(__name__)


class Outage(NamedTuple):
    """Why a database is down, and whether it can still be read."""

    problem: DragomanError
    readable: bool


def rouse(backend: Backend) -> Outage | None:
    """Bring a database up; why not, when it is down. Blocks. StoreError where waiting would not help."""
    try:
        backend.prepare()
    except StoreError as error:
        if backend.reach(error) is None:
            raise
        return Outage(error, readable=False)
    try:
        backend.check()
    except StoreError as error:
        reach = backend.reach(error)
        if reach is None:
            raise
        return Outage(error, readable=reach == "writing")
    return None


class Watch:
    """Whether a database is up; while it is not, it is tried again. For one event loop."""

    def __init__(self, backend: Backend, renew: Callable[[], None], *, outage: Outage | None = None) -> None:
        """`renew` is called when the database is up again, before `on_up`: connections are to be new."""
        self.on_up: list[Callable[[], None]] = []
        self._backend = backend
        self._renew = renew
        self._loop = asyncio.get_running_loop()
        self._outage: Outage | None = None
        self._pause = FIRST
        self._since = self._loop.time()
        self._again: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dragoman-rouse")
        if outage is not None:
            self._fall(outage)

    @property
    def problem(self) -> str | None:
        """What is wrong; None while the database is up."""
        return None if self._outage is None else str(self._outage.problem)

    def admit(self, *, writing: bool) -> None:
        """Unavailable, at once, for what cannot be done now."""
        outage = self._outage
        if outage is not None and (writing or not outage.readable):
            problem = outage.problem
            raise Unavailable(f"the database is down: {problem.message}", hint=problem.hint)

    def heed(self, error: Exception, *, writing: bool) -> None:
        """Judge what a job or a query was refused with: is it that job, or the database?"""
        reach = self._backend.reach(error)
        if reach == "all" or (reach == "writing" and writing):
            problem = self._backend.explain(error)
            if isinstance(problem, DragomanError):
                self._fall(Outage(problem, readable=reach == "writing"))

    def close(self) -> None:
        """Try no more; blocks while a try is under way."""
        if self._again is not None:
            self._again.cancel()
        self._thread.shutdown()

    def _fall(self, outage: Outage) -> None:
        first = self._outage is None
        self._outage = outage
        if first:
            log.error("the database is down: %s", outage.problem)
            if self._loop.time() - self._since >= CALM:
                self._pause = FIRST
            self._wait()

    def _wait(self) -> None:
        self._again = self._loop.call_later(self._pause, self._begin)
        self._pause = min(2 * self._pause, LONGEST)

    def _begin(self) -> None:
        with suppress(RuntimeError):  # it was closed
            self._thread.submit(self._try)

    def _try(self) -> None:
        try:
            outage = rouse(self._backend)
        except Exception as error:  # noqa: BLE001 - it is told, and tried again
            outage = Outage(StoreError(str(error)), readable=False)
        with suppress(RuntimeError):  # the loop has gone
            self._loop.call_soon_threadsafe(self._heard, outage)

    def _heard(self, outage: Outage | None) -> None:
        self._outage = outage
        if outage is not None:
            self._wait()
            return
        self._since = self._loop.time()
        self._renew()
        log.warning("the database is up again")
        for callback in list(self.on_up):
            callback()
