"""Hooks at a call: what is asked before a model's call runs, and what may become of its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from dragoman.operations.outcome import CallFailure, Status


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

    status: Status
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
