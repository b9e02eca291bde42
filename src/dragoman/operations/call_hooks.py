"""Hooks at a call: what is asked before a model's call runs, and what may become of its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec
from msgspec.structs import replace

from dragoman.operations.outcome import CallFailure, CallStatus


class HookedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as hooks see it. `input` is a copy: what is changed in it changes nothing.

    `call_id` is None where the call is only looked at before it is made (in a batch).
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
    """How a call ended: `result` when it is `done`, else the `failure`; `duration` in seconds."""

    status: CallStatus
    result: Any = None
    failure: CallFailure | None = None
    duration: float = 0.0


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """What hooks say of a call before it runs.

    `block` is why it must not run, `ask` why somebody has to approve it first, `input` what it gets
    instead of its own. `notes` are kept with the call, and told to the model.
    """

    input: Mapping[str, Any] | None = None
    block: str | None = None
    ask: str | None = None
    notes: tuple[str, ...] = ()


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """What a call's end becomes: the result and the failure that the model is told, and notes."""

    result: Any = None
    failure: CallFailure | None = None
    notes: tuple[str, ...] = ()


class CallHooks(Protocol):
    """What is asked about the calls that models make; neither method raises for a hook that fails."""

    async def before(self, call: HookedCall) -> Ruling:
        """Whether the call may run, and with which input."""
        ...

    async def after(self, call: HookedCall, end: CallEnd) -> Revision | None:
        """What the model is told instead; None when it is told what came out."""
        ...


class StackedHooks:
    """The hooks of whoever has the call made, and within them those of whoever makes it: both have a say."""

    def __init__(self, outer: CallHooks, inner: CallHooks) -> None:
        self._outer = outer
        self._inner = inner

    async def before(self, call: HookedCall) -> Ruling:
        """See `CallHooks.before`."""
        first = await self._outer.before(call)
        if first.block is not None:
            return first
        given = call if first.input is None else replace(call, input=first.input)
        second = await self._inner.before(given)
        return Ruling(
            input=first.input if second.input is None else second.input,
            block=second.block,
            ask=first.ask or second.ask,
            notes=first.notes + second.notes,
        )

    async def after(self, call: HookedCall, end: CallEnd) -> Revision | None:
        """See `CallHooks.after`."""
        first = await self._inner.after(call, end)
        if first is not None:
            end = replace(end, result=first.result, failure=first.failure)
        second = await self._outer.after(call, end)
        if first is None or second is None:
            return first or second
        return replace(second, notes=first.notes + second.notes)


def stack_hooks(outer: CallHooks | None, inner: CallHooks | None) -> CallHooks | None:
    """Both, as far as they are there and not the same."""
    if outer is None or inner is None or outer is inner:
        return outer or inner
    return StackedHooks(outer, inner)
