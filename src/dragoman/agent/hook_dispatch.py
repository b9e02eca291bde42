"""Listening: hooks on the loop are told, in their own events, what happens in a turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman import events as e
from dragoman.agent.hooks.events import Block, PostModel, PreModel, RunEnd, UserPromptSubmit
from dragoman.agent.result import error_details
from dragoman.agent.stop_conditions import SoFar, StepTaken
from dragoman.agent.turn import TurnSpec
from dragoman.errors import CallDenied, ProviderError
from dragoman.messages import Message, TextPart
from dragoman.model_request import ModelRequest


class HookDispatcher:
    """Tells the hooks of one turn, if it has any. What they block is a CallDenied with their reason."""

    def __init__(self, turn: TurnSpec) -> None:
        self._hooks = turn.hooks
        self._turn = turn
        self._has_ended = False

    async def user_prompt_submit(self, history: Sequence[Message]) -> Sequence[Message]:
        """The conversation, with what the user said last as the hooks have it."""
        last = history[-1] if history else None
        if self._hooks is None or last is None or last.role != "user" or self._turn.fold.builders:
            return history
        text = "\n".join(part.text for part in last.parts if isinstance(part, TextPart))
        said = await self._hooks.user_prompt_submit(
            UserPromptSubmit(text=text, message=last, **self._event_context(0))
        )
        if isinstance(said, Block):
            raise CallDenied(said.reason)
        return history if said.message is None else [*history[:-1], said.message]

    async def pre_model(self, request: ModelRequest, step: int) -> ModelRequest:
        """The request as the hooks have it."""
        if self._hooks is None:
            return request
        said = await self._hooks.pre_model(PreModel(request=request, **self._event_context(step)))
        if isinstance(said, Block):
            raise CallDenied(said.reason)
        return said.request

    async def post_model(self, step: StepTaken) -> None:
        """The model has answered."""
        if self._hooks is None:
            return
        event = PostModel(
            model=step.model,
            text=step.text,
            message=self._turn.fold.message(),
            finish_reason=step.finish_reason,
            usage=step.usage,
            duration=step.duration,
            **self._event_context(step.number),
        )
        await self._hooks.post_model(event)

    async def model_failed(self, error: Exception, step: int) -> None:
        """The model has not answered."""
        if self._hooks is not None:
            model = self._turn.model
            await self._hooks.post_model(
                PostModel(model=model, error=str(error), **self._event_context(step))
            )

    async def run_end(
        self,
        reason: str,
        so_far: SoFar,
        *,
        error: str | None = None,
        failure: ProviderError | None = None,
    ) -> None:
        """The run has ended, of this failure if it failed; only the first time counts."""
        if self._hooks is None or self._has_ended:
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
        await self._hooks.run_end(event)

    def _event_context(self, step: int) -> dict[str, Any]:
        """For whom it is, and what it belongs to."""
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
    """What a failure is, for whoever wants to try again."""
    details = error_details(failure)
    kind = {"category": details.category, "transient": details.transient}
    return {**kind, "retry_delay": details.retry_delay, "hint": details.hint}
