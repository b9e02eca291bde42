"""A request to a model, and the tools that it offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from dragoman.messages import Message, ProviderMetadata


class NamedToolChoice(msgspec.Struct, frozen=True):
    """The choice of one tool: the model has to call it."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedToolChoice


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool as a model is shown it: a wire-safe name, a description, a JSON Schema of its input.

    `strict`: the provider is to hold the model to the schema. `metadata` is by provider family, like that
    of parts: `{"anthropic": {"cacheControl": {"type": "ephemeral"}}}`.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    strict: bool | None = None
    metadata: ProviderMetadata | None = None


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call. `model` is the provider's own name for it, without the `provider/` in front.

    `messages` is the history as UI messages; past the first step of a run the assistant message under way
    is the last of them. `options` go along under the names of OpenAI's chat.completions (temperature,
    max_tokens, stop, response_format, reasoning_effort, parallel_tool_calls, ...), which each provider
    spells in its own way, or under a provider's own names (thinking, top_k, num_ctx, keep_alive, ...).
    """

    model: str
    messages: Sequence[Message]
    instructions: str | None = None
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice | None = None
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
