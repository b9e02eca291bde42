"""Runs hooks: one after another, each within its time; the first that decides ends the asking."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.agent.decisions import Ask, Block, Continue, Decision, Modify
from dragoman.agent.hook import CLOSED, Hook
from dragoman.agent.hook_events import HookEvent, HookName
from dragoman.operations.execution import is_cancelled
from dragoman.request import ModelRequest

log = logging.getLogger(__name__)

THREADS = 8
NONE = Continue()


class HookFailed(Exception):
    """A hook gave no answer that can be used; the message says why, in words that can be shown."""


class Answer(msgspec.Struct, frozen=True):
    """What was decided, by which hook, and what else has to be remembered."""

    decision: Decision = NONE
    hook: str = ""
    notes: tuple[str, ...] = ()


class HookRunner:
    """Asks hooks. `hooks` may grow. Plain functions run in a few threads of its own."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = hooks
        self._threads: ThreadPoolExecutor | None = None

    def has(self, name: HookName, *, operation: str | None = None) -> bool:
        """Whether anybody wants to hear of such an event."""
        return any(each.event == name and each.is_for(operation) for each in self._hooks)

    async def decide(self, name: HookName, event: HookEvent) -> Answer:
        """What the hooks say: the first decision that is not to continue. Hooks that fail are noted."""
        notes: tuple[str, ...] = ()
        for hook in self._of(name, event, watches=False):
            try:
                decision = await self._asked(hook, event)
            except HookFailed as error:
                note = f"hook {hook.name} failed: {error}"
                if hook.on_error == "block":
                    return Answer(Block(note), hook.name, notes)
                notes += (note,)
                continue
            if not isinstance(decision, Continue):
                return Answer(decision, hook.name, notes)
        return Answer(notes=notes)

    async def tell(self, name: HookName, event: HookEvent) -> None:
        """Tell those that only watch. One that fails is logged."""
        for hook in self._of(name, event, watches=True):
            try:
                await self._asked(hook, event)
            except HookFailed as error:
                log.warning("hook %s, which watches %s, failed: %s", hook.name, name, error)

    def close(self) -> None:
        """Let the threads go, without waiting for busy ones."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    def _of(self, name: HookName, event: HookEvent, *, watches: bool) -> list[Hook]:
        operation = getattr(event, "operation", None)
        found = [each for each in self._hooks if each.event == name and each.watches is watches]
        return [each for each in found if each.is_for(operation)]

    async def _asked(self, hook: Hook, event: HookEvent) -> Decision:
        """What one hook says. HookFailed when it raises, takes too long, or says what means nothing here.

        What it raised is for the log only, since it may hold secrets.
        """
        try:
            return checked(hook, await self._within(hook, event))
        except HookFailed as error:
            log.warning("hook %s failed: %s", hook.name, error)
            raise
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            log.exception("hook %s failed", hook.name)
        except (Exception, SystemExit):
            log.exception("hook %s failed", hook.name)
        raise HookFailed("it raised an error")

    async def _within(self, hook: Hook, event: HookEvent) -> Any:
        limit = asyncio.timeout(hook.timeout)
        try:
            async with limit:
                said = await self._called(hook, event)
        except TimeoutError:
            if not limit.expired():
                raise
            said = None
        if limit.expired():  # also when it was told to stop, and answered all the same
            raise HookFailed(f"it took more than {hook.timeout:g} seconds")
        return said

    async def _called(self, hook: Hook, event: HookEvent) -> Any:
        function: Callable[[Any], Any] = hook.function
        if is_async(function):
            return await function(event)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hook")
        loop = asyncio.get_running_loop()
        said = await loop.run_in_executor(self._threads, copy_context().run, kept, function, event)
        return await said if inspect.isawaitable(said) else said


def checked(hook: Hook, said: Any) -> Decision:
    """The decision that it is. HookFailed for what means nothing here; who only watches may say anything."""
    if said is None or hook.watches:
        return NONE
    wrong = unfit(hook.event, said)
    if wrong:
        raise HookFailed(wrong)
    decision: Decision = said
    return decision


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def kept(function: Callable[[Any], Any], event: HookEvent) -> Any:
    """What the function says; what a future cannot carry out of a thread becomes another error."""
    try:
        return function(event)
    except (StopIteration, SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the hook raised {type(error).__name__}") from error


def unfit(name: HookName, decision: object) -> str | None:
    """Why a decision means nothing for this kind of event; None when it does."""
    match decision:
        case Continue():
            return None
        case Block(reason=str()):
            return None if name in (*CLOSED, "post_tool_use") else f"it cannot block {name}"
        case Ask(reason=str()):
            return None if name == "pre_tool_use" else f"it cannot ask for approval at {name}"
        case Modify():
            return unfit_change(name, decision)
        case _:
            return f"it gave a {type(decision).__name__}, which is no decision"


def unfit_change(name: HookName, change: Modify) -> str | None:
    """Why a change means nothing for this kind of event."""
    given = {"input": change.input is not UNSET, "output": change.output is not UNSET}
    given["request"] = change.request is not None
    field, kind = CHANGES.get(name, (None, object))
    for each, said in given.items():
        if said and each != field:
            return f"it changed the {each}, which {name} does not have"
    value = getattr(change, field) if field and given[field] else None
    if value is not None and not isinstance(value, kind):
        return f"it changed the {field} to a {type(value).__name__}"
    if value is None and field == "input" and given["input"]:
        return "it changed the input to nothing"
    return None


CHANGES: dict[HookName, tuple[str, type]] = {
    "user_prompt_submit": ("input", str),
    "pre_tool_use": ("input", dict),
    "post_tool_use": ("output", object),
    "pre_model": ("request", ModelRequest),
}
