"""Hooks around a model's call: they may stop or change it before it runs, and change its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec
from msgspec.structs import replace

from dragoman.operations.outcome import CallFailure, CallStatus


class HookedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as hooks see it. `input` is a copy: changing it has no effect.

    `call_id` is None while a batch is checked before it runs.
    """

    operation: str
    input: Mapping[str, Any]
    effect: Literal["read", "idempotent", "once"]
    owner: str
    key_id: str | None = None
    call_id: str | None = None
    tool_call_id: str | None = None
    session_id: str | None = None
    run_id: str | None = None
    agent: str | None = None
    step: int | None = None


class CallEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a call: `result` if it is `done`, else `failure`; `duration` in seconds."""

    status: CallStatus
    result: Any = None
    failure: CallFailure | None = None
    duration: float = 0.0


class HookDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of hooks before a call runs.

    `block` is the reason why it must not run, `ask` the reason why it needs approval; `input` replaces its
    input. `notes` are stored with the call and shown to the model.
    """

    input: Mapping[str, Any] | None = None
    block: str | None = None
    ask: str | None = None
    notes: tuple[str, ...] = ()


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """The result or failure that the model gets instead, and notes."""

    result: Any = None
    failure: CallFailure | None = None
    notes: tuple[str, ...] = ()


class CallHooks(Protocol):
    """Hooks around the calls of models. Neither method raises if a hook fails."""

    async def before(self, call: HookedCall) -> HookDecision:
        """Decide whether the call may run, and with which input."""
        ...

    async def after(self, call: HookedCall, end: CallEnd) -> Revision | None:
        """Return what the model gets instead of this end; None to leave it unchanged."""
        ...


class StackedHooks:
    """Hooks of a caller around the hooks of an inner caller; both apply."""

    def __init__(self, outer: CallHooks, inner: CallHooks) -> None:
        self._outer = outer
        self._inner = inner

    async def before(self, call: HookedCall) -> HookDecision:
        first = await self._outer.before(call)
        if first.block is not None:
            return first
        inner_call = call if first.input is None else replace(call, input=first.input)
        second = await self._inner.before(inner_call)
        return HookDecision(
            input=first.input if second.input is None else second.input,
            block=second.block,
            ask=first.ask or second.ask,
            notes=first.notes + second.notes,
        )

    async def after(self, call: HookedCall, end: CallEnd) -> Revision | None:
        first = await self._inner.after(call, end)
        if first is not None:
            end = replace(end, result=first.result, failure=first.failure)
        second = await self._outer.after(call, end)
        if first is None or second is None:
            return first or second
        return replace(second, notes=first.notes + second.notes)


def stack_hooks(outer: CallHooks | None, inner: CallHooks | None) -> CallHooks | None:
    """Return both combined; only one of them if the other is None or the same."""
    if outer is None or inner is None or outer is inner:
        return outer or inner
    return StackedHooks(outer, inner)
