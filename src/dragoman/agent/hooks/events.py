"""Hook events and the decisions that a hook may return."""

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
    """The fields of every event: owner, agent, session and run. `step` counts the run's model calls."""

    owner: str = "local"
    key_id: str | None = None
    agent: str | None = None
    session_id: str | None = None
    run_id: str | None = None
    step: int | None = None


class UserPromptSubmit(BaseHookEvent, frozen=True, kw_only=True, tag="user_prompt_submit"):
    """A user sent a message; `text` is all its text. Nothing of it has been stored or sent yet."""

    text: str
    message: Message | None = None


class PreToolUse(BaseHookEvent, frozen=True, kw_only=True, tag="pre_tool_use"):
    """A model asks to call an operation. `tool` is the operation's tool name, `input` its arguments."""

    tool: str
    operation: str
    input: Mapping[str, Any]
    effect: Effect = "once"
    tool_call_id: str | None = None
    call_id: str | None = None


class PostToolUse(BaseHookEvent, frozen=True, kw_only=True, tag="post_tool_use"):
    """A call ended: `output` if its status is `done`, else `error`. `duration` is in seconds."""

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
    """A model request is about to be sent."""

    request: ModelRequest


class PostModel(BaseHookEvent, frozen=True, kw_only=True, tag="post_model"):
    """A model call ended, or failed with `error`. `message` is the whole answer of the run so far."""

    model: str
    text: str = ""
    message: Message | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    duration: float = 0.0
    error: str | None = None


class RunEnd(BaseHookEvent, frozen=True, kw_only=True, tag="run_end"):
    """A run ended. `cost` is in US dollars if known, `duration` in seconds.

    For a failed run, `error` says why, `category` is that of a result's `error`, `transient` says whether a
    retry may help, `retry_delay` the seconds to wait that the provider asked for, and `hint` what to do.
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


# Decisions


class Continue(msgspec.Struct, frozen=True):
    """Leave everything as it is and call the next hook. The same as None."""


class Block(msgspec.Struct, frozen=True):
    """Refuse. The reason is shown to the model, or to the user.

    Before a call it is denied; after it, the result is withheld. Before a model request, or for a user
    message, the run ends.
    """

    reason: str


class Ask(msgspec.Struct, frozen=True):
    """Require approval of the call, for this reason. Only for `pre_tool_use`."""

    reason: str


class Modify(msgspec.Struct, frozen=True):
    """Continue with a change.

    `input`: the new input of a call, or the new text of the user. `output`: shown to the model instead of a
    result, or as the message of a failure. `request`: sent instead of the model request. `metadata` is
    stored in the notes of the call.
    """

    input: Any = UNSET
    reason: str | None = None
    output: Any = UNSET
    request: ModelRequest | None = None
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)


Decision: TypeAlias = Continue | Block | Ask | Modify
