"""Blocks of an Anthropic answer: each opens, grows and ends, as events.

What grows a block that does not fit its kind is passed over, as are deltas of kinds unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

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
from dragoman.wire.anthropic.capabilities import bind_to_provider
from dragoman.wire.anthropic.chunk import AnthropicDelta
from dragoman.wire.text_blocks import SurrogateJoiner
from dragoman.wire.tool_calls import UNKNOWN_TOOL_NAME

RAW_BLOCK_TYPE = "data-anthropic"
_CALLER_FIELDS = {"caller": "caller", "toolset_name": "toolsetName"}

CitationHandler: TypeAlias = Callable[[Mapping[str, Any]], list[Event]]


class TextBlockDecoder:
    """A text, and what it quotes; `tell` says a citation's source."""

    def __init__(self, id: str, *, provider: str | None, on_citation: CitationHandler) -> None:
        self.pending: list[str] = []
        self._id = id
        self._provider = provider
        self._on_citation = on_citation
        self._surrogates = SurrogateJoiner()
        self._citations: list[Mapping[str, Any]] = []

    def start(self, block: Mapping[str, Any]) -> list[Event]:
        """Open, with what the start holds already."""
        self.pending.append(_string(block.get("text")))
        events: list[Event] = [TextStart(self._id)]
        citations = block.get("citations")
        for citation in citations if isinstance(citations, list) else ():
            events += self._add_citation(citation)
        return events

    def add_delta(self, delta: AnthropicDelta) -> list[Event]:
        """Take a delta."""
        if delta.type == "text_delta":
            self.pending.append(delta.text or "")
        return self._add_citation(delta.citation) if delta.type == "citations_delta" else []

    def flush(self, *, last: bool = False) -> list[Event]:
        """What it grew by since the last time."""
        text = self._surrogates.join("".join(self.pending), last=last)
        self.pending.clear()
        return [TextDelta(self._id, text)] if text else []

    def end(self) -> list[Event]:
        """Close."""
        cited = {"citations": self._citations} if self._citations else None
        return [
            *self.flush(last=True),
            TextEnd(self._id, bind_to_provider(cited, self._provider) if cited else None),
        ]

    def _add_citation(self, citation: Any) -> list[Event]:
        if not isinstance(citation, Mapping):
            return []
        self._citations.append(citation)
        return self._on_citation(citation)


class ThinkingBlockDecoder:
    """What the model thought, and the signature that it must go back with."""

    def __init__(self, id: str, *, provider: str | None) -> None:
        self.pending: list[str] = []
        self._id = id
        self._provider = provider
        self._surrogates = SurrogateJoiner()
        self._opaque: dict[str, str] = {}

    def start(self, block: Mapping[str, Any]) -> list[Event]:
        """Open; redacted thinking is nothing but its secret."""
        self.pending.append(_string(block.get("thinking")))
        for name, kept in (("signature", "signature"), ("data", "redactedData")):
            if _string(block.get(name)):
                self._opaque[kept] = block[name]
        return [ReasoningStart(self._id)]

    def add_delta(self, delta: AnthropicDelta) -> list[Event]:
        """Take a delta; a signature takes the place of the one before."""
        if delta.type == "thinking_delta":
            self.pending.append(delta.thinking or "")
        elif delta.type == "signature_delta" and delta.signature:
            self._opaque["signature"] = delta.signature
        return []

    def flush(self, *, last: bool = False) -> list[Event]:
        """What it grew by since the last time."""
        text = self._surrogates.join("".join(self.pending), last=last)
        self.pending.clear()
        return [ReasoningDelta(self._id, text)] if text else []

    def end(self) -> list[Event]:
        """Close."""
        metadata = bind_to_provider(self._opaque, self._provider) if self._opaque else None
        return [*self.flush(last=True), ReasoningEnd(self._id, metadata)]


class ToolUseBlockDecoder:
    """A tool call; one that Anthropic runs itself (`ours` is false) keeps its whole block."""

    def __init__(self, id: str, *, client_executed: bool, provider: str | None) -> None:
        self.pending: list[str] = []
        self.id = id
        self.is_invalid = False
        """Whether it ended with arguments that nobody can read."""
        self._client_executed = client_executed
        self._provider = provider
        self._surrogates = SurrogateJoiner()
        self._sent: list[str] = []
        self._block: dict[str, Any] = {}
        self._name = ""

    def start(self, block: Mapping[str, Any]) -> list[Event]:
        """Open. A filled input counts only when no delta comes."""
        self._block = dict(block)
        self._name = _string(block.get("name")) or UNKNOWN_TOOL_NAME
        return [ToolInputStart(self.id, self._name, provider_executed=self._provider_executed)]

    def add_delta(self, delta: AnthropicDelta) -> list[Event]:
        """Take a delta."""
        if delta.type == "input_json_delta":
            self.pending.append(delta.partial_json or "")
        return []

    def flush(self, *, last: bool = False) -> list[Event]:
        """What it grew by since the last time."""
        text = self._surrogates.join("".join(self.pending), last=last)
        self.pending.clear()
        if not text:
            return []
        self._sent.append(text)
        return [ToolInputDelta(self.id, text)]

    def end(self) -> list[Event]:
        """Close, with the input, or with the reason why the call cannot be run."""
        events = self.flush(last=True)
        if not self._sent and isinstance(given := self._block.get("input"), Mapping) and given:
            self.pending.append(msgspec.json.encode(given).decode())
            events = self.flush(last=True)
        written = "".join(self._sent)
        problem = "" if self._name != UNKNOWN_TOOL_NAME else "the call has no tool name"
        value: Any = {}
        try:
            value = msgspec.json.decode(written) if written.strip() not in ("", "null") else {}
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            problem = f"the arguments are not valid JSON: {error}"
        if not problem and not isinstance(value, dict):
            problem = f"the arguments must be a JSON object, not {written.strip()!r:.80}"
        self.is_invalid = bool(problem)
        return [*events, self._final_event(value, problem or None)]

    @property
    def _provider_executed(self) -> bool | None:
        return None if self._client_executed else True

    def _final_event(self, value: Any, problem: str | None) -> Event:
        kept: dict[str, Any] = {
            word: self._block[name]
            for name, word in _CALLER_FIELDS.items()
            if self._block.get(name) is not None
        }
        if not self._client_executed:
            kept = {"block": {**self._block, "input": {} if problem else value}}
        metadata = bind_to_provider(kept, self._provider) if kept else None
        if problem is None:
            return ToolInputAvailable(
                self.id,
                self._name,
                value,
                provider_executed=self._provider_executed,
                provider_metadata=metadata,
            )
        written = "".join(self._sent)
        return ToolInputError(
            self.id,
            self._name,
            written,
            f"{problem}; nothing was run",
            provider_executed=self._provider_executed,
            provider_metadata=metadata,
        )


class RawBlockDecoder:
    """A block of a kind that has no word of ours: kept whole, so that it can go back."""

    def __init__(self) -> None:
        self.pending: list[str] = []
        self._block: dict[str, Any] = {}

    def start(self, block: Mapping[str, Any]) -> list[Event]:
        """Open."""
        self._block = dict(block)
        return []

    def add_delta(self, delta: AnthropicDelta) -> list[Event]:
        """Take a delta: only those of a compaction are known."""
        if delta.type == "compaction_delta":
            said = {"content": delta.content, "encrypted_content": delta.encrypted_content}
            self._block |= {name: value for name, value in said.items() if value is not None}
        return []

    def flush(self, *, last: bool = False) -> list[Event]:
        """Nothing: it leaves in one piece."""
        return []

    def end(self) -> list[Event]:
        """Close."""
        return [Data(RAW_BLOCK_TYPE, self._block)]


BlockDecoder: TypeAlias = TextBlockDecoder | ThinkingBlockDecoder | ToolUseBlockDecoder | RawBlockDecoder


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
