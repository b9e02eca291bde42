"""A ticket: one call that a spoke has been handed, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar, copy_context
from typing import Any, TypeAlias

import msgspec

from dragoman.errors import (
    ApprovalNeeded,
    CallError,
    CallTimeout,
    CallUncertain,
    InvalidInput,
    RateLimited,
)
from dragoman.ids import new_id
from dragoman.operations.cleaning import clean
from dragoman.operations.context import Context
from dragoman.operations.operation import Effect
from dragoman.operations.outcome import MESSAGE_LIMIT
from dragoman.spokes.protocol import Aborted, Answer, Call, Error, Failure

DEEPEST = 16
above: ContextVar[tuple[str, ...]] = ContextVar("dragoman_spokes_above", default=())
"""The spokes that serve the calls above this one."""


class Lost(msgspec.Struct, frozen=True):
    """The spoke went away. `begun`: it may have begun the call."""

    begun: bool = True


Came: TypeAlias = Answer | Lost


class Ticket:
    """A call under way at a spoke."""

    def __init__(self, operation: str, effect: Effect, *, context: Context) -> None:
        self.id = new_id("at")
        self.operation = operation
        self.effect = effect
        self.context = context
        self.handed = False
        self.abandoned = False
        self.came: asyncio.Future[Came] = asyncio.get_running_loop().create_future()
        self.surroundings = copy_context()
        self.approval: ApprovalNeeded | None = None  # what a call below it needs

    def end(self, came: Came) -> None:
        """This came of it; the first word counts."""
        if not self.came.done():
            self.came.set_result(came)

    def frame(self, input: Mapping[str, Any]) -> Call:
        """What the spoke is told."""
        context = self.context
        return Call(
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

    def error_of(self, answer: Error | Aborted) -> CallError | InvalidInput:
        """The error that a spoke's answer stands for."""
        if isinstance(answer, Aborted):
            return CallError(f"the spoke stopped {self.operation} of its own accord")
        if answer.error.code == ApprovalNeeded.code and self.approval is not None:
            return self.approval
        return error_of(answer.error)


def error_of(failure: Failure) -> CallError | InvalidInput:
    """The error that a failure stands for; its words come from elsewhere, so they are cleaned."""
    message = clean(failure.message, MESSAGE_LIMIT) or "it failed, and does not say why"
    hint = clean(failure.hint, MESSAGE_LIMIT) if failure.hint else None
    if failure.code == InvalidInput.code:
        return InvalidInput(message, problems=list(failure.problems), hint=hint)
    if failure.code == RateLimited.code:
        return RateLimited(message, retry_after=failure.retry_after, hint=hint)
    if failure.code == CallTimeout.code:
        return CallTimeout(message, hint=hint)
    if failure.code == CallUncertain.code:
        return CallUncertain(message, hint=hint)
    error = CallError(message, hint=hint)
    error.code, error.transient, error.retry_after = failure.code, failure.transient, failure.retry_after
    return error
