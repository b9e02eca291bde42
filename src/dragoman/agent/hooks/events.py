"""The events of hooks: what each is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from dragoman.events import Usage
from dragoman.messages import Message
from dragoman.model_request import ModelRequest
from dragoman.operations.operation import Effect
from dragoman.operations.outcome import CallStatus

HookName = Literal[
    "user_prompt_submit", "pre_tool_use", "post_tool_use", "pre_model", "post_model", "run_end"
]


class BaseHookEvent(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="event", rename="camel", omit_defaults=True
):
    """What all of them say: for whom it is, and what it belongs to. `step` counts a run's model calls."""

    owner: str = "local"
    key_id: str | None = None
    agent: str | None = None
    session_id: str | None = None
    run_id: str | None = None
    step: int | None = None


class UserPromptSubmit(BaseHookEvent, frozen=True, kw_only=True, tag="user_prompt_submit"):
    """A user said something; `text` is all the text of `message`. Nothing of it has gone anywhere yet."""

    text: str
    message: Message | None = None


class PreToolUse(BaseHookEvent, frozen=True, kw_only=True, tag="pre_tool_use"):
    """A model wants to call an operation. `tool` is its id as models are shown it, `input` what it gets."""

    tool: str
    operation: str
    input: Mapping[str, Any]
    effect: Effect = "once"
    tool_call_id: str | None = None
    call_id: str | None = None


class PostToolUse(BaseHookEvent, frozen=True, kw_only=True, tag="post_tool_use"):
    """A call has ended: `output` when its status is `done`, else `error`. `duration` is in seconds."""

    tool: str
    operation: str
    input: Mapping[str, Any]
    status: CallStatus = "done"
    output: Any = None
    error: str | None = None
    duration: float = 0.0
    effect: Effect = "once"
    tool_call_id: str | None = None
    call_id: str | None = None


class PreModel(BaseHookEvent, frozen=True, kw_only=True, tag="pre_model"):
    """A model is about to be asked."""

    request: ModelRequest


class PostModel(BaseHookEvent, frozen=True, kw_only=True, tag="post_model"):
    """A model has answered, or failed with `error`. `message` is the whole answer of the run so far."""

    model: str
    text: str = ""
    message: Message | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    duration: float = 0.0
    error: str | None = None


class RunEnd(BaseHookEvent, frozen=True, kw_only=True, tag="run_end"):
    """A run has ended; `reason` is how, `cost` in US dollars where it is known, `duration` in seconds.

    Of a run that failed, `error` says why, `category` what kind of failure that was (as in a result's
    `error`), `transient` whether the same again can help, `retry_delay` in how many seconds, as the provider
    asked, and `hint` what to do.
    """

    reason: str
    text: str = ""
    steps: int = 0
    usage: Usage | None = None
    cost: float | None = None
    duration: float = 0.0
    error: str | None = None
    category: str | None = None
    transient: bool | None = None
    retry_delay: float | None = None
    hint: str | None = None


HookEvent: TypeAlias = UserPromptSubmit | PreToolUse | PostToolUse | PreModel | PostModel | RunEnd


# ---- Decisions: what a hook may say.


class Continue(msgspec.Struct, frozen=True):
    """Nothing to say: the next hook is asked. The same as None."""


class Block(msgspec.Struct, frozen=True):
    """It must not be; the model, or whoever asked, is told the reason.

    Before a call: it is denied. After it: the result is withheld. Before the model is asked, or of what a
    user says: the run ends there.
    """

    reason: str


class Ask(msgspec.Struct, frozen=True):
    """Somebody has to approve the call first, for this reason. Only for `pre_tool_use`."""

    reason: str


class Modify(msgspec.Struct, frozen=True):
    """It goes on, changed.

    `input`: a call's new input, or a user's new text. `output`: what the model is told instead of a call's
    result, or as the message of its failure. `request`: what the model is asked instead. `metadata` is kept
    in the call's notes.
    """

    input: Any = UNSET
    reason: str | None = None
    output: Any = UNSET
    request: ModelRequest | None = None
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)


Decision: TypeAlias = Continue | Block | Ask | Modify
