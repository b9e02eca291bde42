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
from dragoman.wire.anthropic.frame import Delta
from dragoman.wire.anthropic.models import sealed
from dragoman.wire.blocks import Seam
from dragoman.wire.toolcalls import UNNAMED

RAW = "data-anthropic"
_CALLER = {"caller": "caller", "toolset_name": "toolsetName"}

Tell: TypeAlias = Callable[[Mapping[str, Any]], list[Event]]


class Text:
    """A text, and what it quotes; `tell` says a citation's source."""

    def __init__(self, id: str, *, provider: str | None, tell: Tell) -> None:
        self.pieces: list[str] = []
        self._id = id
        self._provider = provider
        self._tell = tell
        self._seam = Seam()
        self._citations: list[Mapping[str, Any]] = []

    def begin(self, block: Mapping[str, Any]) -> list[Event]:
        """Open, with what the start holds already."""
        self.pieces.append(_string(block.get("text")))
        events: list[Event] = [TextStart(self._id)]
        citations = block.get("citations")
        for citation in citations if isinstance(citations, list) else ():
            events += self._cite(citation)
        return events

    def grow(self, delta: Delta) -> list[Event]:
        """Take a delta."""
        if delta.type == "text_delta":
            self.pieces.append(delta.text or "")
        return self._cite(delta.citation) if delta.type == "citations_delta" else []

    def flush(self, *, last: bool = False) -> list[Event]:
        """What it grew by since the last time."""
        text = self._seam.join("".join(self.pieces), last=last)
        self.pieces.clear()
        return [TextDelta(self._id, text)] if text else []

    def end(self) -> list[Event]:
        """Close."""
        cited = {"citations": self._citations} if self._citations else None
        return [
            *self.flush(last=True),
            TextEnd(self._id, sealed(cited, self._provider) if cited else None),
        ]

    def _cite(self, citation: Any) -> list[Event]:
        if not isinstance(citation, Mapping):
            return []
        self._citations.append(citation)
        return self._tell(citation)


class Thinking:
    """What the model thought, and the signature that it must go back with."""

    def __init__(self, id: str, *, provider: str | None) -> None:
        self.pieces: list[str] = []
        self._id = id
        self._provider = provider
        self._seam = Seam()
        self._secret: dict[str, str] = {}

    def begin(self, block: Mapping[str, Any]) -> list[Event]:
        """Open; redacted thinking is nothing but its secret."""
        self.pieces.append(_string(block.get("thinking")))
        for name, kept in (("signature", "signature"), ("data", "redactedData")):
            if _string(block.get(name)):
                self._secret[kept] = block[name]
        return [ReasoningStart(self._id)]

    def grow(self, delta: Delta) -> list[Event]:
        """Take a delta; a signature takes the place of the one before."""
        if delta.type == "thinking_delta":
            self.pieces.append(delta.thinking or "")
        elif delta.type == "signature_delta" and delta.signature:
            self._secret["signature"] = delta.signature
        return []

    def flush(self, *, last: bool = False) -> list[Event]:
        """What it grew by since the last time."""
        text = self._seam.join("".join(self.pieces), last=last)
        self.pieces.clear()
        return [ReasoningDelta(self._id, text)] if text else []

    def end(self) -> list[Event]:
        """Close."""
        metadata = sealed(self._secret, self._provider) if self._secret else None
        return [*self.flush(last=True), ReasoningEnd(self._id, metadata)]


class Call:
    """A tool call; one that Anthropic runs itself (`ours` is false) keeps its whole block."""

    def __init__(self, id: str, *, ours: bool, provider: str | None) -> None:
        self.pieces: list[str] = []
        self.id = id
        self.broken = False
        """Whether it ended with arguments that nobody can read."""
        self._ours = ours
        self._provider = provider
        self._seam = Seam()
        self._sent: list[str] = []
        self._block: dict[str, Any] = {}
        self._name = ""

    def begin(self, block: Mapping[str, Any]) -> list[Event]:
        """Open. A filled input counts only when no delta comes."""
        self._block = dict(block)
        self._name = _string(block.get("name")) or UNNAMED
        return [ToolInputStart(self.id, self._name, provider_executed=self._executed)]

    def grow(self, delta: Delta) -> list[Event]:
        """Take a delta."""
        if delta.type == "input_json_delta":
            self.pieces.append(delta.partial_json or "")
        return []

    def flush(self, *, last: bool = False) -> list[Event]:
        """What it grew by since the last time."""
        text = self._seam.join("".join(self.pieces), last=last)
        self.pieces.clear()
        if not text:
            return []
        self._sent.append(text)
        return [ToolInputDelta(self.id, text)]

    def end(self) -> list[Event]:
        """Close, with the input, or with the reason why the call cannot be run."""
        events = self.flush(last=True)
        if not self._sent and isinstance(given := self._block.get("input"), Mapping) and given:
            self.pieces.append(msgspec.json.encode(given).decode())
            events = self.flush(last=True)
        written = "".join(self._sent)
        problem = "" if self._name != UNNAMED else "the call has no tool name"
        value: Any = {}
        try:
            value = msgspec.json.decode(written) if written.strip() not in ("", "null") else {}
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            problem = f"the arguments are not valid JSON: {error}"
        if not problem and not isinstance(value, dict):
            problem = f"the arguments must be a JSON object, not {written.strip()!r:.80}"
        self.broken = bool(problem)
        return [*events, self._outcome(value, problem or None)]

    @property
    def _executed(self) -> bool | None:
        return None if self._ours else True

    def _outcome(self, value: Any, problem: str | None) -> Event:
        kept: dict[str, Any] = {
            word: self._block[name] for name, word in _CALLER.items() if self._block.get(name) is not None
        }
        if not self._ours:
            kept = {"block": {**self._block, "input": {} if problem else value}}
        metadata = sealed(kept, self._provider) if kept else None
        if problem is None:
            return ToolInputAvailable(
                self.id, self._name, value, provider_executed=self._executed, provider_metadata=metadata
            )
        written = "".join(self._sent)
        return ToolInputError(
            self.id,
            self._name,
            written,
            f"{problem}; nothing was run",
            provider_executed=self._executed,
            provider_metadata=metadata,
        )


class Raw:
    """A block of a kind that has no word of ours: kept whole, so that it can go back."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._block: dict[str, Any] = {}

    def begin(self, block: Mapping[str, Any]) -> list[Event]:
        """Open."""
        self._block = dict(block)
        return []

    def grow(self, delta: Delta) -> list[Event]:
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
        return [Data(RAW, self._block)]


Block: TypeAlias = Text | Thinking | Call | Raw


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
