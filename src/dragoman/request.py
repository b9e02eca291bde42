"""What a model is asked: the request, and the tools that it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from dragoman.messages import Message

ToolChoice = Literal["auto", "none", "required"]


class Tool(msgspec.Struct, frozen=True):
    """A tool as a model is shown it: a wire-safe name, a description, a JSON Schema of its input."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call. `model` is the provider's own name for it, without the `provider/` in front.

    `messages` is the history as UI messages; past the first step of a run the assistant message under way
    is the last of them. `options` go to the provider as they are (temperature, max_tokens, ...).
    """

    model: str
    messages: Sequence[Message]
    instructions: str | None = None
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice | None = None
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
