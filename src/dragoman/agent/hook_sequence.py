"""Hooks in turn: several as one, each of which sees what those before it made."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from dragoman.agent.decisions import Continue, Modify
from dragoman.agent.hook import HookFunction, Said, closed
from dragoman.agent.hook_events import HookEvent, PostToolUse, PreModel, PreToolUse, UserPromptSubmit
from dragoman.agent.hook_runner import is_async


def in_turn(*functions: HookFunction) -> Callable[[Any], Awaitable[Said]]:
    """One hook out of several: what one changes the next one sees; the first that blocks or asks ends it."""

    async def close() -> None:
        for function in functions:
            await closed(function)

    async def in_turn(event: HookEvent) -> Said:
        changes: list[Modify] = []
        for function in functions:
            said: Any = function(event) if is_async(function) else await asyncio.to_thread(function, event)
            said = await said if inspect.isawaitable(said) else said
            if said is None or isinstance(said, Continue):
                continue
            if not isinstance(said, Modify):
                return said  # type: ignore[no-any-return]  # whoever asked checks it
            changes.append(said)
            event = changed(event, said)
        return joined(changes) if changes else None

    in_turn.close = close  # type: ignore[attr-defined]  # see `hook.closed`
    return in_turn


def changed(event: HookEvent, change: Modify) -> HookEvent:
    """The event as the next hook sees it."""
    match event:
        case PreToolUse() if change.input is not UNSET:
            return replace(event, input=change.input)
        case UserPromptSubmit() if change.input is not UNSET:
            return replace(event, text=change.input)
        case PostToolUse() if change.output is not UNSET:
            return (
                replace(event, error=change.output) if event.error else replace(event, output=change.output)
            )
        case PreModel() if change.request is not None:
            return replace(event, request=change.request)
        case _:
            return event


def joined(changes: list[Modify]) -> Modify:
    """All changes as one: the last value of each, and all that they say."""
    whole = changes[0]
    for change in changes[1:]:
        reasons = [each for each in (whole.reason, change.reason) if each]
        whole = Modify(
            input=whole.input if change.input is UNSET else change.input,
            reason="; ".join(reasons) or None,
            output=whole.output if change.output is UNSET else change.output,
            request=change.request or whole.request,
            metadata={**whole.metadata, **change.metadata},
        )
    return whole
