"""Convert UI messages to the input items of a Responses request.

Each step of an assistant message becomes its items in order, and then the outputs of its calls. Every call
gets an output, so that every server accepts the history, also after a stop. Reasoning goes back only as the
encrypted item that the same server sent: the hub lets no server keep a response. A call id occurs once in a
request: the API refuses one that a later step repeats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from dragoman.messages import (
    DataPart,
    FilePart,
    Message,
    Part,
    ProviderMetadata,
    ReasoningPart,
    TextPart,
    ToolPart,
)
from dragoman.wire.anthropic.provider_metadata import cache_control_field
from dragoman.wire.files import _DATA_URL, base64_data, base_media_type, file_reference, inline_text
from dragoman.wire.json_codec import encode_json
from dragoman.wire.multimodal_outputs import read_multimodal_output
from dragoman.wire.openai.quirks import safe_call_id, safe_tool_name
from dragoman.wire.reasoning_metadata import own_metadata
from dragoman.wire.responses.provider_calls import RAW_ITEM_TYPE
from dragoman.wire.step_splitting import local_tool_calls, split_steps, tool_result_text
from dragoman.wire.tool_calls import DistinctIds

_AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
CACHE_MARK = "prompt_cache_breakpoint"


def write_items(
    history: Sequence[Message], *, provider: str | None, cache_marks: bool = True
) -> list[dict[str, Any]]:
    """Convert the messages in order; opaque parts go back to the `provider` that sent them."""
    items: list[dict[str, Any]] = []
    call_ids = DistinctIds()
    for message in history:
        match message.role:
            case "system" if cache_marks and any(map(_is_marked, message.parts)):
                items.append({"role": "system", "content": write_content(message.parts)})
            case "system":
                text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
                items += [{"role": "system", "content": text}] if text else []
            case "user":
                content = write_content(message.parts, cache_marks=cache_marks)
                items += [{"role": "user", "content": content}] if content else []
            case "assistant":
                for step in split_steps(message.parts):
                    items += _write_step(step, call_ids, provider=provider, cache_marks=cache_marks)
            case _:
                assert_never(message.role)
    return items


def _write_step(
    parts: Sequence[Part], call_ids: DistinctIds, *, provider: str | None, cache_marks: bool
) -> list[dict[str, Any]]:
    """Convert one model call's answer and the outputs of its calls.

    Servers refuse reasoning that nothing follows, as it is left by an answer that was cut.
    """
    calls = local_tool_calls(parts)
    ids = [safe_call_id(call_ids.take(part.tool_call_id), "plain") for part in calls]
    next_ids = iter(ids)
    items: list[dict[str, Any]] = []
    for part in parts:
        match part:
            case TextPart() if part.text:
                items.append(_write_text(part, provider=provider))
            case ReasoningPart():
                items += _write_reasoning(part, provider=provider)
            case ToolPart() if part in calls:
                items.append(_write_call(part, next(next_ids)))
            case DataPart(type=data_type, data=data) if data_type == RAW_ITEM_TYPE:
                items += _write_raw_item(data, provider=provider)
            case _:
                pass
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    outputs = (
        {
            "type": "function_call_output",
            "call_id": id,
            "output": _write_output(part, cache_marks=cache_marks),
        }
        for part, id in zip(calls, ids, strict=True)
    )
    return [*items, *outputs]


def _write_text(part: TextPart, *, provider: str | None) -> dict[str, Any]:
    content = [{"type": "output_text", "text": part.text, "annotations": []}]
    item = {"type": "message", "role": "assistant", "content": content}
    phase = own_metadata(part.provider_metadata, provider).get("phase")
    return item | {"phase": phase} if isinstance(phase, str) else item


def _write_raw_item(data: Any, *, provider: str | None) -> list[dict[str, Any]]:
    """Return an item that only the provider can read which has sent it."""
    is_own = isinstance(data, Mapping) and data.get("provider") == provider
    item = data.get("item") if is_own else None
    return [dict(item)] if isinstance(item, Mapping) and isinstance(item.get("type"), str) else []


def _write_reasoning(part: ReasoningPart, *, provider: str | None) -> list[dict[str, Any]]:
    metadata = own_metadata(part.provider_metadata, provider)
    encrypted, id = metadata.get("encryptedContent"), metadata.get("itemId")
    if not isinstance(encrypted, str) or not encrypted:
        return []
    summary = [{"type": "summary_text", "text": part.text}] if part.text else []
    item = {"type": "reasoning", "summary": summary, "encrypted_content": encrypted}
    return [{**item, "id": id} if isinstance(id, str) and id else item]


def _write_call(part: ToolPart, id: str) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": id,
        "name": safe_tool_name(part.name),
        "arguments": encode_json(part.input) if isinstance(part.input, Mapping) else "{}",
    }


def _write_output(part: ToolPart, *, cache_marks: bool) -> str | list[dict[str, Any]]:
    """Return the text of a call's output; its texts and files in order, if it has files or a cache mark."""
    parts = read_multimodal_output(part)
    mark = _cache_mark(part.result_provider_metadata) if cache_marks else {}
    if parts is None and not mark:
        return tool_result_text(part)
    *before, last = [TextPart(tool_result_text(part))] if parts is None else parts
    return [*map(write_part, before), write_part(last) | mark]


def write_content(parts: Sequence[Part], *, cache_marks: bool = True) -> str | list[dict[str, Any]]:
    """Convert texts and files in order; one string if all are plain text, as some servers require."""
    content = [
        write_part(part) | (_cache_mark(part.provider_metadata) if cache_marks else {})
        for part in parts
        if (isinstance(part, TextPart) and part.text) or isinstance(part, FilePart)
    ]
    if all(part["type"] == "input_text" and CACHE_MARK not in part for part in content):
        return "\n".join(part["text"] for part in content)
    return content


def _is_marked(part: Part) -> bool:
    return isinstance(part, TextPart) and bool(part.text and _cache_mark(part.provider_metadata))


def _cache_mark(metadata: ProviderMetadata | None) -> dict[str, Any]:
    """Return the API's breakpoint for a part with one; it lives for half an hour, the API's default."""
    return {CACHE_MARK: {"mode": "explicit"}} if cache_control_field(metadata) else {}


def write_part(part: TextPart | FilePart) -> dict[str, Any]:
    """Convert a text or a file to one content part. A file without a matching type becomes text."""
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    file_type, text = base_media_type(part), inline_text(part)
    if text is not None:
        return {"type": "input_text", "text": text}
    if file_type.startswith("image/"):
        detail = (part.provider_metadata or {}).get("openai", {}).get("imageDetail")
        return {
            "type": "input_image",
            "image_url": part.url,
            "detail": detail if isinstance(detail, str) else "auto",
        }
    data = base64_data(part)
    if file_type in _AUDIO_FORMATS and data is not None:
        return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO_FORMATS[file_type]}}
    if _DATA_URL.fullmatch(part.url) is not None:
        return {"type": "input_file", "filename": part.filename or "file", "file_data": part.url}
    if part.url.startswith(("http://", "https://")):
        return {"type": "input_file", "file_url": part.url}
    return {"type": "input_text", "text": file_reference(part)}
