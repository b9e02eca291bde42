"""Calls the hooks of a run at each point of the loop, with the event that describes it.

The loop passes what it has at hand; this module builds the hook events from it and turns a
blocking decision into CallDenied, so that the loop knows nothing of hook events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dragoman import events as e
from dragoman.agent.answer_snapshot import read_message
from dragoman.agent.hooks.events import Block, HookName, PostModel, PreModel, RunEnd, UserPromptSubmit
from dragoman.agent.hooks.invocation import TurnHooks, message_text
from dragoman.agent.result import error_details
from dragoman.agent.stop_conditions import SoFar, StepTaken
from dragoman.errors import CallDenied, ProviderError
from dragoman.fold import Fold
from dragoman.messages import Message
from dragoman.model_request import ModelRequest
from dragoman.operations.context import Context


class HookedTurn(Protocol):
    """The parts of a turn that its hooks see: `TurnSpec`, or a runner's turn."""

    @property
    def hooks(self) -> TurnHooks | None: ...

    @property
    def fold(self) -> Fold: ...

    @property
    def context(self) -> Context: ...


class HookDispatcher:
    """Calls the hooks of one turn, if it has any. Raises CallDenied with the reason of a hook that blocks."""

    def __init__(self, turn: HookedTurn) -> None:
        self._hooks = turn.hooks
        self._turn = turn
        self._has_ended = False

    async def user_prompt_submit(self, history: Sequence[Message]) -> Sequence[Message]:
        """Return the conversation with the last user message as the hooks changed it."""
        last = history[-1] if history else None
        hooks = self._hooks_of("user_prompt_submit")
        if hooks is None or last is None or last.role != "user" or self._turn.fold.builders:
            return history
        text = message_text(last)
        decision = await hooks.user_prompt_submit(
            UserPromptSubmit(text=text, message=last, **self._event_context(0))
        )
        if isinstance(decision, Block):
            raise CallDenied(decision.reason)
        return history if decision.message is None else [*history[:-1], decision.message]

    async def pre_model(self, request: ModelRequest, step: int) -> ModelRequest:
        """Return the request as the hooks changed it."""
        hooks = self._hooks_of("pre_model")
        if hooks is None:
            return request
        decision = await hooks.pre_model(PreModel(request=request, **self._event_context(step)))
        if isinstance(decision, Block):
            raise CallDenied(decision.reason)
        return decision.request

    async def post_model(self, step: StepTaken) -> None:
        """Report a finished model call."""
        hooks = self._hooks_of("post_model")
        if hooks is None:
            return
        event = PostModel(
            model=step.model,
            text=step.text,
            message=await read_message(self._turn.fold),
            finish_reason=step.finish_reason,
            usage=step.usage,
            duration=step.duration,
            **self._event_context(step.number),
        )
        await hooks.post_model(event)

    async def model_failed(self, error: Exception, step: int, *, model: str) -> None:
        """Report a failed model call."""
        hooks = self._hooks_of("post_model")
        if hooks is not None:
            await hooks.post_model(PostModel(model=model, error=str(error), **self._event_context(step)))

    async def run_end(
        self,
        reason: str,
        so_far: SoFar,
        *,
        error: str | None = None,
        failure: ProviderError | None = None,
    ) -> None:
        """Report the end of the run, with the failure if it failed. Only the first call counts."""
        hooks = self._hooks_of("run_end")
        if hooks is None or self._has_ended:
            return
        self._has_ended = True
        event = RunEnd(
            reason=reason,
            text=so_far.text,
            steps=so_far.taken,
            usage=None if so_far.usage == e.Usage() else so_far.usage,
            cost=so_far.cost,
            duration=so_far.seconds,
            error=error,
            **({} if failure is None else failure_fields(failure)),
            **self._event_context(so_far.taken),
        )
        await hooks.run_end(event)

    def _hooks_of(self, name: HookName) -> TurnHooks | None:
        """Return the hooks if there is one of this event."""
        return self._hooks if self._hooks is not None and self._hooks.has(name) else None

    def _event_context(self, step: int) -> dict[str, Any]:
        """Return the fields that every hook event has."""
        context = self._turn.context
        return {
            "owner": context.identity.owner,
            "key_id": context.identity.key_id,
            "agent": context.agent,
            "session_id": context.session_id,
            "run_id": context.run_id,
            "step": step or None,
        }


def failure_fields(failure: ProviderError) -> dict[str, Any]:
    """Return the fields of `RunEnd` that describe a failure."""
    details = error_details(failure)
    kind = {"category": details.category, "transient": details.transient}
    return {**kind, "retry_delay": details.retry_delay, "hint": details.hint}
