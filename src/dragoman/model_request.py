"""A request to a model, and the tools that it offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from dragoman.large_json import VALUE
from dragoman.messages import Message, ProviderMetadata, messages_size


class NamedToolChoice(msgspec.Struct, frozen=True):
    """A tool choice that forces the model to call one named tool."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedToolChoice


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool offered to a model: a wire-safe name, a description, the JSON Schema of its input.

    `strict` asks the provider to enforce the schema. `metadata` is keyed by provider family, like that of
    parts: `{"anthropic": {"cacheControl": {"type": "ephemeral"}}}`.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    strict: bool | None = None
    metadata: ProviderMetadata | None = None


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a model. `model` is the provider's own name for it, without the prefix `provider/`.

    `messages` is the history as UI messages; after the first step of a run the unfinished assistant message
    is the last of them. `options` use the names of OpenAI's chat.completions (temperature, max_tokens, stop,
    response_format, reasoning_effort, parallel_tool_calls, ...), which each provider translates, or a
    provider's own names (thinking, top_k, num_ctx, keep_alive, ...).
    """

    model: str
    messages: Sequence[Message]
    instructions: str | None = None
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice | None = None
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)


def request_size(request: ModelRequest) -> int:
    """Return about how many bytes a request takes; of a large one, some number above `offload.SMALL`."""
    size = len(request.instructions or "") + sum(VALUE + len(tool.description) for tool in request.tools)
    return size + messages_size(request.messages)
