"""Carry another family's opaque reasoning through an Anthropic client, and take it back.

Anthropic's format has a `signature` and the `data` of `redacted_thinking`, which clients send back unchanged.
Signatures and encrypted blocks of other providers do not fit there as they are: they have formats, ids and a
provider that alone can read them. So both fields carry the part's whole provider metadata as JSON behind a
prefix. Citations of other providers' texts are marked in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.events import SourceUrl
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.messages import ProviderMetadata
from dragoman.wire.json_codec import compact_json
from dragoman.wire.reasoning_metadata import metadata_of_entry

PREFIX = "dragoman-reasoning:"
FOREIGN_SIGNATURE = PREFIX + "{}"
"""Of reasoning without anything opaque: Anthropic's API refuses it when it is sent back."""
_PREFIX_BYTES = PREFIX.encode()
_REASONING_FIELDS = ("reasoning_details", "thinking_blocks", "reasoning_opaque", "reasoning_summary")
_TEXT_FIELDS = ("text", "summary", "thinking")
_THINKING_TYPES = ("thinking", "redacted_thinking")
_SOURCE_INDEX = "dragoman-source:"  # in place of what Anthropic encrypts
_MARKS = (_PREFIX_BYTES, _SOURCE_INDEX.encode())
_decode_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def encode_opaque_reasoning(metadata: Mapping[str, Any], text: str) -> str | None:
    """Encode the OpenAI family's metadata of a reasoning block; None if nothing in it is opaque.

    Texts that equal the block's own `text` are left out; see `decode_opaque_reasoning`.
    """
    fields = {name: metadata[name] for name in _REASONING_FIELDS if metadata.get(name)}
    if not fields:
        return None
    return _seal({name: _without_text(value, text) for name, value in fields.items()}, metadata)


def encode_call_metadata(call_id: str, metadata: Mapping[str, Any]) -> str | None:
    """Encode the opaque part of a tool call, for a block before it; None if it has none."""
    extra = metadata.get("extra_content")
    return _seal({"call_id": call_id, "extra_content": extra}, metadata) if extra else None


def decode_opaque_reasoning(sealed: str, text: str) -> dict[str, Any] | None:
    """Return the metadata in a signature or in redacted data; None if it is not one of the hub's.

    `text` is the block's own text.
    """
    if not sealed.startswith(PREFIX):
        return None
    try:
        value = decode_json(sealed[len(PREFIX) :])
    except DECODE_ERRORS:
        return {}
    if not isinstance(value, dict):
        return {}
    return {name: _with_text(field, text) for name, field in value.items()}


def openai_metadata(fields: Mapping[str, Any]) -> ProviderMetadata | None:
    """Return the provider metadata of a reasoning part that carries decoded fields."""
    details = fields.get("reasoning_details")
    for entry in details if isinstance(details, list) else ():
        if isinstance(entry, Mapping) and (metadata := metadata_of_entry(entry)) is not None:
            return metadata
    own_fields = {name: fields[name] for name in (*_REASONING_FIELDS, "provider") if name in fields}
    return {"openai": own_fields} if own_fields else None


def source_citation(source: SourceUrl) -> dict[str, Any]:
    """Return a web page that another provider's answer names as a citation of a text block."""
    return {
        "type": "web_search_result_location",
        "cited_text": "",
        "url": source.url,
        "title": source.title or source.url,  # the AI SDK refuses null
        "encrypted_index": _SOURCE_INDEX,
    }


def drop_opaque_reasoning(messages: bytes) -> bytes:
    """Remove other providers' reasoning and citations from a request's `messages`.

    Anthropic's API refuses a conversation with a signature or an index that is not its own. All other bytes
    are kept; invalid messages are returned unchanged, for the API to refuse.
    """
    if not _has_mark(messages):
        return messages
    try:
        cleaned = [_clean_message(message) for message in _decode_objects(messages)]
    except DECODE_ERRORS:
        return messages
    return _encode([message for message in cleaned if message is not None])


def _clean_message(message: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw] | None:
    """Return the message without such blocks; None if nothing is left of it."""
    content = bytes(message.get("content", b""))
    if not _has_mark(content) or not content.lstrip().startswith(b"["):
        return message
    blocks = [
        _drop_foreign_citations(block) for block in _decode_list(content) if not _is_foreign(bytes(block))
    ]
    return {**message, "content": msgspec.Raw(_encode(blocks))} if blocks else None


def _is_foreign(block: bytes) -> bool:
    if _PREFIX_BYTES not in block:
        return False
    fields = msgspec.json.decode(block)
    if not isinstance(fields, dict) or fields.get("type") not in _THINKING_TYPES:
        return False
    sealed = fields.get("signature") or fields.get("data")
    return isinstance(sealed, str) and sealed.startswith(PREFIX)


def _has_mark(raw: bytes) -> bool:
    return any(mark in raw for mark in _MARKS)


def _drop_foreign_citations(block: msgspec.Raw) -> msgspec.Raw:
    """Return the block without citations of other providers' texts."""
    raw = bytes(block)
    if _MARKS[1] not in raw:
        return block
    fields = msgspec.json.decode(raw)
    citations = fields.get("citations") if isinstance(fields, dict) else None
    if not isinstance(citations, list):
        return block
    own = own_citations(citations)
    del fields["citations"]
    return msgspec.Raw(_encode({**fields, "citations": own} if own else fields))


def own_citations(citations: list[Any]) -> list[Any]:
    """Return the citations that are Anthropic's own."""
    return [
        citation
        for citation in citations
        if not (isinstance(citation, Mapping) and citation.get("encrypted_index") == _SOURCE_INDEX)
    ]


def _seal(fields: dict[str, Any], metadata: Mapping[str, Any]) -> str:
    provider = metadata.get("provider")
    return PREFIX + compact_json(fields if provider is None else {"provider": provider, **fields})


def _without_text(value: Any, text: str) -> Any:
    """Replace the text of entries by null where the block repeats it."""
    if not isinstance(value, list) or not text:
        return value
    return [
        {key: None if key in _TEXT_FIELDS and field == text else field for key, field in entry.items()}
        if isinstance(entry, Mapping)
        else entry
        for entry in value
    ]


def _with_text(value: Any, text: str) -> Any:
    if not isinstance(value, list):
        return value
    return [
        {key: text if key in _TEXT_FIELDS and field is None else field for key, field in entry.items()}
        if isinstance(entry, Mapping)
        else entry
        for entry in value
    ]
