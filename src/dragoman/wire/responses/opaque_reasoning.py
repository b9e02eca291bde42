"""Carry reasoning that only its provider can read through the `encrypted_content` of reasoning items.

Content of a provider that speaks the Responses API is passed on byte for byte, with the id of its item. Other
families have signatures and encrypted blocks of several formats: their provider metadata becomes JSON behind
a prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.messages import ProviderMetadata
from dragoman.wire.json_codec import compact_json
from dragoman.wire.reasoning_metadata import FAMILY

PREFIX = "dragoman-reasoning:"
_CALL_ID = "call_id"


def encrypted_content(metadata: ProviderMetadata | None) -> str | None:
    """Return the `encrypted_content` of a reasoning item; None if nothing in its metadata is opaque."""
    if not metadata:
        return None
    content = metadata.get(FAMILY, {}).get("encryptedContent")
    if isinstance(content, str) and content:
        return content
    others = {family: fields for family, fields in metadata.items() if family != FAMILY and fields}
    return PREFIX + compact_json(others) if others else None


def call_content(call_id: str, metadata: ProviderMetadata | None) -> str | None:
    """Return the `encrypted_content` for what is opaque in a call; None if nothing is.

    A call's item has no field for it, so a reasoning item before it carries it, and names the call.
    """
    fields = (metadata or {}).get("openai", {})
    if not fields.get("extra_content"):
        return None
    return PREFIX + compact_json({_CALL_ID: call_id, "openai": fields})


def call_metadata(item: Mapping[str, Any]) -> tuple[str, ProviderMetadata] | None:
    """Return the call that a reasoning item belongs to, and its metadata; None for any other item."""
    content = item.get("encrypted_content")
    if not isinstance(content, str) or not content.startswith(PREFIX):
        return None
    try:
        value = decode_json(content[len(PREFIX) :])
    except DECODE_ERRORS:
        return None
    call_id = value.get(_CALL_ID) if isinstance(value, dict) else None
    fields = value.get("openai") if isinstance(value, dict) else None
    if not isinstance(call_id, str) or not isinstance(fields, dict):
        return None
    return call_id, {"openai": fields}


def item_id(metadata: ProviderMetadata | None) -> str | None:
    """Return the id that the provider has given to the item; None if it is of another family."""
    id = (metadata or {}).get(FAMILY, {}).get("itemId")
    return id if isinstance(id, str) and id else None


def reasoning_metadata(item: Mapping[str, Any]) -> ProviderMetadata | None:
    """Return the provider metadata of a reasoning item that a client sends back."""
    content = item.get("encrypted_content")
    if isinstance(content, str) and content.startswith(PREFIX):
        return _open(content)
    fields = {}
    if isinstance(item.get("id"), str) and item["id"]:
        fields["itemId"] = item["id"]
    if isinstance(content, str) and content:
        fields["encryptedContent"] = content
    return {FAMILY: fields} if fields else None


def drop_sealed_reasoning(items: bytes) -> bytes:
    """Return the input of a request without the reasoning of other families, which no server can read."""
    try:
        values = msgspec.json.decode(items, type=list[msgspec.Raw])
    except DECODE_ERRORS:
        return items
    return msgspec.json.encode([value for value in values if not _is_sealed(bytes(value))])


def _is_sealed(item: bytes) -> bool:
    if PREFIX.encode() not in item:
        return False
    try:
        value = decode_json(item)
    except DECODE_ERRORS:
        return False
    content = value.get("encrypted_content") if isinstance(value, dict) else None
    return isinstance(content, str) and content.startswith(PREFIX)


def _open(content: str) -> ProviderMetadata | None:
    try:
        value = decode_json(content[len(PREFIX) :])
    except DECODE_ERRORS:
        return None
    if not isinstance(value, dict) or not all(isinstance(fields, dict) for fields in value.values()):
        return None
    return value or None
