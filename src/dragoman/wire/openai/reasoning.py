"""Reasoning: the fields in which vendors send it, told once, and the opaque parts that must go back.

Source: wire notes on providers, §4.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.messages import ProviderMetadata
from dragoman.wire.openai.chunk import OpenAIDelta

_TEXT_FIELDS = ("text", "summary", "thinking")
_OPAQUE_FIELDS = ("signature", "data")
_IDENTITY_FIELDS = ("id", *_OPAQUE_FIELDS)


class ReasoningAccumulator:
    """Reads one answer's reasoning fields; what is opaque is marked as the provider's."""

    def __init__(self, provider: str | None = None) -> None:
        self._provider = provider
        self._has_text_field = False  # its text comes in a field of its own, so details only repeat it
        self._entries: dict[str, list[dict[str, Any]]] = {"reasoning_details": [], "thinking_blocks": []}
        self._opaque: Any = None

    def add_delta(self, delta: OpenAIDelta) -> str:
        """The text that this delta adds."""
        text = delta.reasoning_content or delta.reasoning or delta.reasoning_text or ""
        if (
            delta.reasoning_details is None
            and delta.thinking_blocks is None
            and delta.reasoning_opaque is None
        ):
            self._has_text_field = self._has_text_field or bool(text)
            return text
        self._opaque = delta.reasoning_opaque or self._opaque
        told = self._merge_entries("reasoning_details", delta.reasoning_details)
        told = self._merge_entries("thinking_blocks", delta.thinking_blocks) or told
        if text:
            self._has_text_field = True
        return text or ("" if self._has_text_field else told)

    @property
    def has_opaque(self) -> bool:
        """Whether something opaque waits for the end of its block."""
        return bool(self._opaque) or any(
            any(map(_is_opaque_entry, entries)) for entries in self._entries.values()
        )

    def take_metadata(self) -> ProviderMetadata | None:
        """What must go back with the block that ends."""
        metadata: dict[str, Any] = {
            name: [_join_pieces(entry) for entry in entries]
            for name, entries in self._entries.items()
            if any(map(_is_opaque_entry, entries))
        }
        if self._opaque:
            metadata["reasoning_opaque"] = self._opaque
        self._entries = {name: [] for name in self._entries}
        self._opaque = None
        return bind_to_provider(metadata, self._provider) if metadata else None

    def _merge_entries(self, name: str, entries: Any) -> str:
        """Merge the entries into those before; their text."""
        if not isinstance(entries, list):
            return ""
        kept = self._entries[name]
        told = [_merge_entry(kept, entry) for entry in entries if isinstance(entry, Mapping)]
        return "".join(told)


class _TextPieces(list[str]):
    """A text that still grows."""


def _merge_entry(entries: list[dict[str, Any]], entry: Mapping[str, Any]) -> str:
    for old in reversed(entries):
        if _is_continuation(old, entry):
            break
    else:
        old = {}
        entries.append(old)
    text = ""
    for key, value in entry.items():
        if key in _TEXT_FIELDS and isinstance(value, str):
            before = old.get(key)
            if isinstance(before, _TextPieces):
                before.append(value)
            else:
                old[key] = _TextPieces([value])
            text = text or value
        elif value is not None:
            old[key] = value
    return text


def _join_pieces(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry as it goes back."""
    return {key: "".join(value) if isinstance(value, _TextPieces) else value for key, value in entry.items()}


def _is_continuation(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    """Whether both are pieces of one entry: same type and index, no other id, and no second secret."""
    if earlier.get("type") != later.get("type") or earlier.get("index") != later.get("index"):
        return False
    for key in _IDENTITY_FIELDS:
        known, said = earlier.get(key), later.get(key)
        if known and said and known != said:
            return False
    return True


def bind_to_provider(metadata: Mapping[str, Any], provider: str | None) -> ProviderMetadata:
    """Metadata that goes back to the provider that gave it, and to no other."""
    return {"openai": {**metadata, "provider": provider} if provider is not None else dict(metadata)}


def _is_opaque_entry(entry: Mapping[str, Any]) -> bool:
    return any(entry.get(key) for key in _OPAQUE_FIELDS)
