"""Convert UI messages to the messages of an /api/chat request.

Every call gets a result, as for every provider. Images are sent as base64; other files are rejected, with the
message's id as the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, assert_never

from dragoman.errors import BadRequest
from dragoman.messages import FilePart, Message, Part, ProviderMetadata, ReasoningPart, TextPart, ToolPart
from dragoman.wire.files import base64_data, base_media_type, file_note, file_reference, inline_text
from dragoman.wire.multimodal_outputs import read_multimodal_output
from dragoman.wire.step_splitting import local_tool_calls, split_steps, tool_result_text


def write_messages(
    history: Sequence[Message], *, instructions: str | None, provider: str | None
) -> list[dict[str, Any]]:
    """Convert the messages in order; reasoning of another provider than `provider` is omitted."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for message in history:
        match message.role:
            case "system":
                text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
                messages += [{"role": "system", "content": text}] if text else []
            case "user":
                content = _write_content(message.parts, field=message.id)
                messages += [{"role": "user", **content}] if any(content.values()) else []
            case "assistant":
                for step in split_steps(message.parts):
                    messages += _write_step(step, provider=provider, field=message.id)
            case _:
                assert_never(message.role)
    return messages


def _write_step(parts: Sequence[Part], *, provider: str | None, field: str) -> Iterator[dict[str, Any]]:
    """Yield the assistant message of one step, unless it is empty, and a tool message for each call in
    order.
    """
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    calls = local_tool_calls(parts)
    if not text and not calls:
        return
    answer: dict[str, Any] = {"role": "assistant", "content": text}
    thinking = "".join(
        part.text
        for part in parts
        if isinstance(part, ReasoningPart) and not _is_from_other_provider(part.provider_metadata, provider)
    )
    if thinking:
        answer["thinking"] = thinking
    if calls:
        answer["tool_calls"] = [_write_call(part) for part in calls]
    yield answer
    for part in calls:
        output_parts = read_multimodal_output(part)
        result_fields = (
            {"content": tool_result_text(part)}
            if output_parts is None
            else _write_content(output_parts, field=field, from_tool=True)
        )
        yield {"role": "tool", **result_fields, "tool_name": part.name, "tool_call_id": part.tool_call_id}


def _is_from_other_provider(metadata: ProviderMetadata | None, provider: str | None) -> bool:
    """Return whether the metadata names another provider."""
    providers = [
        metadata_of_family["provider"]
        for metadata_of_family in (metadata or {}).values()
        if metadata_of_family.get("provider") is not None
    ]
    return bool(providers) and provider not in providers


def _write_call(part: ToolPart) -> dict[str, Any]:
    arguments = part.input if isinstance(part.input, Mapping) else {}
    return {"id": part.tool_call_id, "function": {"name": part.name, "arguments": arguments}}


def _write_content(parts: Sequence[Part], *, field: str, from_tool: bool = False) -> dict[str, Any]:
    """Convert texts and images. Any other file that comes `from_tool` becomes a note."""
    texts: list[str] = []
    images: list[str] = []
    for part in parts:
        if isinstance(part, TextPart):
            texts += [part.text] if part.text else []
        elif isinstance(part, FilePart):
            text = inline_text(part) or (_note(part) if from_tool else None)
            if text is None:
                images.append(_image_data(part, field))
            else:
                texts.append(text)
    return {"content": "\n".join(texts), **({"images": images} if images else {})}


def _note(part: FilePart) -> str | None:
    """Return the text about a file that cannot be sent as an image."""
    if base64_data(part) is not None and base_media_type(part).startswith("image/"):
        return None
    return file_note(part) if part.url[:5].lower() == "data:" else file_reference(part)


def _image_data(part: FilePart, field: str) -> str:
    file_type, data = base_media_type(part), base64_data(part)
    if not file_type.startswith("image/"):
        raise BadRequest(
            f"Ollama accepts text and images, not files of type {file_type!r}",
            field=field,
            hint="send its text, or use a provider that reads such files",
        )
    if data is None:
        raise BadRequest(
            "Ollama accepts images only as base64 in a data: URL; it does not fetch URLs",
            field=field,
            hint="send the image data, or use a provider that fetches URLs",
        )
    return data
