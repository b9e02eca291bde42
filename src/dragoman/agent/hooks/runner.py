"""Hooks and the runner that calls them one after another, each within its timeout.

The first decision other than Continue ends the sequence; hooks that only watch are called last.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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

OnError = Literal["block", "continue"]
HookResult: TypeAlias = Continue | Block | Ask | Modify | None
HookFunction: TypeAlias = Callable[[Any], HookResult | Awaitable[HookResult]]

HOOK_NAMES: tuple[HookName, ...] = get_args(HookName)
FAIL_CLOSED: tuple[HookName, ...] = ("user_prompt_submit", "pre_tool_use", "pre_model")
TOOL_HOOKS: tuple[HookName, ...] = ("pre_tool_use", "post_tool_use")
DEFAULT_TIMEOUT = 10.0


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A function that is called at one kind of event and may decide.

    `match` are patterns of operations (`files.*`, `*.delete_*`); without any, all match. `timeout` is in
    seconds. `on_error` is the decision when the hook fails or times out. A hook that `watches` is called
    last and its result is ignored. Raises ConfigError for invalid fields.
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
            raise ConfigError(
                f"there is no hook event {self.event!r}", hint=f"there are {', '.join(HOOK_NAMES)}"
            )
        if not callable(self.function):
            raise ConfigError(f"a hook must be a function, not {self.function!r:.80}")
        if self.timeout <= 0:
            raise ConfigError(f"the timeout of a hook must be above 0 seconds, not {self.timeout!r}")
        if self.on_error not in ("block", "continue"):
            raise ConfigError(f"on_error of a hook must be block or continue, not {self.on_error!r}")
        if self.match and self.event not in TOOL_HOOKS:
            raise ConfigError(f"a hook for {self.event} cannot match operations; leave `match` out")
        for pattern in self.match:
            parse_pattern(pattern)

    def applies_to(self, operation: str | None) -> bool:
        """Return whether the hook is called for this operation."""
        if not self.match or operation is None:
            return True
        id = operation.lower()
        return any(compile_glob(parse_pattern(each).text)(id) for each in self.match)


def function_name(function: HookFunction) -> str:
    """Return a function's name for notes and logs."""
    return getattr(function, "__name__", None) or type(function).__name__


async def close_function(function: HookFunction) -> None:
    """Call the async `close()` of a hook function, if it has one."""
    close: Any = getattr(function, "close", None)
    if inspect.iscoroutinefunction(close):
        await close()


log = logging.getLogger(__name__)

MAX_THREADS = 8
NO_DECISION = Continue()


class HookFailed(Exception):
    """A hook returned no usable decision. The message says why and may be shown."""


class HookAnswer(msgspec.Struct, frozen=True):
    """The decision, the name of the hook that made it, and notes for the record."""

    decision: Decision = NO_DECISION
    hook: str = ""
    notes: tuple[str, ...] = ()


class HookRunner:
    """Calls hooks. `hooks` may grow. Plain functions run in a few threads of its own."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = hooks
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()  # event loops in several threads share the threads of hooks

    def has_hooks(self, name: HookName, *, operation: str | None = None) -> bool:
        """Return whether any hook applies to this event."""
        return any(each.event == name and each.applies_to(operation) for each in self._hooks)

    async def decide(self, name: HookName, event: HookEvent) -> HookAnswer:
        """Return the first decision that is not Continue. Failed hooks are noted."""
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
        """Call the hooks that only watch. Failures are logged."""
        for hook in self._matching_hooks(name, event, watches=True):
            try:
                await self._run_hook(hook, event)
            except HookFailed as error:
                log.warning("hook %s, which watches %s, failed: %s", hook.name, name, error)

    def close(self) -> None:
        """Shut the threads down without waiting for busy ones.

        What is queued still runs: other agents, or runs in other event loops, may have called these hooks.
        """
        with self._lock:
            threads, self._threads = self._threads, None
            if threads is not None:
                threads.shutdown(wait=False)

    def _matching_hooks(self, name: HookName, event: HookEvent, *, watches: bool) -> list[Hook]:
        operation = getattr(event, "operation", None)
        hooks = [each for each in self._hooks if each.event == name and each.watches is watches]
        return [each for each in hooks if each.applies_to(operation)]

    async def _run_hook(self, hook: Hook, event: HookEvent) -> Decision:
        """Return the decision of one hook. HookFailed when it raises, times out or returns an invalid
        decision.

        The exception goes to the log only: it may contain secrets.
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
        except GeneratorExit:  # this coroutine is being closed
            raise
        except BaseException:  # hooks are foreign code, which may raise anything
            log.exception("hook %s failed", hook.name)
        raise HookFailed("it raised an exception")

    async def _run_with_timeout(self, hook: Hook, event: HookEvent) -> Any:
        limit = asyncio.timeout(hook.timeout)
        try:
            async with limit:
                result = await self._call_function(hook, event)
        except TimeoutError:
            if not limit.expired():
                raise
            result = None
        if limit.expired():  # also when it swallowed its cancellation and returned a value
            raise HookFailed(f"it took more than {hook.timeout:g} seconds")
        return result

    async def _call_function(self, hook: Hook, event: HookEvent) -> Any:
        function: Callable[[Any], Any] = hook.function
        if is_async(function):
            return await function(event)
        result = await asyncio.wrap_future(self._submit(function, event))
        return await result if inspect.isawaitable(result) else result

    def _submit(self, function: Callable[[Any], Any], event: HookEvent) -> Future[Any]:
        """Queue a plain function for a thread."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="hook")
            return self._threads.submit(copy_context().run, call_in_thread, function, event)


def check_decision(hook: Hook, result: Any) -> Decision:
    """Return the decision in a result. HookFailed for an invalid one; a watcher may return anything."""
    if result is None or hook.watches:
        return NO_DECISION
    problem = decision_error(hook.event, result)
    if problem:
        raise HookFailed(problem)
    decision: Decision = result
    return decision


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling the function returns an awaitable."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def call_in_thread(function: Callable[[Any], Any], event: HookEvent) -> Any:
    """Call the function; an exception that a future cannot carry becomes a RuntimeError."""
    try:
        return function(event)
    except (StopIteration, SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the hook raised {type(error).__name__}") from error


def decision_error(name: HookName, decision: object) -> str | None:
    """Return why a decision is invalid for this kind of event, or None."""
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
            return f"it returned a {type(decision).__name__} instead of a decision"


def change_error(name: HookName, change: Modify) -> str | None:
    """Return why a change is invalid for this kind of event, or None."""
    is_set = {"input": change.input is not UNSET, "output": change.output is not UNSET}
    is_set["request"] = change.request is not None
    field, kind = CHANGEABLE_FIELDS.get(name, (None, object))
    for name_set, present in is_set.items():
        if present and name_set != field:
            return f"it changed the {name_set}, which {name} does not have"
    value = getattr(change, field) if field and is_set[field] else None
    if value is not None and not isinstance(value, kind):
        return f"it changed the {field} to a {type(value).__name__}"
    if value is None and field == "input" and is_set["input"]:
        return "it changed the input to nothing"
    return None


CHANGEABLE_FIELDS: dict[HookName, tuple[str, type]] = {
    "user_prompt_submit": ("input", str),
    "pre_tool_use": ("input", dict),
    "post_tool_use": ("output", object),
    "pre_model": ("request", ModelRequest),
}


# Several hooks as one


def in_turn(*functions: HookFunction) -> Callable[[Any], Awaitable[HookResult]]:
    """Combine several hooks into one: each sees the changes of those before it; the first block or ask ends
    it.
    """

    async def close() -> None:
        for function in functions:
            await close_function(function)

    async def in_turn(event: HookEvent) -> HookResult:
        changes: list[Modify] = []
        for function in functions:
            result: Any = function(event) if is_async(function) else await asyncio.to_thread(function, event)
            result = await result if inspect.isawaitable(result) else result
            if result is None or isinstance(result, Continue):
                continue
            if not isinstance(result, Modify):
                return result  # type: ignore[no-any-return]  # the runner checks it
            changes.append(result)
            event = apply_change(event, result)
        return merge_changes(changes) if changes else None

    in_turn.close = close  # type: ignore[attr-defined]  # `close_function` looks for it
    return in_turn


def apply_change(event: HookEvent, change: Modify) -> HookEvent:
    """Return the event as the next hook sees it."""
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
    """Merge the changes: the last value of each field, and all reasons and metadata."""
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
