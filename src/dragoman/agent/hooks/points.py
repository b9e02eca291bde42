"""Tool hooks: what hooks say before and after the calls that a model makes."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman.agent.hooks.events import (
    Ask,
    Block,
    Continue,
    Modify,
    PostModel,
    PostToolUse,
    PreModel,
    PreToolUse,
    RunEnd,
    UserPromptSubmit,
)
from dragoman.agent.hooks.runner import HookAnswer, HookRunner
from dragoman.agent.toolbox import wire_name
from dragoman.messages import Message, Part, TextPart
from dragoman.operations.arguments.validation import excerpt_value
from dragoman.operations.call_hooks import CallEnd, HookedCall, Revision, Ruling
from dragoman.operations.outcome import CallFailure, to_jsonable

MAX_NOTE_LENGTH = 2_000
WITHHELD = "withheld"
NO_RULING = Ruling()


class ToolHooks:
    """Asks hooks about calls; see `operations.hook.CallHooks`."""

    def __init__(self, runner: HookRunner) -> None:
        self._runner = runner

    async def before(self, call: HookedCall) -> Ruling:
        """Whether the call may run, and with which input."""
        if not self._runner.has_hooks("pre_tool_use", operation=call.operation):
            return NO_RULING
        event = PreToolUse(input=msgspec.to_builtins(call.input), **call_fields(call))
        answer = await self._runner.decide("pre_tool_use", event)
        ruling = make_ruling(answer)
        if ruling.block is None:
            runs = call.input if ruling.input is None else ruling.input
            await self._runner.notify_watchers(
                "pre_tool_use", replace(event, input=msgspec.to_builtins(runs))
            )
        return ruling

    async def after(self, call: HookedCall, end: CallEnd) -> Revision | None:
        """What the model is told instead; None when it is told what came out."""
        if not self._runner.has_hooks("post_tool_use", operation=call.operation):
            return None
        event = PostToolUse(
            input=msgspec.to_builtins(call.input),
            status=end.status,
            output=msgspec.to_builtins(end.result),
            error=None if end.failure is None else error_text(end.failure),
            duration=end.duration,
            **call_fields(call),
        )
        answer = await self._runner.decide("post_tool_use", event)
        revision = make_revision(answer, end)
        told = event if revision is None else with_revision(event, revision)
        await self._runner.notify_watchers("post_tool_use", told)
        return revision


def call_fields(call: HookedCall) -> dict[str, Any]:
    """What events say of a call, but for its input."""
    said = {field: getattr(call, field) for field in call.__struct_fields__ if field != "input"}
    return {**said, "tool": wire_name(call.operation)}


def make_ruling(answer: HookAnswer) -> Ruling:
    """What a decision means for a call that has not begun."""
    match answer.decision:
        case Continue():
            return Ruling(notes=answer.notes)
        case Block(reason=reason):
            return Ruling(block=reason, notes=answer.notes)
        case Ask(reason=reason):
            return Ruling(ask=reason, notes=answer.notes)
        case Modify(input=input) as change:
            changed = input is not UNSET
            what = f"the input was changed, to {note_text(input)}" if changed else ""
            return Ruling(
                input=to_jsonable(input) if changed else None,
                notes=(*answer.notes, *change_notes(answer.hook, change, description=what)),
            )


def make_revision(answer: HookAnswer, end: CallEnd) -> Revision | None:
    """What a decision makes of a call's end; None for nothing."""
    match answer.decision:
        case Block(reason=reason):
            return withhold(reason, end, notes=answer.notes)
        case Modify(output=output) as change:
            changed = output is not UNSET
            what = "what came out was changed" if changed else ""
            notes = (*answer.notes, *change_notes(answer.hook, change, description=what))
            if not changed:
                return Revision(result=end.result, failure=end.failure, notes=notes)
            if end.failure is None:
                return Revision(result=to_jsonable(output), notes=notes)
            message = output if isinstance(output, str) else note_text(output)
            return Revision(
                failure=replace(end.failure, message=message, hint=None, problems=()), notes=notes
            )
        case Continue() | Ask():
            if not answer.notes:
                return None
            return Revision(result=end.result, failure=end.failure, notes=answer.notes)


def withhold(reason: str, end: CallEnd, *, notes: tuple[str, ...]) -> Revision:
    """The end of a call whose result nobody may see: it was made all the same."""
    said = "the call was made, but its result is withheld" if end.failure is None else "the error is withheld"
    return Revision(failure=CallFailure(code=WITHHELD, message=f"{said}: {reason}"), notes=notes)


def change_notes(hook: str, change: Modify, *, description: str) -> list[str]:
    """The notes of a change: what it was and why, and what the hook wants remembered."""
    said = [each for each in (description, change.reason) if each]
    notes = [f"hook {hook}: {': '.join(said)}"] if said else []
    if change.metadata:
        notes.append(f"hook {hook} notes {note_text(dict(change.metadata))}")
    return notes


def note_text(value: Any) -> str:
    """A value as JSON for a note: cut short, without what is named like a secret."""
    text = msgspec.json.encode(excerpt_value(value), enc_hook=str).decode()
    return text if len(text) <= MAX_NOTE_LENGTH else f"{text[: MAX_NOTE_LENGTH - 1]}…"


def error_text(failure: CallFailure) -> str:
    return f"{failure.message} ({failure.hint})" if failure.hint else failure.message


def with_revision(event: PostToolUse, revision: Revision) -> PostToolUse:
    """The event as those that watch see it: with what the model is told."""
    error = None if revision.failure is None else error_text(revision.failure)
    return replace(event, output=revision.result, error=error)


# ---- Loop hooks: what hooks say of what a user said, of a model's request and answer, and of a run's end.


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
        await self._runner.notify_watchers("user_prompt_submit", event)
        return event

    async def pre_model(self, event: PreModel) -> PreModel | Block:
        """What the model is asked, or why it must not be."""
        decision = (await self._runner.decide("pre_model", event)).decision
        if isinstance(decision, Block):
            return decision
        if isinstance(decision, Modify) and decision.request is not None:
            event = replace(event, request=decision.request)
        await self._runner.notify_watchers("pre_model", event)
        return event

    async def post_model(self, event: PostModel) -> None:
        """Tell of a model's answer."""
        await self._runner.decide("post_model", event)
        await self._runner.notify_watchers("post_model", event)

    async def run_end(self, event: RunEnd) -> None:
        """Tell of a run's end."""
        await self._runner.decide("run_end", event)
        await self._runner.notify_watchers("run_end", event)


def message_text(message: Message) -> str:
    """All the text of a message."""
    return "\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def with_text(message: Message, text: str) -> Message:
    """The message with this as its only text, where its first text stood; files and all else stay."""
    parts: list[Part] = [part for part in message.parts if not isinstance(part, TextPart)]
    at = next((at for at, part in enumerate(message.parts) if isinstance(part, TextPart)), 0)
    parts.insert(at, TextPart(text))
    return replace(message, parts=tuple(parts))
