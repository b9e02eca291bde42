"""A hook: a function that is told of an event and may decide; what it is for, and how long it may take."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from dragoman.agent.decisions import Ask, Block, Continue, Modify
from dragoman.agent.hook_events import HookName
from dragoman.errors import ConfigError
from dragoman.operations.pattern import matching, read_pattern

OnError = Literal["block", "continue"]
Said: TypeAlias = Continue | Block | Ask | Modify | None
HookFunction: TypeAlias = Callable[[Any], Said | Awaitable[Said]]

NAMES: tuple[HookName, ...] = get_args(HookName)
CLOSED: tuple[HookName, ...] = ("user_prompt_submit", "pre_tool_use", "pre_model")
OF_TOOLS: tuple[HookName, ...] = ("pre_tool_use", "post_tool_use")
SECONDS = 10.0


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
    timeout: float = SECONDS
    on_error: OnError = "block"
    watches: bool = False

    def __post_init__(self) -> None:
        if self.event not in NAMES:
            raise ConfigError(f"there is no hook {self.event!r}", hint=f"there are {', '.join(NAMES)}")
        if not callable(self.function):
            raise ConfigError(f"a hook is a function, got {self.function!r:.80}")
        if self.timeout <= 0:
            raise ConfigError(f"the timeout of a hook is above 0 seconds, got {self.timeout!r}")
        if self.on_error not in ("block", "continue"):
            raise ConfigError(f"on_error of a hook is block or continue, got {self.on_error!r}")
        if self.match and self.event not in OF_TOOLS:
            raise ConfigError(f"a hook for {self.event} has no operation to match")
        for pattern in self.match:
            read_pattern(pattern)

    def is_for(self, operation: str | None) -> bool:
        """Whether it is asked about this operation."""
        if not self.match or operation is None:
            return True
        id = operation.lower()
        return any(matching(read_pattern(each).text)(id) for each in self.match)


def name_of(function: HookFunction) -> str:
    """What a function is called in notes and logs."""
    return getattr(function, "__name__", None) or type(function).__name__


async def closed(function: HookFunction) -> None:
    """Let go of what a hook holds, where it has an async `close()`."""
    close: Any = getattr(function, "close", None)
    if inspect.iscoroutinefunction(close):
        await close()
