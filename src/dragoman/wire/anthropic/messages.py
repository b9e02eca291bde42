"""History: UI messages as the messages of an Anthropic request.

Source: wire notes on providers, §6.6 and §10.1. `step-start` cuts an assistant message into blocks, and each
is one assistant message and one user message that begins with the results of all its calls. Signed thinking
and blocks that only Anthropic knows go back as they came. Neighbours of one role are merged.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, assert_never

import msgspec

from dragoman.errors import BadRequest
from dragoman.messages import (
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    StepStartPart,
    TextPart,
    ToolPart,
)
from dragoman.wire.anthropic.block_decoders import RAW_BLOCK_TYPE
from dragoman.wire.anthropic.capabilities import FAMILY, cache_control_field, own_metadata
from dragoman.wire.openai.messages import tool_result_text
from dragoman.wire.tool_outputs import read_multimodal_output

# ---- Files as the blocks of an Anthropic message: images and documents, by their data or by URL.
# Source: wire notes on providers, §6.2 and §10.1. What Anthropic cannot take is None; `unsupported_file`
# says so.

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
    """The block, with its cache mark; None when Anthropic takes no such file."""
    block = _file_block(part)
    if block is None:
        return None
    own = (part.provider_metadata or {}).get(FAMILY, {})
    extras = {name: own[name] for name in _FILE_EXTRAS if own.get(name) is not None}
    if part.filename and block["type"] == "document":
        extras.setdefault("title", part.filename)
    return {**block, **extras, **cache_control_field(part.provider_metadata)}


def unsupported_file(part: FilePart, field: str) -> BadRequest:
    """What to tell whoever sent a file that Anthropic does not take."""
    return BadRequest(
        f"{field}: Anthropic's models take no file of the type {part.media_type!r:.80}",
        field=field,
        hint="they take PNG, JPEG, GIF and WebP images, PDF by data or URL, and text by data",
    )


def _file_block(part: FilePart) -> dict[str, Any] | None:
    kind = part.media_type.partition(";")[0].strip().lower()
    data = _DATA_URL.fullmatch(part.url)
    if data is None:
        return _url_block(kind, part.url)
    if kind in _UNSPECIFIC_TYPES:
        kind = data[1].strip().lower()
    kind = "image/jpeg" if kind == "image/jpg" else kind
    packed, text = bool(data[2]), data[3]
    if kind in _IMAGE_TYPES or kind == _PDF_TYPE:
        source = {"type": "base64", "media_type": kind, "data": text if packed else _to_base64(text)}
        return {"type": "document" if kind == _PDF_TYPE else "image", "source": source}
    if not _TEXT_TYPES.fullmatch(kind):
        return None
    read = _decode_text(text, is_base64=packed)
    if not read:
        return None
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": read}}


def _url_block(kind: str, url: str) -> dict[str, Any] | None:
    if not url.startswith(("http://", "https://")):
        return None
    if kind in _UNSPECIFIC_TYPES and kind != "image/*" and _PDF_URL.fullmatch(url):
        kind = _PDF_TYPE
    source: Mapping[str, str] = {"type": "url", "url": url}
    if kind == _PDF_TYPE:
        return {"type": "document", "source": source}
    return {"type": "image", "source": source} if kind.startswith("image/") else None


def _to_base64(text: str) -> str:
    return base64.b64encode(_percent_decode(text)).decode()


def _decode_text(text: str, *, is_base64: bool) -> str | None:
    """The text in a data: URL; None when it is no text after all."""
    raw = _percent_decode(text)
    try:
        return (base64.b64decode(raw, validate=True) if is_base64 else raw).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _percent_decode(text: str) -> bytes:
    """What a data: URL holds where it is not packed: bytes, some of them as `%` and two digits."""
    return _PERCENT_ESCAPE.sub(lambda found: bytes((int(found[1], 16),)), text.encode())


_FORBIDDEN_CHARACTERS = re.compile(r"[^a-zA-Z0-9_-]")
_CALL_METADATA_FIELDS = {"caller": "caller", "toolset_name": "toolsetName"}


class AnthropicConversation(msgspec.Struct, frozen=True):
    """What the model is told: the `system` blocks, the messages, and the places of what they leave out."""

    system: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    dropped_fields: list[str]


def safe_tool_name(name: str) -> str:
    """The name with an underscore for every character that the wire forbids, at most 128 long."""
    return _FORBIDDEN_CHARACTERS.sub("_", name)[:128] or "unknown"


def write_messages(
    history: Sequence[Message], *, instructions: str | None, provider: str | None
) -> AnthropicConversation:
    """The messages in order; BadRequest for a file that Anthropic does not take."""
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
    """The messages so far."""

    def __init__(self, provider: str | None) -> None:
        self.system: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.dropped_fields: list[str] = []
        self._provider = provider
        self._used_ids: set[str] = set()

    def add_system(self, message: Message) -> None:
        """A system message: at the top, or else where it stands, marked, since moving it breaks caches."""
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
        """An assistant message: what each model call said, and the results of its calls."""
        self.dropped_fields += [f"{message.id}.file" for part in message.parts if isinstance(part, FilePart)]
        for parts in _split_steps(message.parts):
            said: list[dict[str, Any]] = []
            results: list[dict[str, Any]] = []
            for part in parts:
                if not isinstance(part, ToolPart) or part.provider_executed:
                    said += self._assistant_blocks(part)
                elif part.state != "input-streaming":  # else its arguments never came whole
                    call = self._tool_use_block(part)
                    said.append(call)
                    results.append(_tool_result_block(part, call))
            self.add_blocks("assistant", said)
            self.add_blocks("user", results)

    def add_blocks(self, role: str, blocks: list[dict[str, Any]]) -> None:
        """Add blocks to the last message, or a new one for another role."""
        if not blocks:
            return
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += blocks
        else:
            self.messages.append({"role": role, "content": blocks})

    def trim_final_text(self) -> None:
        """Take the white space off the end of an answer that is to be gone on with: it is refused."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            return
        block = self.messages[-1]["content"][-1]
        if block["type"] == "text":
            block["text"] = block["text"].rstrip()

    def _tool_use_block(self, part: ToolPart) -> dict[str, Any]:
        """A call that the model made."""
        kept = own_metadata(part.call_provider_metadata, self._provider)
        extras = {
            name: kept[word] for name, word in _CALL_METADATA_FIELDS.items() if kept.get(word) is not None
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
        """The blocks of any other part of an answer."""
        match part:
            case TextPart():
                cited = own_metadata(part.provider_metadata, self._provider).get("citations")
                return [{**block, **({"citations": cited} if cited else {})} for block in _text_blocks(part)]
            case ReasoningPart():
                return self._thinking_blocks(part)
            case ToolPart():
                raw = [own_metadata(kept, self._provider).get("block") for kept in _both_metadata(part)]
                return [dict(block) for block in raw if isinstance(block, Mapping)]
            case DataPart(type=kind, data=data) if kind == RAW_BLOCK_TYPE and isinstance(data, Mapping):
                return [dict(data)]
            case _:
                return []

    def _thinking_blocks(self, part: ReasoningPart) -> list[dict[str, Any]]:
        """Thinking as it was signed; without a signature nobody would believe it."""
        kept = own_metadata(part.provider_metadata, self._provider)
        if kept.get("signature"):
            return [{"type": "thinking", "thinking": part.text, "signature": kept["signature"]}]
        if kept.get("redactedData"):
            return [{"type": "redacted_thinking", "data": kept["redactedData"]}]
        return []

    def _unique_id(self, call_id: str) -> str:
        """The id if it may be sent and is the first of its like, else a stand-in, always the same."""
        id = call_id
        if not call_id or _FORBIDDEN_CHARACTERS.search(call_id):
            id = f"toolu_{hashlib.sha256(call_id.encode(errors='replace')).hexdigest()[:24]}"
        count, first = 1, id
        while id in self._used_ids:
            count += 1
            id = f"{first}-{count}"
        self._used_ids.add(id)
        return id


def _split_steps(parts: Sequence[Part]) -> Iterator[list[Part]]:
    step: list[Part] = []
    for part in parts:
        if isinstance(part, StepStartPart):
            yield step
            step = []
        else:
            step.append(part)
    yield step


def _both_metadata(part: ToolPart) -> tuple[Any, Any]:
    return part.call_provider_metadata, part.result_provider_metadata


def _text_blocks(part: TextPart) -> list[dict[str, Any]]:
    """The text as a block; one of white space only is refused, so it is none."""
    if not part.text.strip():
        return []
    return [{"type": "text", "text": part.text, **cache_control_field(part.provider_metadata)}]


def _user_blocks(part: Part, field: str) -> list[dict[str, Any]]:
    """What a user says or attaches."""
    if isinstance(part, TextPart):
        return _text_blocks(part)
    if not isinstance(part, FilePart):
        return []
    block = write_file(part)
    if block is None:
        raise unsupported_file(part, field)
    return [block]


def _tool_result_block(part: ToolPart, call: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a call; there is always one."""
    pieces = read_multimodal_output(part)
    content: Any = (
        tool_result_text(part)
        if pieces is None
        else [block for piece in pieces for block in _result_blocks(piece)]
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
    """A text or file that a tool gave; of a file that Anthropic does not take, that it was there."""
    if isinstance(part, TextPart):
        return _text_blocks(part)
    place = "" if part.url.startswith("data:") else f" at {part.url}"
    note = {"type": "text", "text": f"[a file of the type {part.media_type}{place}]"}
    return [write_file(part) or note]
