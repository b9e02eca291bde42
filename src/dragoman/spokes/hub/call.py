"""One call that runs at a spoke, and its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar, copy_context
from typing import Any, TypeAlias

import msgspec

from dragoman.errors import (
    ApprovalNeeded,
    CallError,
    InvalidInput,
)
from dragoman.ids import new_id
from dragoman.operations.context import Context
from dragoman.operations.operation import Effect
from dragoman.spokes.protocol import AbortedFrame, CallFrame, ErrorFrame, ReplyFrame, error_from_failure

MAX_DEPTH = 16
calling_spokes: ContextVar[tuple[str, ...]] = ContextVar("dragoman_spokes_above", default=())
"""The spokes that serve the calls above this one."""


class SpokeLost(msgspec.Struct, frozen=True):
    """The spoke disconnected. `may_have_started`: the call may have started."""

    may_have_started: bool = True


SpokeOutcome: TypeAlias = ReplyFrame | SpokeLost


class SpokeCall:
    """A call that runs at a spoke."""

    def __init__(self, operation: str, effect: Effect, *, context: Context) -> None:
        self.id = new_id("at")
        self.operation = operation
        self.effect = effect
        self.context = context
        self.sent = False
        self.abandoned = False
        self.outcome: asyncio.Future[SpokeOutcome] = asyncio.get_running_loop().create_future()
        self.task_context = copy_context()
        self.approval: ApprovalNeeded | None = None  # what a call below it needs

    def set_outcome(self, outcome: SpokeOutcome) -> None:
        """Set the outcome; the first one counts."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def to_frame(self, input: Mapping[str, Any]) -> CallFrame:
        """Return the frame that starts the call."""
        context = self.context
        return CallFrame(
            id=self.id,
            operation=self.operation,
            input=input,
            owner=context.identity.owner,
            effect=self.effect,
            idempotency_key=context.idempotency_key or context.call_id or self.id,
            call_id=context.call_id or self.id,
            remaining=context.remaining,
            run_id=context.run_id,
            session_id=context.session_id,
            agent=context.agent,
        )

    def error_from_reply(self, reply: ErrorFrame | AbortedFrame) -> CallError | InvalidInput:
        """Return the error for a spoke's reply."""
        if isinstance(reply, AbortedFrame):
            return CallError(f"the spoke stopped {self.operation} of its own accord")
        if reply.error.code == ApprovalNeeded.code and self.approval is not None:
            return self.approval
        return error_from_failure(reply.error)
