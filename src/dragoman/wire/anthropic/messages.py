"""Convert UI messages to the messages of an Anthropic request.

`step-start` splits an assistant message into steps; each step becomes one assistant message and one user
message that begins with the results of all its calls. Signed thinking and blocks that only Anthropic knows
are sent back unchanged. Adjacent messages of one role are merged. Source: wire notes on providers, §6.6 and
§10.1.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

import msgspec

from dragoman.errors import BadRequest
from dragoman.messages import (
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolPart,
)
from dragoman.wire.anthropic.block_decoders import RAW_BLOCK_TYPE
from dragoman.wire.anthropic.provider_metadata import FAMILY, cache_control_field, own_metadata
from dragoman.wire.files import file_note
from dragoman.wire.multimodal_outputs import read_multimodal_output
from dragoman.wire.step_splitting import split_steps, tool_result_text
from dragoman.wire.tool_calls import DistinctIds
from dragoman.wire.tool_names import ANTHROPIC_LENGTH, fit_tool_name

_FORBIDDEN_CHARACTERS = re.compile(r"[^a-zA-Z0-9_-]")
_CALL_METADATA_FIELDS = {"caller": "caller", "toolset_name": "toolsetName"}


class AnthropicConversation(msgspec.Struct, frozen=True):
    """The `system` blocks, the messages, and the names of dropped parts."""

    system: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    dropped_fields: list[str]


def safe_tool_name(name: str) -> str:
    """Replace each forbidden character of the name by an underscore; at most 128 characters."""
    return fit_tool_name(name, ANTHROPIC_LENGTH)


def write_messages(
    history: Sequence[Message], *, instructions: str | None, provider: str | None
) -> AnthropicConversation:
    """Convert the messages in order. Raises BadRequest for a file that Anthropic does not accept."""
    writer = _MessageWriter(provider)
    if instructions and instructions.strip():
        writer.system.append({"type": "text", "text": instructions})
    for message in history:
        match message.role:
            case "system":
                writer.add_system(message)
            case "user":
                writer.add_blocks(
                    "user", [block for part in message.parts for block in _user_blocks(part, message.id)]
                )
            case "assistant":
                writer.add_assistant(message)
            case _:
                assert_never(message.role)
    writer.trim_final_text()
    return AnthropicConversation(writer.system, writer.messages, writer.dropped_fields)


class _MessageWriter:
    """Collects the messages."""

    def __init__(self, provider: str | None) -> None:
        self.system: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.dropped_fields: list[str] = []
        self._provider = provider
        self._ids = DistinctIds()

    def add_system(self, message: Message) -> None:
        """Add a system message: to `system` if it is first, else in place, marked, since moving it breaks
        caches.
        """
        blocks = [
            block for part in message.parts if isinstance(part, TextPart) for block in _text_blocks(part)
        ]
        if not self.messages:
            self.system += blocks
            return
        for block in blocks:
            block["text"] = f"<system-reminder>\n{block['text']}\n</system-reminder>"
        self.add_blocks("user", blocks)

    def add_assistant(self, message: Message) -> None:
        """Add an assistant message: each step's answer and the results of its calls."""
        self.dropped_fields += [f"{message.id}.file" for part in message.parts if isinstance(part, FilePart)]
        for parts in split_steps(message.parts):
            answer: list[dict[str, Any]] = []
            results: list[dict[str, Any]] = []
            for part in parts:
                if not isinstance(part, ToolPart) or part.provider_executed:
                    answer += self._assistant_blocks(part)
                elif part.state != "input-streaming":  # arguments are incomplete while streaming
                    call = self._tool_use_block(part)
                    answer.append(call)
                    results.append(_tool_result_block(part, call))
            self.add_blocks("assistant", answer)
            self.add_blocks("user", results)

    def add_blocks(self, role: str, blocks: list[dict[str, Any]]) -> None:
        """Add blocks to the last message, or to a new one if the role differs."""
        if not blocks:
            return
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += blocks
        else:
            self.messages.append({"role": role, "content": blocks})

    def trim_final_text(self) -> None:
        """Strip trailing white space from a final assistant message: Anthropic rejects it."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            return
        block = self.messages[-1]["content"][-1]
        if block["type"] == "text":
            block["text"] = block["text"].rstrip()

    def _tool_use_block(self, part: ToolPart) -> dict[str, Any]:
        """Return a call that the model made."""
        metadata = own_metadata(part.call_provider_metadata, self._provider)
        extras = {
            name: metadata[key]
            for name, key in _CALL_METADATA_FIELDS.items()
            if metadata.get(key) is not None
        }
        return {
            "type": "tool_use",
            "id": self._unique_id(part.tool_call_id),
            "name": safe_tool_name(part.name),
            "input": part.input if isinstance(part.input, Mapping) else {},
            **extras,
            **cache_control_field(part.call_provider_metadata),
        }

    def _assistant_blocks(self, part: Part) -> list[dict[str, Any]]:
        """Return the blocks of any other assistant part."""
        match part:
            case TextPart():
                citations = own_metadata(part.provider_metadata, self._provider).get("citations")
                return [
                    {**block, **({"citations": citations} if citations else {})}
                    for block in _text_blocks(part)
                ]
            case ReasoningPart():
                return self._thinking_blocks(part)
            case ToolPart():
                blocks = [
                    own_metadata(metadata, self._provider).get("block") for metadata in _both_metadata(part)
                ]
                return [dict(block) for block in blocks if isinstance(block, Mapping)]
            case DataPart(type=data_type, data=data) if data_type == RAW_BLOCK_TYPE and isinstance(
                data, Mapping
            ):
                return [dict(data)]
            case _:
                return []

    def _thinking_blocks(self, part: ReasoningPart) -> list[dict[str, Any]]:
        """Signed thinking; without a signature Anthropic would reject it."""
        metadata = own_metadata(part.provider_metadata, self._provider)
        if metadata.get("signature"):
            return [{"type": "thinking", "thinking": part.text, "signature": metadata["signature"]}]
        if metadata.get("redactedData"):
            return [{"type": "redacted_thinking", "data": metadata["redactedData"]}]
        return []

    def _unique_id(self, call_id: str) -> str:
        """Return the id if it is allowed and unique, else a replacement that is always the same."""
        id = call_id
        if not call_id or _FORBIDDEN_CHARACTERS.search(call_id):
            id = f"toolu_{hashlib.sha256(call_id.encode(errors='replace')).hexdigest()[:24]}"
        return self._ids.take(id)


def _both_metadata(part: ToolPart) -> tuple[Any, Any]:
    return part.call_provider_metadata, part.result_provider_metadata


def _text_blocks(part: TextPart) -> list[dict[str, Any]]:
    """Return the text as a block; none for white space only, which Anthropic rejects."""
    if not part.text.strip():
        return []
    return [{"type": "text", "text": part.text, **cache_control_field(part.provider_metadata)}]


def _user_blocks(part: Part, field: str) -> list[dict[str, Any]]:
    """Return the blocks of a user's text or file."""
    if isinstance(part, TextPart):
        return _text_blocks(part)
    if not isinstance(part, FilePart):
        return []
    block = write_file(part)
    if block is None:
        raise unsupported_file(part, field)
    return [block]


def _tool_result_block(part: ToolPart, call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a call; every call gets one."""
    content_parts = read_multimodal_output(part)
    content: Any = (
        tool_result_text(part)
        if content_parts is None
        else [block for content_part in content_parts for block in _result_blocks(content_part)]
    )
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call["id"]}
    if content:
        block["content"] = content
    if part.state != "output-available":
        block["is_error"] = True
    if "toolset_name" in call:
        block["toolset_name"] = call["toolset_name"]
    return block | cache_control_field(part.result_provider_metadata)


def _result_blocks(part: TextPart | FilePart) -> list[dict[str, Any]]:
    """Convert a text or file of a result; a file that Anthropic does not accept becomes a note."""
    if isinstance(part, TextPart):
        return _text_blocks(part)
    return [write_file(part) or {"type": "text", "text": file_note(part)}]


# ---- Files: images and documents, by data or URL

_DATA_URL = re.compile(r"data:([^,;]*)[^,]*?(;base64)?,(.*)", re.DOTALL | re.IGNORECASE)
_PERCENT_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_PDF_URL = re.compile(r"https?://[^/?#]*/[^?#]*\.pdf(?:[?#].*)?", re.DOTALL | re.IGNORECASE)
_IMAGE_TYPES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
_PDF_TYPE = "application/pdf"
_UNSPECIFIC_TYPES = ("", "application/octet-stream", "image/*", "*/*")
_TEXT_TYPES = re.compile(
    r"text/.*|application/(json|xml|ya?ml|x-ya?ml|toml|javascript|sql|x-sh)|.*\+(json|xml|yaml)"
)
_FILE_EXTRAS = ("title", "context", "citations", "transformations")


def write_file(part: FilePart) -> dict[str, Any] | None:
    """Convert a file to a block, with its cache breakpoint; None if Anthropic does not accept the type."""
    block = _file_block(part)
    if block is None:
        return None
    metadata = (part.provider_metadata or {}).get(FAMILY, {})
    extras = {name: metadata[name] for name in _FILE_EXTRAS if metadata.get(name) is not None}
    if part.filename and block["type"] == "document":
        extras.setdefault("title", part.filename)
    return {**block, **extras, **cache_control_field(part.provider_metadata)}


def unsupported_file(part: FilePart, field: str) -> BadRequest:
    """Return the error for a file that Anthropic does not accept."""
    return BadRequest(
        f"{field}: Anthropic's models do not accept files of type {part.media_type!r:.80}",
        field=field,
        hint="they accept PNG, JPEG, GIF and WebP images, PDF as data or URL, and text as data",
    )


def _file_block(part: FilePart) -> dict[str, Any] | None:
    media_type = part.media_type.partition(";")[0].strip().lower()
    data = _DATA_URL.fullmatch(part.url)
    if data is None:
        return _url_block(media_type, part.url)
    if media_type in _UNSPECIFIC_TYPES:
        media_type = data[1].strip().lower()
    media_type = "image/jpeg" if media_type == "image/jpg" else media_type
    is_base64, text = bool(data[2]), data[3]
    if media_type in _IMAGE_TYPES or media_type == _PDF_TYPE:
        source = {"type": "base64", "media_type": media_type, "data": text if is_base64 else _to_base64(text)}
        return {"type": "document" if media_type == _PDF_TYPE else "image", "source": source}
    if not _TEXT_TYPES.fullmatch(media_type):
        return None
    document_text = _decode_text(text, is_base64=is_base64)
    if not document_text:
        return None
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": document_text}}


def _url_block(media_type: str, url: str) -> dict[str, Any] | None:
    if not url.startswith(("http://", "https://")):
        return None
    if media_type in _UNSPECIFIC_TYPES and media_type != "image/*" and _PDF_URL.fullmatch(url):
        media_type = _PDF_TYPE
    source: Mapping[str, str] = {"type": "url", "url": url}
    if media_type == _PDF_TYPE:
        return {"type": "document", "source": source}
    return {"type": "image", "source": source} if media_type.startswith("image/") else None


def _to_base64(text: str) -> str:
    return base64.b64encode(_percent_decode(text)).decode()


def _decode_text(text: str, *, is_base64: bool) -> str | None:
    """Decode the text of a data: URL; None if it is not text."""
    raw = _percent_decode(text)
    try:
        return (base64.b64decode(raw, validate=True) if is_base64 else raw).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _percent_decode(text: str) -> bytes:
    """Decode the percent-escapes of a data: URL that is not base64."""
    return _PERCENT_ESCAPE.sub(lambda escape: bytes((int(escape[1], 16),)), text.encode())
