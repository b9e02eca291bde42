"""The points at which hooks are called: around tool calls (ToolHooks), and in the loop (TurnHooks).

Both turn the decisions of hooks into what calls and the loop understand.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman.agent.hooks.events import (
    Ask,
    Block,
    Continue,
    HookName,
    Modify,
    PostModel,
    PostToolUse,
    PreModel,
    PreToolUse,
    RunEnd,
    UserPromptSubmit,
)
from dragoman.agent.hooks.runner import HookAnswer, HookRunner
from dragoman.agent.tool_names import wire_name
from dragoman.messages import Message, Part, TextPart
from dragoman.operations.arguments.validation import excerpt_value
from dragoman.operations.call_hooks import CallEnd, HookDecision, HookedCall, Revision
from dragoman.operations.outcome import CallFailure, to_jsonable

MAX_NOTE_LENGTH = 2_000
WITHHELD = "withheld"
NO_DECISION = HookDecision()


class ToolHooks:
    """Calls hooks around tool calls; implements `operations.hook.CallHooks`."""

    def __init__(self, runner: HookRunner) -> None:
        self._runner = runner

    async def before(self, call: HookedCall) -> HookDecision:
        """Return whether the call may run, and with which input."""
        if not self._runner.has_hooks("pre_tool_use", operation=call.operation):
            return NO_DECISION
        event = PreToolUse(input=msgspec.to_builtins(call.input), **call_fields(call))
        answer = await self._runner.decide("pre_tool_use", event)
        hook_decision = to_hook_decision(answer)
        if hook_decision.block is None:
            runs = call.input if hook_decision.input is None else hook_decision.input
            await self._runner.notify_watchers(
                "pre_tool_use", replace(event, input=msgspec.to_builtins(runs))
            )
        return hook_decision

    async def after(self, call: HookedCall, end: CallEnd) -> Revision | None:
        """Return what the model is told instead of the result; None leaves it unchanged."""
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
        watched = event if revision is None else with_revision(event, revision)
        await self._runner.notify_watchers("post_tool_use", watched)
        return revision


def call_fields(call: HookedCall) -> dict[str, Any]:
    """Return the event fields of a call, except its input."""
    fields = {field: getattr(call, field) for field in call.__struct_fields__ if field != "input"}
    return {**fields, "tool": wire_name(call.operation)}


def to_hook_decision(answer: HookAnswer) -> HookDecision:
    """Return what a decision means for a call that has not started."""
    match answer.decision:
        case Continue():
            return HookDecision(notes=answer.notes)
        case Block(reason=reason):
            return HookDecision(block=reason, notes=answer.notes)
        case Ask(reason=reason):
            return HookDecision(ask=reason, notes=answer.notes)
        case Modify(input=input) as change:
            changed = input is not UNSET
            what = f"the input was changed, to {note_text(input)}" if changed else ""
            return HookDecision(
                input=to_jsonable(input) if changed else None,
                notes=(*answer.notes, *change_notes(answer.hook, change, description=what)),
            )


def make_revision(answer: HookAnswer, end: CallEnd) -> Revision | None:
    """Return what a decision changes in the result of a call; None for nothing."""
    match answer.decision:
        case Block(reason=reason):
            return withhold(reason, end, notes=answer.notes)
        case Modify(output=output) as change:
            changed = output is not UNSET
            what = "the output was changed" if changed else ""
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
    """Return the result of a call whose output is withheld. The call was made all the same."""
    prefix = (
        "the call was made, but its result is withheld" if end.failure is None else "the error is withheld"
    )
    return Revision(failure=CallFailure(code=WITHHELD, message=f"{prefix}: {reason}"), notes=notes)


def change_notes(hook: str, change: Modify, *, description: str) -> list[str]:
    """Return the notes on a change: what changed and why, and the metadata of the hook."""
    reasons = [each for each in (description, change.reason) if each]
    notes = [f"hook {hook}: {': '.join(reasons)}"] if reasons else []
    if change.metadata:
        notes.append(f"hook {hook} notes {note_text(dict(change.metadata))}")
    return notes


def note_text(value: Any) -> str:
    """Return a value as JSON for a note, cut short and without secret fields."""
    text = msgspec.json.encode(excerpt_value(value), enc_hook=str).decode()
    return text if len(text) <= MAX_NOTE_LENGTH else f"{text[: MAX_NOTE_LENGTH - 1]}…"


def error_text(failure: CallFailure) -> str:
    return f"{failure.message} ({failure.hint})" if failure.hint else failure.message


def with_revision(event: PostToolUse, revision: Revision) -> PostToolUse:
    """Return the event as watchers see it: with what the model is told."""
    error = None if revision.failure is None else error_text(revision.failure)
    return replace(event, output=revision.result, error=error)


TURN_HOOKS: tuple[HookName, ...] = ("user_prompt_submit", "pre_model", "post_model", "run_end")


class TurnHooks:
    """Calls hooks in the loop. No method raises for a hook that fails."""

    def __init__(self, runner: HookRunner) -> None:
        self._runner = runner

    def has(self, *names: HookName) -> bool:
        """Return whether there are hooks of one of these events: without them, none has to be made."""
        return any(map(self._runner.has_hooks, names))

    async def user_prompt_submit(self, event: UserPromptSubmit) -> UserPromptSubmit | Block:
        """Return the event as the hooks changed it, or a Block."""
        decision = (await self._runner.decide("user_prompt_submit", event)).decision
        if isinstance(decision, Block):
            return decision
        if isinstance(decision, Modify) and decision.input is not UNSET:
            message = None if event.message is None else with_text(event.message, decision.input)
            event = replace(event, text=decision.input, message=message)
        await self._runner.notify_watchers("user_prompt_submit", event)
        return event

    async def pre_model(self, event: PreModel) -> PreModel | Block:
        """Return the event as the hooks changed it, or a Block."""
        decision = (await self._runner.decide("pre_model", event)).decision
        if isinstance(decision, Block):
            return decision
        if isinstance(decision, Modify) and decision.request is not None:
            event = replace(event, request=decision.request)
        await self._runner.notify_watchers("pre_model", event)
        return event

    async def post_model(self, event: PostModel) -> None:
        """Report a model call."""
        await self._runner.decide("post_model", event)
        await self._runner.notify_watchers("post_model", event)

    async def run_end(self, event: RunEnd) -> None:
        """Report the end of a run."""
        await self._runner.decide("run_end", event)
        await self._runner.notify_watchers("run_end", event)


def message_text(message: Message) -> str:
    """Return the text parts of a message, one after another on lines of their own."""
    return "\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def with_text(message: Message, text: str) -> Message:
    """Return the message with this text in place of all its text; files and other parts stay."""
    parts: list[Part] = [part for part in message.parts if not isinstance(part, TextPart)]
    at = next((at for at, part in enumerate(message.parts) if isinstance(part, TextPart)), 0)
    parts.insert(at, TextPart(text))
    return replace(message, parts=tuple(parts))
