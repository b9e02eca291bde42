"""Hooks: functions called before and after what an agent does. Source: seed 004, §1.6 and §4.2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypedDict, TypeVar, Unpack, overload

from dragoman.agent.hooks.events import HookName
from dragoman.agent.hooks.invocation import ToolHooks, TurnHooks
from dragoman.agent.hooks.runner import (
    DEFAULT_TIMEOUT,
    FAIL_CLOSED,
    Hook,
    HookFunction,
    HookRunner,
    OnError,
    close_function,
    function_name,
)
from dragoman.operations.call_hooks import CallHooks

F = TypeVar("F", bound=HookFunction)


class HookDetails(TypedDict, total=False):
    """The optional fields of a hook; see `Hook`."""

    name: str
    match: str | tuple[str, ...] | list[str]
    timeout: float
    on_error: OnError | None
    watches: bool


class Hooks:
    """Hooks in the order in which they are called; `+` appends others.

    `loop` and `calls` are what the loop and the calls use. Hooks that are added later count from then on.
    """

    def __init__(self, *hooks: Hook) -> None:
        self._hooks = list(hooks)
        self._runner = HookRunner(self._hooks)
        self.loop = TurnHooks(self._runner)
        self.calls: CallHooks = ToolHooks(self._runner)

    def __iter__(self) -> Iterator[Hook]:
        return iter(self._hooks)

    def __len__(self) -> int:
        return len(self._hooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def __add__(self, other: Hooks) -> Hooks:
        return Hooks(*self, *other)

    def on(self, event: HookName, function: HookFunction, **details: Unpack[HookDetails]) -> Hooks:
        """Append a function as a hook and return the hooks. Raises ConfigError."""
        match = details.get("match", ())
        on_error = details.get("on_error") or ("block" if event in FAIL_CLOSED else "continue")
        self._hooks.append(
            Hook(
                event=event,
                function=function,
                name=details.get("name") or function_name(function),
                match=(match,) if isinstance(match, str) else tuple(match),
                timeout=details.get("timeout", DEFAULT_TIMEOUT),
                on_error=on_error,
                watches=details.get("watches", False),
            )
        )
        return self

    @overload
    def user_prompt_submit(self, function: F) -> F: ...
    @overload
    def user_prompt_submit(self, **details: Unpack[HookDetails]) -> Callable[[F], F]: ...
    def user_prompt_submit(self, function: Any = None, **details: Unpack[HookDetails]) -> Any:
        """Decorate a function to be called with a user message before it is stored or sent."""
        return self._decorate("user_prompt_submit", function, details=details)

    @overload
    def pre_tool_use(self, function: F) -> F: ...
    @overload
    def pre_tool_use(self, **details: Unpack[HookDetails]) -> Callable[[F], F]: ...
    def pre_tool_use(self, function: Any = None, **details: Unpack[HookDetails]) -> Any:
        """Decorate a function to be called before a tool call of a model runs."""
        return self._decorate("pre_tool_use", function, details=details)

    @overload
    def post_tool_use(self, function: F) -> F: ...
    @overload
    def post_tool_use(self, **details: Unpack[HookDetails]) -> Callable[[F], F]: ...
    def post_tool_use(self, function: Any = None, **details: Unpack[HookDetails]) -> Any:
        """Decorate a function to be called with the result of a tool call before the model sees it."""
        return self._decorate("post_tool_use", function, details=details)

    @overload
    def pre_model(self, function: F) -> F: ...
    @overload
    def pre_model(self, **details: Unpack[HookDetails]) -> Callable[[F], F]: ...
    def pre_model(self, function: Any = None, **details: Unpack[HookDetails]) -> Any:
        """Decorate a function to be called before a model request is sent."""
        return self._decorate("pre_model", function, details=details)

    @overload
    def post_model(self, function: F) -> F: ...
    @overload
    def post_model(self, **details: Unpack[HookDetails]) -> Callable[[F], F]: ...
    def post_model(self, function: Any = None, **details: Unpack[HookDetails]) -> Any:
        """Decorate a function to be called after each model call."""
        return self._decorate("post_model", function, details=details)

    @overload
    def run_end(self, function: F) -> F: ...
    @overload
    def run_end(self, **details: Unpack[HookDetails]) -> Callable[[F], F]: ...
    def run_end(self, function: Any = None, **details: Unpack[HookDetails]) -> Any:
        """Decorate a function to be called when a run ends."""
        return self._decorate("run_end", function, details=details)

    def close(self) -> None:
        """Shut down the threads of plain functions. Hooks called later get new ones."""
        self._runner.close()

    async def aclose(self) -> None:
        """Close the threads and whatever the hooks have to close themselves, such as connections."""
        self.close()
        for function in {id(hook.function): hook.function for hook in self._hooks}.values():
            await close_function(function)

    def _decorate(self, event: HookName, function: Any, *, details: HookDetails) -> Any:
        def add(function: Any) -> Any:
            self.on(event, function, **details)
            return function

        return add if function is None else add(function)
