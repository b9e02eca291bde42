"""History: UI messages as the messages of an /api/chat request.

Every call gets a result, as for every provider. Images go as bare base64; what Ollama has no place for is
refused, with the message's id as the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, assert_never

from dragoman.errors import BadRequest
from dragoman.messages import FilePart, Message, Part, ProviderMetadata, ReasoningPart, TextPart, ToolPart
from dragoman.wire.openai.messages import (
    base64_data,
    base_media_type,
    file_reference,
    inline_text,
    local_tool_calls,
    split_steps,
    tool_result_text,
)
from dragoman.wire.tool_outputs import read_multimodal_output


def write_messages(
    history: Sequence[Message], *, instructions: str | None, provider: str | None
) -> list[dict[str, Any]]:
    """The messages in order; what another than this `provider` thought is not said to be the model's own."""
    written: list[dict[str, Any]] = []
    if instructions:
        written.append({"role": "system", "content": instructions})
    for message in history:
        match message.role:
            case "system":
                text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
                written += [{"role": "system", "content": text}] if text else []
            case "user":
                said = _write_content(message.parts, field=message.id)
                written += [{"role": "user", **said}] if any(said.values()) else []
            case "assistant":
                for block in split_steps(message.parts):
                    written += _write_step(block, provider=provider, field=message.id)
            case _:
                assert_never(message.role)
    return written


def _write_step(parts: Sequence[Part], *, provider: str | None, field: str) -> Iterator[dict[str, Any]]:
    """What one model call said, if it said anything, and a tool message for each call in call order."""
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    calls = local_tool_calls(parts)
    if not text and not calls:
        return
    said: dict[str, Any] = {"role": "assistant", "content": text}
    thinking = "".join(
        part.text
        for part in parts
        if isinstance(part, ReasoningPart) and not _is_from_other_provider(part.provider_metadata, provider)
    )
    if thinking:
        said["thinking"] = thinking
    if calls:
        said["tool_calls"] = [_write_call(part) for part in calls]
    yield said
    for part in calls:
        pieces = read_multimodal_output(part)
        told = (
            {"content": tool_result_text(part)}
            if pieces is None
            else _write_content(pieces, field=field, from_tool=True)
        )
        yield {"role": "tool", **told, "tool_name": part.name, "tool_call_id": part.tool_call_id}


def _is_from_other_provider(metadata: ProviderMetadata | None, provider: str | None) -> bool:
    """Whether the metadata names another provider."""
    names = [own["provider"] for own in (metadata or {}).values() if own.get("provider") is not None]
    return bool(names) and provider not in names


def _write_call(part: ToolPart) -> dict[str, Any]:
    arguments = part.input if isinstance(part.input, Mapping) else {}
    return {"id": part.tool_call_id, "function": {"name": part.name, "arguments": arguments}}


def _write_content(parts: Sequence[Part], *, field: str, from_tool: bool = False) -> dict[str, Any]:
    """Texts and images. Of any other file that a tool has `given` it is said that it was there."""
    texts: list[str] = []
    images: list[str] = []
    for part in parts:
        if isinstance(part, TextPart):
            texts += [part.text] if part.text else []
        elif isinstance(part, FilePart):
            text = inline_text(part) or (_file_note(part) if from_tool else None)
            if text is None:
                images.append(_image_data(part, field))
            else:
                texts.append(text)
    return {"content": "\n".join(texts), **({"images": images} if images else {})}


def _file_note(part: FilePart) -> str | None:
    """The words for a file that cannot go along as an image."""
    if base64_data(part) is not None and base_media_type(part).startswith("image/"):
        return None
    if part.url.startswith("data:"):
        return f"[{part.filename or 'a file'} of the type {base_media_type(part)}]"
    return file_reference(part)


def _image_data(part: FilePart, field: str) -> str:
    kind, data = base_media_type(part), base64_data(part)
    if not kind.startswith("image/"):
        raise BadRequest(
            f"Ollama takes texts and images, not a file of type {kind!r}",
            field=field,
            hint="send its text, or ask a provider that reads such files",
        )
    if data is None:
        raise BadRequest(
            "Ollama takes an image as base64 in a data: URL and fetches none by its address",
            field=field,
            hint="send the image itself, or ask a provider that fetches it",
        )
    return data
