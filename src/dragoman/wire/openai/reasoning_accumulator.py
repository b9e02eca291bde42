"""Accumulate reasoning from the fields that vendors send it in, and opaque parts that must be sent back.

Source: wire notes on providers, §4.6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from dragoman.messages import ProviderMetadata
from dragoman.wire.json_codec import drop_non_finite
from dragoman.wire.openai.chunk import OpenAIDelta

_TEXT_FIELDS = ("text", "summary", "thinking")
_LISTS = ("reasoning_details", "thinking_blocks", "reasoning_summary")
_MOST_COMPARED = 16  # earlier entries of a type and index
_OPAQUE_FIELDS = ("signature", "data")
_IDENTITY_FIELDS = ("id", *_OPAQUE_FIELDS)


class ReasoningAccumulator:
    """Reads the reasoning fields of one answer; opaque parts are bound to the provider."""

    def __init__(self, provider: str | None = None) -> None:
        self._provider = provider
        self._has_text_field = False  # the text has a field of its own; the details repeat it
        self._entries: dict[str, _MergedEntries] = {}  # by name, of `_LISTS`
        self._opaque: Any = None

    def add_delta(self, delta: OpenAIDelta) -> str:
        """Return the text that this delta adds."""
        text = delta.reasoning_content or delta.reasoning or delta.reasoning_text or ""
        if (
            delta.reasoning_details is None
            and delta.thinking_blocks is None
            and delta.reasoning_opaque is None
        ):
            self._has_text_field = self._has_text_field or bool(text)
            return text
        self._opaque = delta.reasoning_opaque or self._opaque
        entry_text = self._merge_entries("reasoning_details", delta.reasoning_details)
        entry_text = self._merge_entries("thinking_blocks", delta.thinking_blocks) or entry_text
        if text:
            self._has_text_field = True
        return text or ("" if self._has_text_field else entry_text)

    def add_summary(self, entries: Any) -> None:
        """Note the entries of a part of a content list (Databricks), whose text is read elsewhere."""
        self._merge_entries("reasoning_summary", entries)

    @property
    def has_opaque(self) -> bool:
        """Whether there are opaque parts for the block that is open."""
        return bool(self._opaque) or any(entries.has_opaque for entries in self._entries.values())

    def take_metadata(self) -> ProviderMetadata | None:
        """Return the metadata that must be sent back with the block that ends."""
        metadata: dict[str, Any] = {
            name: [_join_pieces(entry) for entry in entries.all]
            for name in _LISTS
            if (entries := self._entries.get(name)) is not None and entries.has_opaque
        }
        if self._opaque:
            metadata["reasoning_opaque"] = self._opaque
        self._entries = {}
        self._opaque = None
        return bind_to_provider(metadata, self._provider) if metadata else None

    def _merge_entries(self, name: str, entries: Any) -> str:
        """Merge the entries into earlier ones and return their text."""
        if not isinstance(entries, list):
            return ""
        merged = self._entries.setdefault(name, _MergedEntries())
        texts = [merged.add(entry) for entry in entries if isinstance(entry, Mapping)]
        return "".join(texts)


class _TextPieces(list[str]):
    """A text that is still growing."""


class _MergedEntries:
    """The entries of one list; what belongs to one entry is merged into it."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self.has_opaque = False
        self._by_place: dict[tuple[str, str], deque[dict[str, Any]]] = {}  # the last ones of a type and index

    def add(self, entry: Mapping[str, Any]) -> str:
        """Merge an entry into an earlier one or add it, and return its text."""
        target = self._find(entry)
        text = ""
        for key, value in entry.items():
            if key in _TEXT_FIELDS and isinstance(value, str):
                before = target.get(key)
                if isinstance(before, _TextPieces):
                    before.append(value)
                else:
                    target[key] = _TextPieces([value])
                text = text or value
            elif value is not None:
                target[key] = value
        self.has_opaque = self.has_opaque or _is_opaque_entry(target)
        return text

    def _find(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        place = (str(entry.get("type")), str(entry.get("index")))
        earlier = self._by_place.setdefault(place, deque(maxlen=_MOST_COMPARED))
        same = (each for each in reversed(earlier) if _is_continuation(each, entry))
        found: dict[str, Any] | None = next(same, None)
        if found is not None:
            return found
        added: dict[str, Any] = {}
        self.all.append(added)
        earlier.append(added)
        return added


def _join_pieces(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry with its text joined."""
    return {key: "".join(value) if isinstance(value, _TextPieces) else value for key, value in entry.items()}


def _is_continuation(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    """Whether both are parts of one entry: same type and index, no different id, no second signature."""
    if earlier.get("type") != later.get("type") or earlier.get("index") != later.get("index"):
        return False
    for key in _IDENTITY_FIELDS:
        earlier_value, later_value = earlier.get(key), later.get(key)
        if earlier_value and later_value and earlier_value != later_value:
            return False
    return True


def bind_to_provider(metadata: Mapping[str, Any], provider: str | None) -> ProviderMetadata:
    """Metadata that is sent back to the provider that sent it, and to no other."""
    fields = drop_non_finite(metadata)
    return {"openai": {**fields, "provider": provider} if provider is not None else fields}


def _is_opaque_entry(entry: Mapping[str, Any]) -> bool:
    return any(entry.get(key) for key in _OPAQUE_FIELDS)
