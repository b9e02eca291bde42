"""Runs hooks: one after another, each within its time; the first that decides ends the asking."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman.agent.hooks.events import (
    Ask,
    Block,
    Continue,
    Decision,
    HookEvent,
    HookName,
    Modify,
    PostToolUse,
    PreModel,
    PreToolUse,
    UserPromptSubmit,
)
from dragoman.errors import ConfigError
from dragoman.model_request import ModelRequest
from dragoman.operations.execution import is_task_cancelled
from dragoman.operations.permission.patterns import compile_glob, parse_pattern

# ---- A hook: a function that is told of an event and may decide; what it is for, and how long it may take.

OnError = Literal["block", "continue"]
HookResult: TypeAlias = Continue | Block | Ask | Modify | None
HookFunction: TypeAlias = Callable[[Any], HookResult | Awaitable[HookResult]]

HOOK_NAMES: tuple[HookName, ...] = get_args(HookName)
FAIL_CLOSED: tuple[HookName, ...] = ("user_prompt_submit", "pre_tool_use", "pre_model")
TOOL_HOOKS: tuple[HookName, ...] = ("pre_tool_use", "post_tool_use")
DEFAULT_TIMEOUT = 10.0


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A function for one kind of event.

    `match` are patterns of operations (`files.*`, `*.delete_*`); without any it is asked about all.
    `timeout` is in seconds. `on_error` is what a hook that fails or takes too long counts as. One that only
    watches is told last, and what it says counts for nothing. ConfigError for what cannot be.
    """

    event: HookName
    function: HookFunction
    name: str = ""
    match: tuple[str, ...] = ()
    timeout: float = DEFAULT_TIMEOUT
    on_error: OnError = "block"
    watches: bool = False

    def __post_init__(self) -> None:
        if self.event not in HOOK_NAMES:
            raise ConfigError(f"there is no hook {self.event!r}", hint=f"there are {', '.join(HOOK_NAMES)}")
        if not callable(self.function):
            raise ConfigError(f"a hook is a function, got {self.function!r:.80}")
        if self.timeout <= 0:
            raise ConfigError(f"the timeout of a hook is above 0 seconds, got {self.timeout!r}")
        if self.on_error not in ("block", "continue"):
            raise ConfigError(f"on_error of a hook is block or continue, got {self.on_error!r}")
        if self.match and self.event not in TOOL_HOOKS:
            raise ConfigError(f"a hook for {self.event} has no operation to match")
        for pattern in self.match:
            parse_pattern(pattern)

    def applies_to(self, operation: str | None) -> bool:
        """Whether it is asked about this operation."""
        if not self.match or operation is None:
            return True
        id = operation.lower()
        return any(compile_glob(parse_pattern(each).text)(id) for each in self.match)


def function_name(function: HookFunction) -> str:
    """What a function is called in notes and logs."""
    return getattr(function, "__name__", None) or type(function).__name__


async def close_function(function: HookFunction) -> None:
    """Let go of what a hook holds, where it has an async `close()`."""
    close: Any = getattr(function, "close", None)
    if inspect.iscoroutinefunction(close):
        await close()


log = logging.getLogger(__name__)

MAX_THREADS = 8
NO_DECISION = Continue()


class HookFailed(Exception):
    """A hook gave no answer that can be used; the message says why, in words that can be shown."""


class HookAnswer(msgspec.Struct, frozen=True):
    """What was decided, by which hook, and what else has to be remembered."""

    decision: Decision = NO_DECISION
    hook: str = ""
    notes: tuple[str, ...] = ()


class HookRunner:
    """Asks hooks. `hooks` may grow. Plain functions run in a few threads of its own."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = hooks
        self._threads: ThreadPoolExecutor | None = None

    def has_hooks(self, name: HookName, *, operation: str | None = None) -> bool:
        """Whether anybody wants to hear of such an event."""
        return any(each.event == name and each.applies_to(operation) for each in self._hooks)

    async def decide(self, name: HookName, event: HookEvent) -> HookAnswer:
        """What the hooks say: the first decision that is not to continue. Hooks that fail are noted."""
        notes: tuple[str, ...] = ()
        for hook in self._matching_hooks(name, event, watches=False):
            try:
                decision = await self._run_hook(hook, event)
            except HookFailed as error:
                note = f"hook {hook.name} failed: {error}"
                if hook.on_error == "block":
                    return HookAnswer(Block(note), hook.name, notes)
                notes += (note,)
                continue
            if not isinstance(decision, Continue):
                return HookAnswer(decision, hook.name, notes)
        return HookAnswer(notes=notes)

    async def notify_watchers(self, name: HookName, event: HookEvent) -> None:
        """Tell those that only watch. One that fails is logged."""
        for hook in self._matching_hooks(name, event, watches=True):
            try:
                await self._run_hook(hook, event)
            except HookFailed as error:
                log.warning("hook %s, which watches %s, failed: %s", hook.name, name, error)

    def close(self) -> None:
        """Let the threads go, without waiting for busy ones."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    def _matching_hooks(self, name: HookName, event: HookEvent, *, watches: bool) -> list[Hook]:
        operation = getattr(event, "operation", None)
        found = [each for each in self._hooks if each.event == name and each.watches is watches]
        return [each for each in found if each.applies_to(operation)]

    async def _run_hook(self, hook: Hook, event: HookEvent) -> Decision:
        """What one hook says. HookFailed when it raises, takes too long, or says what means nothing here.

        What it raised is for the log only, since it may hold secrets.
        """
        try:
            return check_decision(hook, await self._run_with_timeout(hook, event))
        except HookFailed as error:
            log.warning("hook %s failed: %s", hook.name, error)
            raise
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            log.exception("hook %s failed", hook.name)
        except (Exception, SystemExit):
            log.exception("hook %s failed", hook.name)
        raise HookFailed("it raised an error")

    async def _run_with_timeout(self, hook: Hook, event: HookEvent) -> Any:
        limit = asyncio.timeout(hook.timeout)
        try:
            async with limit:
                said = await self._call_function(hook, event)
        except TimeoutError:
            if not limit.expired():
                raise
            said = None
        if limit.expired():  # also when it was told to stop, and answered all the same
            raise HookFailed(f"it took more than {hook.timeout:g} seconds")
        return said

    async def _call_function(self, hook: Hook, event: HookEvent) -> Any:
        function: Callable[[Any], Any] = hook.function
        if is_async(function):
            return await function(event)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="hook")
        loop = asyncio.get_running_loop()
        said = await loop.run_in_executor(self._threads, copy_context().run, call_in_thread, function, event)
        return await said if inspect.isawaitable(said) else said


def check_decision(hook: Hook, result: Any) -> Decision:
    """The decision that it is. HookFailed for what means nothing here; who only watches may say anything."""
    if result is None or hook.watches:
        return NO_DECISION
    wrong = decision_error(hook.event, result)
    if wrong:
        raise HookFailed(wrong)
    decision: Decision = result
    return decision


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def call_in_thread(function: Callable[[Any], Any], event: HookEvent) -> Any:
    """What the function says; what a future cannot carry out of a thread becomes another error."""
    try:
        return function(event)
    except (StopIteration, SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the hook raised {type(error).__name__}") from error


def decision_error(name: HookName, decision: object) -> str | None:
    """Why a decision means nothing for this kind of event; None when it does."""
    match decision:
        case Continue():
            return None
        case Block(reason=str()):
            return None if name in (*FAIL_CLOSED, "post_tool_use") else f"it cannot block {name}"
        case Ask(reason=str()):
            return None if name == "pre_tool_use" else f"it cannot ask for approval at {name}"
        case Modify():
            return change_error(name, decision)
        case _:
            return f"it gave a {type(decision).__name__}, which is no decision"


def change_error(name: HookName, change: Modify) -> str | None:
    """Why a change means nothing for this kind of event."""
    given = {"input": change.input is not UNSET, "output": change.output is not UNSET}
    given["request"] = change.request is not None
    field, kind = CHANGEABLE_FIELDS.get(name, (None, object))
    for each, said in given.items():
        if said and each != field:
            return f"it changed the {each}, which {name} does not have"
    value = getattr(change, field) if field and given[field] else None
    if value is not None and not isinstance(value, kind):
        return f"it changed the {field} to a {type(value).__name__}"
    if value is None and field == "input" and given["input"]:
        return "it changed the input to nothing"
    return None


CHANGEABLE_FIELDS: dict[HookName, tuple[str, type]] = {
    "user_prompt_submit": ("input", str),
    "pre_tool_use": ("input", dict),
    "post_tool_use": ("output", object),
    "pre_model": ("request", ModelRequest),
}


# ---- Hooks in turn: several as one, each of which sees what those before it made.


def in_turn(*functions: HookFunction) -> Callable[[Any], Awaitable[HookResult]]:
    """One hook out of several: what one changes the next one sees; the first that blocks or asks ends it."""

    async def close() -> None:
        for function in functions:
            await close_function(function)

    async def in_turn(event: HookEvent) -> HookResult:
        changes: list[Modify] = []
        for function in functions:
            said: Any = function(event) if is_async(function) else await asyncio.to_thread(function, event)
            said = await said if inspect.isawaitable(said) else said
            if said is None or isinstance(said, Continue):
                continue
            if not isinstance(said, Modify):
                return said  # type: ignore[no-any-return]  # whoever asked checks it
            changes.append(said)
            event = apply_change(event, said)
        return merge_changes(changes) if changes else None

    in_turn.close = close  # type: ignore[attr-defined]  # see `hook.closed`
    return in_turn


def apply_change(event: HookEvent, change: Modify) -> HookEvent:
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


def merge_changes(changes: list[Modify]) -> Modify:
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
