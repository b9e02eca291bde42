"""Signals between the hosts of a database: notifications that something has changed, instead of polling.

A signal holds a name and an id, never data: whoever gets it reads the database. It may get lost with a
connection, so each subscriber also polls from time to time, and is called with None after a gap. Nothing is
sent if only one process uses the database.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, TypeAlias

log = logging.getLogger(__name__)
SignalName: TypeAlias = Literal[
    "queue",
    "begun",
    "spokes",
    "definitions",
    "grants",
    "presence",
    "policy",
    "teams",
    "turns",
    "runner-turns",
]
OnSignal: TypeAlias = Callable[[str | None], None]
SEPARATOR = "\n"
MAX_SIGNAL = 7_000  # bytes; Postgres refuses 8,000


class Wakeup:
    """Wakes a task that polls from time to time."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self, _: str | None = None) -> None:
        """Let the task poll now. Can be passed to `HostSignals.subscribe`."""
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Wait so many seconds, or until `wake`; return whether it was woken."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        is_woken = self._event.is_set()
        self._event.clear()
        return is_woken


class HostSignals:
    """Sends signals to the other hosts, and calls the subscribers to theirs, on the event loop."""

    def __init__(self) -> None:
        self.post: Callable[[str], None] | None = None
        """Sends a text to all hosts, this one included; None where there are no others."""
        self._subscribers: dict[str, list[OnSignal]] = {}

    def subscribe(self, name: SignalName, on_signal: OnSignal) -> None:
        """Call a function with the id of each signal of another host.

        It gets None when signals may have been missed, or when the id was too long.
        """
        self._subscribers.setdefault(name, []).append(on_signal)

    def send(self, name: SignalName, id: str | None, *, here: bool = False) -> None:
        """Tell the other hosts, soon and without waiting, and with `here` the subscribers of this one too.

        Without an id, they read everything again. Call it once the change is committed.
        """
        post = self.post  # once: another thread may set it to None
        if post is not None:
            text = name if id is None else f"{name}{SEPARATOR}{id}"
            post(text if len(text.encode()) <= MAX_SIGNAL else name)
        if here:
            self._call(name, id)

    def receive(self, text: str) -> None:
        """Handle the text of a signal of another host."""
        name, separator, id = text.partition(SEPARATOR)
        self._call(name, id if separator else None)

    def note_gap(self) -> None:
        """Call all subscribers with None: signals may have been missed."""
        for name in self._subscribers:
            self._call(name, None)

    def _call(self, name: str, id: str | None) -> None:
        for on_signal in self._subscribers.get(name, ()):
            try:
                on_signal(id)
            except Exception:
                log.exception("the signal %r of another host could not be handled", name)
