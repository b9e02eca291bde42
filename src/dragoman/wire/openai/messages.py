"""Convert UI messages to the messages of a chat.completions request.

The rules are those of the wire notes on the AI SDK, §f: `step-start` splits an assistant message into steps,
and each step becomes one assistant message and the results of all its calls. Every call gets a result, so
that every provider accepts the history, also after a stop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, assert_never

from dragoman.messages import (
    FilePart,
    Message,
    Part,
    ProviderMetadata,
    ReasoningPart,
    TextPart,
    ToolPart,
)
from dragoman.wire.files import (
    _DATA_URL,
    base64_data,
    base_media_type,
    file_note,
    file_reference,
    inline_text,
)
from dragoman.wire.json_codec import encode_json
from dragoman.wire.multimodal_outputs import read_multimodal_output
from dragoman.wire.openai.quirks import Quirks, distinct_call_ids, safe_tool_name
from dragoman.wire.step_splitting import local_tool_calls, split_steps, tool_result_text

_CONTENT_FIELD = "reasoning_summary"  # goes back as a part of the content, as Databricks sends it
_OPAQUE_FIELDS = ("reasoning_details", "thinking_blocks", "reasoning_opaque", _CONTENT_FIELD)


def write_messages(
    history: Sequence[Message], *, instructions: str | None, quirks: Quirks, provider: str | None
) -> list[dict[str, Any]]:
    """Convert the messages in order; opaque parts (signatures) go back to the `provider` that sent them."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": quirks.system_role, "content": instructions})
    for message in history:
        match message.role:
            case "system":
                text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
                messages.append({"role": quirks.system_role, "content": text})
            case "user":
                messages.append({"role": "user", "content": write_content(message.parts)})
            case "assistant":
                for step in split_steps(message.parts):
                    messages += _StepWriter(step, quirks, provider=provider).write()
            case _:
                assert_never(message.role)
    return [message for message in messages if message["content"] or message["role"] in ("assistant", "tool")]


class _StepWriter:
    """Writes one model call's answer and the results of its calls."""

    def __init__(self, parts: Sequence[Part], quirks: Quirks, *, provider: str | None) -> None:
        self._text = "".join(part.text for part in parts if isinstance(part, TextPart))
        self._reasoning = [part for part in parts if isinstance(part, ReasoningPart)]
        self._tool_calls = local_tool_calls(parts)
        self._quirks = quirks
        self._provider = provider

    def write(self) -> Iterator[dict[str, Any]]:
        """Yield the assistant message, unless it is empty, and a tool message for each call in order.

        A tool message contains text only: files from the results follow in one user message.
        """
        if not self._text and not self._tool_calls:
            return
        answer: dict[str, Any] = {"role": "assistant", "content": self._text or None}
        opaque_fields = self._opaque_fields()
        if summary := opaque_fields.pop(_CONTENT_FIELD, None):
            text = [{"type": "text", "text": self._text}] if self._text else []
            answer["content"] = [{"type": "reasoning", "summary": summary}, *text]
        answer |= opaque_fields
        if self._tool_calls:
            answer |= self._reasoning_text()
            answer["tool_calls"] = [self._write_call(part, id) for part, id in self._identified_calls()]
        yield answer
        files: list[dict[str, Any]] = []
        for part, id in self._identified_calls():
            yield {"role": "tool", "tool_call_id": id, "content": _tool_content(part, files)}
        if files:
            yield {"role": "user", "content": files}

    def _reasoning_text(self) -> dict[str, Any]:
        """Return the text of the reasoning before the calls, for vendors that require it."""
        text = "".join(part.text for part in self._reasoning)
        match self._quirks.reasoning_field:
            case "reasoning_content":
                # Moonshot rejects a call without reasoning, also with an empty string.
                return {"reasoning_content": text or " "}
            case "reasoning" if text:
                return {"reasoning": text}
            case _:
                return {}

    def _opaque_fields(self) -> dict[str, Any]:
        """Return the opaque parts of the reasoning that this provider sent, in order."""
        fields: dict[str, Any] = {}
        for part in self._reasoning:
            for name, value in self._own_metadata(part.provider_metadata).items():
                if name in _OPAQUE_FIELDS:
                    fields[name] = [*fields.get(name, ()), *value] if isinstance(value, list) else value
        return fields

    def _write_call(self, part: ToolPart, id: str) -> dict[str, Any]:
        arguments = encode_json(part.input) if isinstance(part.input, Mapping) else "{}"
        call: dict[str, Any] = {
            "id": id,
            "type": "function",
            "function": {"name": safe_tool_name(part.name), "arguments": arguments},
        }
        extra = self._own_metadata(part.call_provider_metadata).get("extra_content")
        return call | {"extra_content": extra} if extra else call

    def _identified_calls(self) -> Iterator[tuple[ToolPart, str]]:
        ids = distinct_call_ids((part.tool_call_id for part in self._tool_calls), self._quirks.call_id_format)
        return zip(self._tool_calls, ids, strict=True)

    def _own_metadata(self, metadata: ProviderMetadata | None) -> Mapping[str, Any]:
        """The metadata if this provider, or an unnamed one, sent it; other providers would reject it."""
        fields = (metadata or {}).get("openai", {})
        return fields if fields.get("provider") in (None, self._provider) else {}


def _tool_content(part: ToolPart, files: list[dict[str, Any]]) -> str:
    """Return the text of a call's result; its files are appended to `files` and referred to by number.

    A file that the server would refuse is a text about it, since the call cannot be taken back.
    """
    output_parts = read_multimodal_output(part)
    if output_parts is None:
        return tool_result_text(part)
    texts: list[str] = []
    for output_part in output_parts:
        content_part = write_part(output_part)
        if content_part["type"] == "text":
            texts.append(content_part["text"])
        elif isinstance(output_part, FilePart) and not _is_accepted(output_part):
            texts.append(file_note(output_part))
        else:
            number = len(files) // 2 + 1
            texts.append(f"[file {number} in the user message after the results]")
            files += [
                {"type": "text", "text": f"[file {number}, from {safe_tool_name(part.name)}]"},
                content_part,
            ]
    return "\n".join(texts)


def _is_accepted(part: FilePart) -> bool:
    """Return whether servers that read files read this one."""
    file_type = base_media_type(part)
    return (
        file_type in _ACCEPTED_TYPES or file_type in _AUDIO_FORMATS or _DATA_URL.fullmatch(part.url) is None
    )


# ---- Content: texts and files

_ACCEPTED_TYPES = ("image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp", "application/pdf")
_AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}


def write_content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """Convert texts and files in order; one string if all are text, as older servers require."""
    content_parts = [
        write_part(part)
        for part in parts
        if (isinstance(part, TextPart) and part.text) or isinstance(part, FilePart)
    ]
    if all(part["type"] == "text" for part in content_parts):
        return "\n".join(part["text"] for part in content_parts)
    return content_parts


def write_part(part: TextPart | FilePart) -> dict[str, Any]:
    """Convert a text or a file to one content part. A file without a matching type becomes text."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    file_type, text = base_media_type(part), inline_text(part)
    if text is not None:
        return {"type": "text", "text": text}
    if file_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": part.url, **_image_detail(part)}}
    data = base64_data(part)
    if file_type in _AUDIO_FORMATS and data is not None:
        return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO_FORMATS[file_type]}}
    if _DATA_URL.fullmatch(part.url) is None:
        return {"type": "text", "text": file_reference(part)}
    return {"type": "file", "file": {"filename": part.filename or "file", "file_data": part.url}}


def _image_detail(part: FilePart) -> dict[str, Any]:
    detail = (part.provider_metadata or {}).get("openai", {}).get("imageDetail")
    return {"detail": detail} if isinstance(detail, str) else {}
