"""Encrypted reasoning of the Responses API in provider metadata: what goes back unchanged, and to whom.

It is stored under `responses` in a part's provider metadata. If it names a `provider`, it is valid for that
one only: another has other keys and cannot read its encrypted reasoning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.json_decoding import DECODE_ERRORS
from dragoman.messages import ProviderMetadata
from dragoman.wire.json_codec import drop_non_finite

FAMILY = "responses"


def bind_to_provider(metadata: Mapping[str, Any], provider: str | None) -> ProviderMetadata:
    """Metadata that is sent back to the provider that sent it, and to no other."""
    fields = drop_non_finite(metadata)
    return {FAMILY: {**fields, "provider": provider} if provider is not None else fields}


def own_metadata(metadata: ProviderMetadata | None, provider: str | None) -> Mapping[str, Any]:
    """Return the metadata if it may be sent to this provider, else nothing."""
    fields = (metadata or {}).get(FAMILY, {})
    return fields if fields.get("provider") in (None, provider) else {}


# ---- Through clients of chat.completions and of Messages, which have no reasoning items

_FORMAT = "dragoman-responses-v1"
SEALED_FORMAT = _FORMAT.encode()
_ENTRY_FIELDS = (("data", "encryptedContent"), ("id", "itemId"), ("provider", "provider"))


def reasoning_details(metadata: ProviderMetadata | None) -> list[dict[str, Any]]:
    """Encrypted reasoning as the entry of `reasoning_details` that `metadata_of_entry` reads."""
    fields = (metadata or {}).get(FAMILY, {})
    if not fields.get("encryptedContent"):
        return []
    entry = {name: fields[key] for name, key in _ENTRY_FIELDS if fields.get(key)}
    return [{"type": "reasoning.encrypted", "format": _FORMAT, **entry}]


def metadata_of_entry(entry: Mapping[str, Any]) -> ProviderMetadata | None:
    """Return the metadata in an entry of `reasoning_details`; None if it is of another format."""
    if entry.get("format") != _FORMAT or not isinstance(entry.get("data"), str) or not entry["data"]:
        return None
    return {FAMILY: {key: entry[name] for name, key in _ENTRY_FIELDS if isinstance(entry.get(name), str)}}


def drop_sealed_entries(messages: bytes) -> bytes:
    """Remove such entries from the `messages` of a request that is relayed: its server cannot read them.

    All other bytes are kept; invalid messages are returned unchanged, for the server to refuse.
    """
    if SEALED_FORMAT not in messages:
        return messages
    try:
        cleaned = [_without_sealed(message) for message in _decode_objects(messages)]
    except DECODE_ERRORS:
        return messages
    return _encode(cleaned)


_decode_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def _without_sealed(message: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    details = bytes(message.get("reasoning_details", b""))
    if SEALED_FORMAT not in details:
        return message
    readable = [entry for entry in _decode_list(details) if not _is_sealed(bytes(entry))]
    others = {name: value for name, value in message.items() if name != "reasoning_details"}
    return {**others, "reasoning_details": msgspec.Raw(_encode(readable))} if readable else others


def _is_sealed(entry: bytes) -> bool:
    fields = msgspec.json.decode(entry)
    return isinstance(fields, dict) and fields.get("format") == _FORMAT
