"""Observers of calls: they get the start and end of calls, and the domain events of operations."""

from __future__ import annotations

from typing import Any, Protocol

from dragoman.operations.context import Context
from dragoman.operations.ledger import CallCompletion, CallRecord


class CallEvents(Protocol):
    """Gets the events of calls. Calls do not wait for it."""

    def call_started(self, record: CallRecord) -> None:
        """Handle the start of a call."""

    def call_ended(self, record: CallRecord, completion: CallCompletion) -> None:
        """Handle the end of a call, or that it waits for an approval."""

    def publish(self, context: Context, name: str, *, data: Any, in_answer: bool = False) -> None:
        """Publish a domain event in the session of a call, `in_answer` or not. Raises CallError."""
