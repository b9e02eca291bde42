"""One call that runs at a spoke, and its outcome."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from contextvars import ContextVar, copy_context
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman.errors import (
    ApprovalNeeded,
    CallError,
    InvalidInput,
)
from dragoman.ids import new_id
from dragoman.operations.context import Context
from dragoman.operations.operation import Effect
from dragoman.session_ids import session_id_for
from dragoman.spokes.protocol import AbortedFrame, CallFrame, ErrorFrame, ReplyFrame, error_from_failure

MAX_DEPTH = 16
runs_for_other_host: ContextVar[bool] = ContextVar("dragoman_runs_for_other_host", default=False)
"""Whether another host has handed this call on; only that host repeats it elsewhere."""
calling_spokes: ContextVar[tuple[str, ...]] = ContextVar("dragoman_spokes_above", default=())
"""The spokes that serve the calls above this one."""


class SpokeLost(msgspec.Struct, frozen=True):
    """The outcome of a call whose spoke disconnected. `may_have_started`: it may have taken effect."""

    may_have_started: bool = True


SpokeOutcome: TypeAlias = ReplyFrame | SpokeLost


class SpokeCall:
    """A call that runs at a spoke. `subcall_context` is for the calls that the spoke makes below it."""

    def __init__(self, operation: str, effect: Effect, *, context: Context, subcall_context: Context) -> None:
        self.id = new_id("at")
        self.operation = operation
        self.effect = effect
        self.context = context
        self.subcall_context = subcall_context
        self.sent = False
        self.abandoned = False
        self.has_refused_event = False
        self.outcome: asyncio.Future[SpokeOutcome] = asyncio.get_running_loop().create_future()
        self.task_context = copy_context()
        self.approval: ApprovalNeeded | None = None  # what a call below it needs

    def set_outcome(self, outcome: SpokeOutcome) -> None:
        """Set the outcome, unless there is one."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def to_frame(self, input: Mapping[str, Any]) -> CallFrame:
        """Return the frame that starts the call."""
        is_foreign = self.subcall_context.identity.owner != self.context.identity.owner
        context = without_caller(self.context) if is_foreign else self.context
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
            session_id=session_id_for(context.identity.owner, context.session_id),
            agent=context.agent,
        )

    def error_from_reply(self, reply: ErrorFrame | AbortedFrame) -> CallError | InvalidInput:
        """Return the error for a spoke's reply."""
        if isinstance(reply, AbortedFrame):
            return CallError(f"the spoke stopped {self.operation} of its own accord")
        if reply.error.code == ApprovalNeeded.code and self.approval is not None:
            return self.approval
        return error_from_failure(reply.error)


def without_caller(context: Context) -> Context:
    """Return the context without the run, session and agent of the caller, for another owner's process.

    The idempotency key is hashed: the same for the same call, without the id of the run in it.
    """
    key = context.idempotency_key
    return replace(
        context,
        run_id=None,
        session_id=None,
        tool_call_id=None,
        agent=None,
        step=None,
        hooks=None,
        on_data=None,
        idempotency_key=None if key is None else hashlib.sha256(key.encode()).hexdigest()[:32],
    )
