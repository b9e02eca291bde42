"""Tracers: whoever wants to see each call from its beginning to its end."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from dragoman.operations.ledger import CallRecord
from dragoman.operations.outcome import CallFailure


class Watch(Protocol):
    """One call that is being watched."""

    def outcome(self, result: Any, error: CallFailure | None) -> None:
        """What came of it."""
        ...


class Tracer(Protocol):
    """Sees calls: what it gives is entered before a call runs, and left when the call is over."""

    def call(self, record: CallRecord) -> AbstractContextManager[Watch]: ...
