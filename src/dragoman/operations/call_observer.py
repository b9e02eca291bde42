"""Observers of calls: they learn of the start and end of calls, and of domain events of their operations."""

from __future__ import annotations

from typing import Any, Protocol

from dragoman.operations.context import Context
from dragoman.operations.ledger import CallCompletion, CallRecord


class CallEvents(Protocol):
    """Gets the events of calls; nothing is awaited."""

    def call_started(self, record: CallRecord) -> None:
        """Tell that a call runs now."""

    def call_ended(self, record: CallRecord, completion: CallCompletion) -> None:
        """Tell that a call has ended, or waits for an approval."""

    def publish(self, context: Context, name: str, *, data: Any, in_answer: bool = False) -> None:
        """Publish a domain event in the session of a call, `in_answer` or not. Raises CallError."""
