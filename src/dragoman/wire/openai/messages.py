"""History: UI messages as the messages of a chat.completions request.

The rules are those of the wire notes on the AI SDK, §f: `step-start` cuts an assistant message into blocks,
and each block is one assistant message and the results of all its calls. Every call gets a result, so that
every provider takes the history, also after a stop.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, assert_never

import msgspec

from dragoman.messages import (
    FilePart,
    Message,
    Part,
    ProviderMetadata,
    ReasoningPart,
    StepStartPart,
    TextPart,
    ToolPart,
)
from dragoman.wire.openai.quirks import Quirks, safe_call_id, safe_tool_name
from dragoman.wire.tool_outputs import read_multimodal_output

# ---- Files: what a user says and attaches, as the content of a chat.completions message.

_DATA_URL = re.compile(r"data:[^,]*?(;base64)?,(.*)", re.DOTALL | re.IGNORECASE)
_PERCENT_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_TEXT_TYPES = re.compile(
    r"text/.*|application/(json|xml|ya?ml|x-ya?ml|toml|javascript|sql|x-sh)|.*\+(json|xml|yaml)"
)
_AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}


def write_content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """The texts and files in order: one string when all is text, as older servers want it."""
    written = [
        write_part(part)
        for part in parts
        if (isinstance(part, TextPart) and part.text) or isinstance(part, FilePart)
    ]
    if all(part["type"] == "text" for part in written):
        return "\n".join(part["text"] for part in written)
    return written


def write_part(part: TextPart | FilePart) -> dict[str, Any]:
    """A text or a file as one part of a content. What has no form of its own becomes text."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    kind, text = base_media_type(part), inline_text(part)
    if text is not None:
        return {"type": "text", "text": text}
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": part.url, **_image_detail(part)}}
    data = base64_data(part)
    if kind in _AUDIO_FORMATS and data is not None:
        return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO_FORMATS[kind]}}
    if _DATA_URL.fullmatch(part.url) is None:
        return {"type": "text", "text": file_reference(part)}
    return {"type": "file", "file": {"filename": part.filename or "file", "file_data": part.url}}


def base_media_type(part: FilePart) -> str:
    """The file's media type in lower case, without parameters."""
    return part.media_type.partition(";")[0].strip().lower()


def inline_text(part: FilePart) -> str | None:
    """A text file that came along as what can be said of it: its name and its text; None for any other."""
    data = _DATA_URL.fullmatch(part.url) if _TEXT_TYPES.fullmatch(base_media_type(part)) else None
    text = _decode_data_url(data[2], is_base64=bool(data[1])) if data is not None else None
    return None if text is None else f"{part.filename or 'file'}:\n{text}"


def base64_data(part: FilePart) -> str | None:
    """The base64 of a file that came along as such; None for any other."""
    data = _DATA_URL.fullmatch(part.url)
    return data[2] if data is not None and data[1] else None


def file_reference(part: FilePart) -> str:
    """A file that is elsewhere, in words."""
    return f"{part.filename or 'file'} ({base_media_type(part)}): {part.url}"


def _image_detail(part: FilePart) -> dict[str, Any]:
    detail = (part.provider_metadata or {}).get("openai", {}).get("imageDetail")
    return {"detail": detail} if isinstance(detail, str) else {}


def _decode_data_url(data: str, *, is_base64: bool) -> str | None:
    """The text in a data: URL; None when it is no text after all."""
    raw = _PERCENT_ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), data.encode(errors="replace"))
    try:
        return (base64.b64decode(raw, validate=True) if is_base64 else raw).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


NOT_RUN = "not run: interrupted"
NOT_APPROVED = "not run: nobody has approved it"
DENIED = "denied"
_OPAQUE_FIELDS = ("reasoning_details", "thinking_blocks", "reasoning_opaque")


def write_messages(
    history: Sequence[Message], *, instructions: str | None, quirks: Quirks, provider: str | None
) -> list[dict[str, Any]]:
    """The messages in order; what came opaque from this `provider` (signatures) goes back to it unchanged."""
    written: list[dict[str, Any]] = []
    if instructions:
        written.append({"role": quirks.system_role, "content": instructions})
    for message in history:
        match message.role:
            case "system":
                text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
                written.append({"role": quirks.system_role, "content": text})
            case "user":
                written.append({"role": "user", "content": write_content(message.parts)})
            case "assistant":
                for block in split_steps(message.parts):
                    written += _StepWriter(block, quirks, provider=provider).write()
            case _:
                assert_never(message.role)
    return [message for message in written if message["content"] or message["role"] in ("assistant", "tool")]


def split_steps(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """The parts of each model call in an assistant message."""
    block: list[Part] = []
    for part in parts:
        if isinstance(part, StepStartPart):
            yield block
            block = []
        else:
            block.append(part)
    yield block


def local_tool_calls(parts: Sequence[Part]) -> list[ToolPart]:
    """The calls that were ours to run, and were wholly written."""
    return [
        part
        for part in parts
        if isinstance(part, ToolPart) and part.state != "input-streaming" and not part.provider_executed
    ]


class _StepWriter:
    """What one model call said, with the results of its calls."""

    def __init__(self, parts: Sequence[Part], quirks: Quirks, *, provider: str | None) -> None:
        self._text = "".join(part.text for part in parts if isinstance(part, TextPart))
        self._reasoning = [part for part in parts if isinstance(part, ReasoningPart)]
        self._tool_calls = local_tool_calls(parts)
        self._quirks = quirks
        self._provider = provider

    def write(self) -> Iterator[dict[str, Any]]:
        """The assistant message, if it says anything, and a tool message for each call in call order.

        A tool message holds text only: files that the calls gave follow in one user message.
        """
        if not self._text and not self._tool_calls:
            return
        said: dict[str, Any] = {"role": "assistant", "content": self._text or None}
        if self._tool_calls:
            said |= self._reasoning_fields()
            said["tool_calls"] = [self._write_call(part) for part in self._tool_calls]
        yield said
        files: list[dict[str, Any]] = []
        for part in self._tool_calls:
            yield {"role": "tool", "tool_call_id": self._call_id(part), "content": _tool_content(part, files)}
        if files:
            yield {"role": "user", "content": files}

    def _reasoning_fields(self) -> dict[str, Any]:
        """The reasoning that led to the calls: its text for vendors that ask for it, and what is opaque."""
        thoughts: dict[str, Any] = {}
        text = "".join(part.text for part in self._reasoning)
        match self._quirks.reasoning_field:
            case "reasoning_content":
                thoughts["reasoning_content"] = text or " "  # Moonshot refuses a call without, also with ""
            case "reasoning" if text:
                thoughts["reasoning"] = text
            case _:
                pass
        for part in self._reasoning:
            for name, value in self._own_metadata(part.provider_metadata).items():
                if name in _OPAQUE_FIELDS:
                    thoughts[name] = [*thoughts.get(name, ()), *value] if isinstance(value, list) else value
        return thoughts

    def _write_call(self, part: ToolPart) -> dict[str, Any]:
        arguments = encode_json(part.input) if isinstance(part.input, Mapping) else "{}"
        call: dict[str, Any] = {
            "id": self._call_id(part),
            "type": "function",
            "function": {"name": safe_tool_name(part.name), "arguments": arguments},
        }
        extra = self._own_metadata(part.call_provider_metadata).get("extra_content")
        return call | {"extra_content": extra} if extra else call

    def _call_id(self, part: ToolPart) -> str:
        return safe_call_id(part.tool_call_id, self._quirks.call_id_format)

    def _own_metadata(self, metadata: ProviderMetadata | None) -> Mapping[str, Any]:
        """The metadata that this provider gave, or that does not say who did; another would refuse it."""
        own = (metadata or {}).get("openai", {})
        return own if own.get("provider") in (None, self._provider) else {}


def _tool_content(part: ToolPart, files: list[dict[str, Any]]) -> str:
    """What the model is told of a call; its files join the others, and the text says which they are."""
    pieces = read_multimodal_output(part)
    if pieces is None:
        return tool_result_text(part)
    texts: list[str] = []
    for given in map(write_part, pieces):
        if given["type"] == "text":
            texts.append(given["text"])
        else:
            number = len(files) // 2 + 1
            texts.append(f"[file {number} of the user message behind the results]")
            files += [{"type": "text", "text": f"[file {number}, from {safe_tool_name(part.name)}]"}, given]
    return "\n".join(texts)


def tool_result_text(part: ToolPart) -> str:
    """What the model is told of a call."""
    match part.state:
        case "output-available":
            output = None if part.output is msgspec.UNSET else part.output
            return output if isinstance(output, str) else encode_json(output)
        case "output-error":
            return part.error_text or "the call failed"
        case "output-denied":
            return _denial_text(part)
        case "approval-responded" if part.approval is not None and part.approval.approved is False:
            return _denial_text(part)
        case "approval-requested":
            return NOT_APPROVED
        case "input-available" | "input-streaming" | "approval-responded":
            return NOT_RUN
        case _:
            assert_never(part.state)


def _denial_text(part: ToolPart) -> str:
    reason = part.approval.reason if part.approval is not None else None
    return f"{DENIED}: {reason}" if reason else DENIED


def encode_json(value: Any) -> str:
    """The value as JSON text, the same for the same value."""
    return msgspec.json.encode(value, enc_hook=mapping_enc_hook).decode()


def mapping_enc_hook(value: Any) -> Any:
    """A mapping as the dict that the encoder knows."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")
