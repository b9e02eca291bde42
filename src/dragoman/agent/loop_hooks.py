"""Loop hooks: what hooks say of what a user said, of a model's request and answer, and of a run's end."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from dragoman.agent.decisions import Block, Modify
from dragoman.agent.hook_events import PostModel, PreModel, RunEnd, UserPromptSubmit
from dragoman.agent.hook_runner import HookRunner
from dragoman.messages import Message, Part, TextPart


class TurnHooks:
    """Asks hooks about a run; see `agent.hooks.LoopHooks`."""

    def __init__(self, runner: HookRunner) -> None:
        self._runner = runner

    async def user_prompt_submit(self, event: UserPromptSubmit) -> UserPromptSubmit | Block:
        """What the user is taken to have said, or why the run must not begin."""
        decision = (await self._runner.decide("user_prompt_submit", event)).decision
        if isinstance(decision, Block):
            return decision
        if isinstance(decision, Modify) and decision.input is not UNSET:
            message = None if event.message is None else with_text(event.message, decision.input)
            event = replace(event, text=decision.input, message=message)
        await self._runner.tell("user_prompt_submit", event)
        return event

    async def pre_model(self, event: PreModel) -> PreModel | Block:
        """What the model is asked, or why it must not be."""
        decision = (await self._runner.decide("pre_model", event)).decision
        if isinstance(decision, Block):
            return decision
        if isinstance(decision, Modify) and decision.request is not None:
            event = replace(event, request=decision.request)
        await self._runner.tell("pre_model", event)
        return event

    async def post_model(self, event: PostModel) -> None:
        """Tell of a model's answer."""
        await self._runner.decide("post_model", event)
        await self._runner.tell("post_model", event)

    async def run_end(self, event: RunEnd) -> None:
        """Tell of a run's end."""
        await self._runner.decide("run_end", event)
        await self._runner.tell("run_end", event)


def text_of(message: Message) -> str:
    """All the text of a message."""
    return "\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def with_text(message: Message, text: str) -> Message:
    """The message with this as its only text, where its first text stood; files and all else stay."""
    parts: list[Part] = [part for part in message.parts if not isinstance(part, TextPart)]
    at = next((at for at, part in enumerate(message.parts) if isinstance(part, TextPart)), 0)
    parts.insert(at, TextPart(text))
    return replace(message, parts=tuple(parts))
