"""Thoughts in: what an assistant message of a chat.completions request says of its reasoning.

The text comes as `reasoning_content` or `reasoning`. What must go back to the model unchanged (signatures,
encrypted reasoning) comes in `reasoning_details`, or in LiteLLM's `thinking_blocks`. Source: wire notes on
providers, §4.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.messages import ProviderMetadata, ReasoningPart
from dragoman.wire.openai_door_fields import listing, mapping, text

FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "reasoning_opaque")


def read_thoughts(message: Mapping[str, Any], field: str) -> list[ReasoningPart]:
    """The reasoning in order; the text field is only heard when the details do not tell it already."""
    if message.keys().isdisjoint(FIELDS):
        return []
    said = text(message.get("reasoning_content"), f"{field}.reasoning_content")
    said = said or text(message.get("reasoning"), f"{field}.reasoning")
    entries = _entries(message, field)
    if said and not any(map(_told, entries)):
        _fill(entries, said)
    thoughts = [_thought(entry) for entry in entries]
    opaque = message.get("reasoning_opaque")
    if opaque:
        thoughts.append(ReasoningPart("", provider_metadata={"openai": {"reasoning_opaque": opaque}}))
    return [thought for thought in thoughts if thought.text or thought.provider_metadata]


def _entries(message: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    """The details with the pieces of one entry put together."""
    details = listing(message.get("reasoning_details"), f"{field}.reasoning_details")
    blocks = listing(message.get("thinking_blocks"), f"{field}.thinking_blocks")
    given = [
        mapping(entry, f"{field}.reasoning_details[{index}]") for index, entry in enumerate(details)
    ] or [_detail(mapping(block, f"{field}.thinking_blocks[{index}]")) for index, block in enumerate(blocks)]
    entries: list[dict[str, Any]] = []
    for entry in given:
        if entries and _goes_on(entries[-1], entry):
            entries[-1] = {**entries[-1], **entry, "text": _told(entries[-1]) + _told(entry)}
        else:
            entries.append(entry)
    return entries


def _detail(block: Mapping[str, Any]) -> dict[str, Any]:
    """An Anthropic block as an entry of `reasoning_details`."""
    if block.get("type") == "redacted_thinking":
        return {"type": "reasoning.encrypted", "data": block.get("data")}
    return {"type": "reasoning.text", "text": block.get("thinking"), "signature": block.get("signature")}


def _goes_on(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether the new entry is a piece of the old one: a client kept the pieces of a stream as they came.

    A signature ends its entry. Without an index, a text that has a signature beside it is whole.
    """
    if not (_is_text(old) and _is_text(new)) or old.get("signature") or old.get("index") != new.get("index"):
        return False
    return isinstance(new.get("index"), int) or not (_told(new) and new.get("signature"))


def _fill(entries: list[dict[str, Any]], said: str) -> None:
    """Put the text where it is missing: into the first entry that is there for one, else in front."""
    for place, entry in enumerate(entries):
        if _is_text(entry):
            entries[place] = {**entry, "text": said}
            return
    entries.insert(0, {"type": "reasoning.text", "text": said})


def _thought(entry: Mapping[str, Any]) -> ReasoningPart:
    told, signature, data = _told(entry), entry.get("signature"), entry.get("data")
    kept: dict[str, Any] | None = None
    if _is_anthropic(entry):
        if _is_text(entry) and (signature is None or isinstance(signature, str)):
            kept = {"signature": signature} if signature else {}
        elif entry.get("type") == "reasoning.encrypted" and isinstance(data, str) and data:
            kept = {"redactedData": data}
    if kept is None:
        return ReasoningPart(told, provider_metadata={"openai": {"reasoning_details": [dict(entry)]}})
    if kept and isinstance(entry.get("provider"), str):
        kept["provider"] = entry["provider"]
    metadata: ProviderMetadata | None = {"anthropic": kept} if kept else None
    return ReasoningPart(told, provider_metadata=metadata)


def _is_anthropic(entry: Mapping[str, Any]) -> bool:
    form = entry.get("format")
    return form is None or (isinstance(form, str) and form.startswith("anthropic"))


def _is_text(entry: Mapping[str, Any]) -> bool:
    return entry.get("type") == "reasoning.text"


def _told(entry: Mapping[str, Any]) -> str:
    """The entry's words, if it has any."""
    told = entry.get("text") or entry.get("summary")
    return told if isinstance(told, str) else ""
