"""Reasoning: the fields in which vendors send it, told once, and the opaque parts that must go back.

Source: wire notes on providers, §4.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.messages import ProviderMetadata
from dragoman.wire.openai.chunk import Delta

_TEXTS = ("text", "summary", "thinking")
_OPAQUE = ("signature", "data")
_MARKS = ("id", *_OPAQUE)


class Reasoning:
    """Reads one answer's reasoning fields; what is opaque is marked as the provider's."""

    def __init__(self, provider: str | None = None) -> None:
        self._provider = provider
        self._plain = False  # its text comes in a field of its own, so details only repeat it
        self._lists: dict[str, list[dict[str, Any]]] = {"reasoning_details": [], "thinking_blocks": []}
        self._opaque: Any = None

    def read(self, delta: Delta) -> str:
        """The text that this delta adds."""
        text = delta.reasoning_content or delta.reasoning or delta.reasoning_text or ""
        if (
            delta.reasoning_details is None
            and delta.thinking_blocks is None
            and delta.reasoning_opaque is None
        ):
            self._plain = self._plain or bool(text)
            return text
        self._opaque = delta.reasoning_opaque or self._opaque
        told = self._keep("reasoning_details", delta.reasoning_details)
        told = self._keep("thinking_blocks", delta.thinking_blocks) or told
        if text:
            self._plain = True
        return text or ("" if self._plain else told)

    @property
    def kept(self) -> bool:
        """Whether something opaque waits for the end of its block."""
        return bool(self._opaque) or any(any(map(_is_opaque, entries)) for entries in self._lists.values())

    def take(self) -> ProviderMetadata | None:
        """What must go back with the block that ends."""
        metadata: dict[str, Any] = {
            name: [_joined(entry) for entry in entries]
            for name, entries in self._lists.items()
            if any(map(_is_opaque, entries))
        }
        if self._opaque:
            metadata["reasoning_opaque"] = self._opaque
        self._lists = {name: [] for name in self._lists}
        self._opaque = None
        return opaque(metadata, self._provider) if metadata else None

    def _keep(self, name: str, entries: Any) -> str:
        """Merge the entries into those before; their text."""
        if not isinstance(entries, list):
            return ""
        kept = self._lists[name]
        told = [_merge(kept, entry) for entry in entries if isinstance(entry, Mapping)]
        return "".join(told)


class _Pieces(list[str]):
    """A text that still grows."""


def _merge(kept: list[dict[str, Any]], entry: Mapping[str, Any]) -> str:
    for old in reversed(kept):
        if _continues(old, entry):
            break
    else:
        old = {}
        kept.append(old)
    text = ""
    for key, value in entry.items():
        if key in _TEXTS and isinstance(value, str):
            before = old.get(key)
            if isinstance(before, _Pieces):
                before.append(value)
            else:
                old[key] = _Pieces([value])
            text = text or value
        elif value is not None:
            old[key] = value
    return text


def _joined(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry as it goes back."""
    return {key: "".join(value) if isinstance(value, _Pieces) else value for key, value in entry.items()}


def _continues(old: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Whether both are pieces of one entry: same type and index, no other id, and no second secret."""
    if old.get("type") != entry.get("type") or old.get("index") != entry.get("index"):
        return False
    for key in _MARKS:
        known, said = old.get(key), entry.get(key)
        if known and said and known != said:
            return False
    return True


def opaque(metadata: Mapping[str, Any], provider: str | None) -> ProviderMetadata:
    """Metadata that goes back to the provider that gave it, and to no other."""
    return {"openai": {**metadata, "provider": provider} if provider is not None else dict(metadata)}


def _is_opaque(entry: Mapping[str, Any]) -> bool:
    return any(entry.get(key) for key in _OPAQUE)
