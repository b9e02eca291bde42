"""Decode the content blocks of an Anthropic answer to events.

Deltas that do not fit the block's type, or are of unknown types, are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from dragoman.events import (
    Data,
    Event,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolInputAvailable,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
)
from dragoman.wire.anthropic.chunk import AnthropicDelta
from dragoman.wire.anthropic.provider_metadata import bind_to_provider
from dragoman.wire.json_codec import compact_json
from dragoman.wire.text_block_writer import SurrogateJoiner
from dragoman.wire.tool_calls import (
    MAX_ARGUMENTS,
    UNKNOWN_TOOL_NAME,
    arguments_too_long_error,
    parse_arguments,
)

RAW_BLOCK_TYPE = "data-anthropic"
_CALLER_FIELDS = {"caller": "caller", "toolset_name": "toolsetName"}

CitationHandler: TypeAlias = Callable[[Mapping[str, Any]], list[Event]]


class TextBlockDecoder:
    """Decodes a text block with its citations; `on_citation` returns the source events of a citation."""

    def __init__(self, id: str, *, provider: str | None, on_citation: CitationHandler) -> None:
        self.pending: list[str] = []
        self._id = id
        self._provider = provider
        self._on_citation = on_citation
        self._surrogates = SurrogateJoiner()
        self._citations: list[Mapping[str, Any]] = []

    def start(self, block: Mapping[str, Any]) -> list[Event]:
        """Open the block with the text and citations in its start."""
        self.pending.append(_string(block.get("text")))
        events: list[Event] = [TextStart(self._id)]
        citations = block.get("citations")
        for citation in citations if isinstance(citations, list) else ():
            events += self._add_citation(citation)
        return events

    def add_delta(self, delta: AnthropicDelta) -> list[Event]:
        """Add a delta."""
        if delta.type == "text_delta":
            self.pending.append(delta.text or "")
        return self._add_citation(delta.citation) if delta.type == "citations_delta" else []

    def flush(self, *, last: bool = False) -> list[Event]:
        """Return the events for the pending text."""
        text = self._surrogates.join("".join(self.pending), last=last)
        self.pending.clear()
        return [TextDelta(self._id, text)] if text else []

    def end(self) -> list[Event]:
        """Close the block."""
        metadata = {"citations": self._citations} if self._citations else None
        return [
            *self.flush(last=True),
            TextEnd(self._id, bind_to_provider(metadata, self._provider) if metadata else None),
        ]

    def _add_citation(self, citation: Any) -> list[Event]:
        if not isinstance(citation, Mapping):
            return []
        self._citations.append(citation)
        return self._on_citation(citation)


class ThinkingBlockDecoder:
    """Decodes a thinking block and the signature that must be sent back with it."""

    def __init__(self, id: str, *, provider: str | None) -> None:
        self.pending: list[str] = []
        self._id = id
        self._provider = provider
        self._surrogates = SurrogateJoiner()
        self._opaque: dict[str, str] = {}

    def start(self, block: Mapping[str, Any]) -> list[Event]:
        """Open the block; redacted thinking has only opaque data."""
        self.pending.append(_string(block.get("thinking")))
        for name, key in (("signature", "signature"), ("data", "redactedData")):
            if _string(block.get(name)):
                self._opaque[key] = block[name]
        return [ReasoningStart(self._id)]

    def add_delta(self, delta: AnthropicDelta) -> list[Event]:
        """Add a delta; a signature replaces the one before."""
        if delta.type == "thinking_delta":
            self.pending.append(delta.thinking or "")
        elif delta.type == "signature_delta" and delta.signature:
            self._opaque["signature"] = delta.signature
        return []

    def flush(self, *, last: bool = False) -> list[Event]:
        """Return the events for the pending text."""
        text = self._surrogates.join("".join(self.pending), last=last)
        self.pending.clear()
        return [ReasoningDelta(self._id, text)] if text else []

    def end(self) -> list[Event]:
        """Close the block."""
        metadata = bind_to_provider(self._opaque, self._provider) if self._opaque else None
        return [*self.flush(last=True), ReasoningEnd(self._id, metadata)]


class ToolUseBlockDecoder:
    """Decodes a tool call; one that Anthropic runs (`client_executed` is false) keeps its whole block."""

    def __init__(
        self,
        id: str,
        *,
        client_executed: bool,
        provider: str | None,
        max_arguments: int = MAX_ARGUMENTS,
    ) -> None:
        self.pending: list[str] = []
        self.id = id
        self.length = 0  # characters of arguments
        self.is_invalid = False
        """Whether the arguments were invalid."""
        self._client_executed = client_executed
        self._provider = provider
        self._surrogates = SurrogateJoiner()
        self._sent: list[str] = []
        self._max_arguments = max_arguments
        self._block: dict[str, Any] = {}
        self._name = ""

    def start(self, block: Mapping[str, Any]) -> list[Event]:
        """Open the block. Its `input` is used only if no delta follows."""
        self._block = dict(block)
        self._name = _string(block.get("name")) or UNKNOWN_TOOL_NAME
        return [ToolInputStart(self.id, self._name, provider_executed=self._provider_executed)]

    def add_delta(self, delta: AnthropicDelta) -> list[Event]:
        """Add a delta. Raises ProviderError for more than `max_arguments` characters."""
        if delta.type == "input_json_delta":
            self._append(delta.partial_json or "")
        return []

    def _append(self, arguments: str) -> None:
        self.length += len(arguments)
        if self.length > self._max_arguments:
            self.pending.append(arguments[: self._max_arguments - self.length])
            raise arguments_too_long_error(self._name, self._max_arguments)
        self.pending.append(arguments)

    def flush(self, *, last: bool = False) -> list[Event]:
        """Return the events for the pending arguments."""
        text = self._surrogates.join("".join(self.pending), last=last)
        self.pending.clear()
        if not text:
            return []
        self._sent.append(text)
        return [ToolInputDelta(self.id, text)]

    def end(self) -> list[Event]:
        """Close the block, with the input or with the reason why the call cannot run.

        Raises what `add_delta` does.
        """
        events = self.flush(last=True)
        if not self._sent and isinstance(block_input := self._block.get("input"), Mapping) and block_input:
            self._append(compact_json(block_input))
            events = self.flush(last=True)
        arguments = "".join(self._sent)
        value, problem = parse_arguments(arguments)
        if problem is None and self._name == UNKNOWN_TOOL_NAME:
            problem = "the call has no tool name"
        self.is_invalid = problem is not None
        return [*events, self._final_event(value, problem)]

    @property
    def _provider_executed(self) -> bool | None:
        return None if self._client_executed else True

    def _final_event(self, value: Any, problem: str | None) -> Event:
        fields: dict[str, Any] = {
            key: self._block[name]
            for name, key in _CALLER_FIELDS.items()
            if self._block.get(name) is not None
        }
        if not self._client_executed:
            fields = {"block": {**self._block, "input": {} if problem else value}}
        metadata = bind_to_provider(fields, self._provider) if fields else None
        if problem is None:
            return ToolInputAvailable(
                self.id,
                self._name,
                value,
                provider_executed=self._provider_executed,
                provider_metadata=metadata,
            )
        arguments = "".join(self._sent)
        return ToolInputError(
            self.id,
            self._name,
            arguments,
            f"{problem}; nothing was run",
            provider_executed=self._provider_executed,
            provider_metadata=metadata,
        )


class RawBlockDecoder:
    """Keeps a block of an unknown type unchanged, so that it can be sent back."""

    def __init__(self) -> None:
        self.pending: list[str] = []
        self._block: dict[str, Any] = {}

    def start(self, block: Mapping[str, Any]) -> list[Event]:
        """Open the block."""
        self._block = dict(block)
        return []

    def add_delta(self, delta: AnthropicDelta) -> list[Event]:
        """Add a delta: only those of a compaction are known."""
        if delta.type == "compaction_delta":
            fields = {"content": delta.content, "encrypted_content": delta.encrypted_content}
            self._block |= {name: value for name, value in fields.items() if value is not None}
        return []

    def flush(self, *, last: bool = False) -> list[Event]:
        """Return nothing: the block is sent as one event."""
        return []

    def end(self) -> list[Event]:
        """Close the block."""
        return [Data(RAW_BLOCK_TYPE, self._block)]


BlockDecoder: TypeAlias = TextBlockDecoder | ThinkingBlockDecoder | ToolUseBlockDecoder | RawBlockDecoder


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
