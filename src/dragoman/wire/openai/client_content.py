"""Parse the content and reasoning of a chat.completions message to message parts.

Source: wire notes on providers, §4.1 and §10.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from dragoman.errors import BadRequest
from dragoman.messages import FilePart, ProviderMetadata, ReasoningPart, TextPart
from dragoman.wire.json_codec import as_text
from dragoman.wire.openai.field_reader import (
    IgnoredFields,
    describe_value,
    invalid_field,
    read_cache_control,
    read_list,
    read_nonempty_string,
    read_object,
    read_optional_string,
    read_string,
)
from dragoman.wire.reasoning_metadata import metadata_of_entry
from dragoman.wire.source_tracker import media_type_from_url
from dragoman.wire.text_block_writer import REFUSAL_METADATA

ContentKind = Literal["text", "refusal", "image_url", "input_audio", "file"]
ContentPart: TypeAlias = TextPart | FilePart

TEXT_KINDS: tuple[ContentKind, ...] = ("text",)
ASSISTANT_KINDS: tuple[ContentKind, ...] = ("text", "refusal")
USER_KINDS: tuple[ContentKind, ...] = ("text", "image_url", "input_audio", "file")

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(;[^,]*)?;base64,", re.IGNORECASE)
_AUDIO_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_WAV_START = "UklGR"  # `RIFF` in base64
_FILE_TYPES = {
    "pdf": "application/pdf",
    "txt": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
    "html": "text/html",
    "json": "application/json",
    "xml": "application/xml",
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
}
_UNKNOWN_TYPE = "application/octet-stream"
_INNER_FIELDS: Mapping[str, tuple[str, ...]] = {
    "text": (),
    "refusal": (),
    "image_url": ("url", "detail"),
    "input_audio": ("data", "format"),
    "file": ("filename", "file_data", "file_id"),
}
_COMMON_FIELDS = ("type", "cache_control", "prompt_cache_breakpoint")


def parse_content(
    value: Any, field: str, *, kinds: tuple[ContentKind, ...], ignored: IgnoredFields
) -> list[ContentPart]:
    """Parse the content to parts in order, without empty texts; `kinds` are the allowed part types."""
    if isinstance(value, str):
        return [TextPart(value)] if value else []
    if not isinstance(value, list):
        raise invalid_field(value, field, expected="a string or a list of parts")
    parts = [
        _parse_part(part, f"{field}[{index}]", kinds=kinds, ignored=ignored)
        for index, part in enumerate(value)
    ]
    return [part for part in parts if isinstance(part, FilePart) or part.text]


def refusal_part(text: str, cache_metadata: ProviderMetadata | None = None) -> TextPart:
    """Return a text part with the model's refusal."""
    return TextPart(text, provider_metadata={**(cache_metadata or {}), **REFUSAL_METADATA})


def _parse_part(
    value: Any, field: str, *, kinds: tuple[ContentKind, ...], ignored: IgnoredFields
) -> ContentPart:
    value = _from_mistral(read_object(value, field))
    part_type = value.get("type")
    if part_type not in kinds:
        allowed = ", ".join(kinds)
        raise BadRequest(
            f"{field}.type must be one of {allowed}, got {describe_value(part_type)}", field=f"{field}.type"
        )
    ignored.add_unknown(value, (*_COMMON_FIELDS, part_type), field="messages[].content[]")
    if isinstance(inner := value.get(part_type), dict):
        ignored.add_unknown(inner, _INNER_FIELDS[part_type], field=f"messages[].content[].{part_type}")
    return _PARSERS[part_type](value, field, cache_metadata=read_cache_control(value, field))


def _from_mistral(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part in OpenAI's form: Mistral's clients send documents and sounds in another one."""
    document, audio = part.get("document_url"), part.get("input_audio")
    if part.get("type") == "document_url" and isinstance(document, str):
        others = {name: part[name] for name in part if name not in ("type", "document_url", "document_name")}
        file = {"file_data": document, "filename": part.get("document_name")}
        return {**others, "type": "file", "file": file}
    if part.get("type") == "input_audio" and isinstance(audio, str):
        audio_format = "wav" if audio.startswith(_WAV_START) else "mp3"
        return {**part, "input_audio": {"data": audio, "format": audio_format}}
    return part


def _parse_text(
    value: Mapping[str, Any], field: str, *, cache_metadata: ProviderMetadata | None
) -> ContentPart:
    return TextPart(read_string(value.get("text"), f"{field}.text"), provider_metadata=cache_metadata)


def _parse_refusal(
    value: Mapping[str, Any], field: str, *, cache_metadata: ProviderMetadata | None
) -> ContentPart:
    return refusal_part(read_string(value.get("refusal"), f"{field}.refusal"), cache_metadata)


def _parse_image(
    value: Mapping[str, Any], field: str, *, cache_metadata: ProviderMetadata | None
) -> ContentPart:
    image, field = value.get("image_url"), f"{field}.image_url"
    if isinstance(image, str):
        image = {"url": image}  # not in OpenAI's API, but widely accepted
    image = read_object(image, field)
    url = _parse_url(image.get("url"), f"{field}.url")
    detail = read_optional_string(image.get("detail"), f"{field}.detail")
    metadata: ProviderMetadata = {
        **(cache_metadata or {}),
        **({"openai": {"imageDetail": detail}} if detail else {}),
    }
    return FilePart(media_type_from_url(url), url, provider_metadata=metadata or None)


def _parse_audio(
    value: Mapping[str, Any], field: str, *, cache_metadata: ProviderMetadata | None
) -> ContentPart:
    field = f"{field}.input_audio"
    audio = read_object(value.get("input_audio"), field)
    data = read_nonempty_string(audio.get("data"), f"{field}.data")
    audio_format = read_nonempty_string(audio.get("format"), f"{field}.format").lower()
    audio_type = _AUDIO_TYPES.get(audio_format, f"audio/{audio_format}")
    return FilePart(audio_type, f"data:{audio_type};base64,{data}", provider_metadata=cache_metadata)


def _parse_file(
    value: Mapping[str, Any], field: str, *, cache_metadata: ProviderMetadata | None
) -> ContentPart:
    field = f"{field}.file"
    file = read_object(value.get("file"), field)
    filename = read_optional_string(file.get("filename"), f"{field}.filename")
    if file.get("file_data") is None and file.get("file_id") is not None:
        raise BadRequest(
            f"{field}.file_id: this provider cannot read files uploaded to another service",
            field=f"{field}.file_id",
            hint="send the file's data as file_data",
        )
    data = read_nonempty_string(file.get("file_data"), f"{field}.file_data")
    guessed_type = _FILE_TYPES.get(filename.rpartition(".")[2].lower(), _UNKNOWN_TYPE)
    if data.startswith(("http://", "https://", "data:")):
        url = _parse_url(data, f"{field}.file_data")
        match = _DATA_URL.match(url)
        file_type = match[1].lower() if match else _FILE_TYPES.get(_extension(url), guessed_type)
    else:
        file_type, url = guessed_type, f"data:{guessed_type};base64,{data}"
    return FilePart(file_type, url, filename or None, provider_metadata=cache_metadata)


def _parse_url(value: Any, field: str) -> str:
    url = read_nonempty_string(value, field)
    if not url.startswith(("http://", "https://")) and not _DATA_URL.match(url):
        raise BadRequest(
            f"{field} must be an http(s) URL or a base64 data: URL, got {describe_value(url)}", field=field
        )
    return url


def _extension(url: str) -> str:
    return url.partition("?")[0].rpartition(".")[2].lower()


_PARSERS: Mapping[str, Callable[..., ContentPart]] = {
    "text": _parse_text,
    "refusal": _parse_refusal,
    "image_url": _parse_image,
    "input_audio": _parse_audio,
    "file": _parse_file,
}


# ---- Reasoning
# The text is in `reasoning_content` or `reasoning`. What must go back to the model unchanged (signatures,
# encrypted reasoning) is in `reasoning_details`, or in LiteLLM's `thinking_blocks`. Source: wire notes on
# providers, §4.6.

REASONING_FIELDS = (
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "thinking_blocks",
    "reasoning_opaque",
)


def with_separate_thinking(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an assistant message whose thinking is not in its content, as Mistral has it."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    thoughts = [part for part in content if isinstance(part, Mapping) and part.get("type") == "thinking"]
    if not thoughts:
        return message
    texts = [as_text(thought.get("thinking")) or "" for thought in thoughts]
    others = [part for part in content if part not in thoughts]
    return {"reasoning_content": "".join(texts), **message, "content": others}


def parse_reasoning(message: Mapping[str, Any], field: str) -> list[ReasoningPart]:
    """Parse the reasoning in order; the text field is used only if the details have no text."""
    if message.keys().isdisjoint(REASONING_FIELDS):
        return []
    reasoning_text = read_optional_string(message.get("reasoning_content"), f"{field}.reasoning_content")
    reasoning_text = reasoning_text or read_optional_string(message.get("reasoning"), f"{field}.reasoning")
    entries = _reasoning_entries(message, field)
    if reasoning_text and not any(map(_entry_text, entries)):
        _insert_text(entries, reasoning_text)
    parts = [_reasoning_part(entry) for entry in entries]
    opaque_reasoning = message.get("reasoning_opaque")
    if opaque_reasoning:
        parts.append(ReasoningPart("", provider_metadata={"openai": {"reasoning_opaque": opaque_reasoning}}))
    return [part for part in parts if part.text or part.provider_metadata]


def _reasoning_entries(message: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    """Return the details, with the parts of one entry joined."""
    details = read_list(message.get("reasoning_details"), f"{field}.reasoning_details")
    blocks = read_list(message.get("thinking_blocks"), f"{field}.thinking_blocks")
    raw_entries = [
        read_object(entry, f"{field}.reasoning_details[{index}]") for index, entry in enumerate(details)
    ] or [
        _entry_from_block(read_object(block, f"{field}.thinking_blocks[{index}]"))
        for index, block in enumerate(blocks)
    ]
    entries: list[dict[str, Any]] = []
    for entry in raw_entries:
        if entries and _is_continuation(entries[-1], entry):
            entries[-1] = {**entries[-1], **entry, "text": _entry_text(entries[-1]) + _entry_text(entry)}
        else:
            entries.append(entry)
    return entries


def _entry_from_block(block: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an Anthropic block to an entry of `reasoning_details`."""
    if block.get("type") == "redacted_thinking":
        return {"type": "reasoning.encrypted", "data": block.get("data")}
    return {"type": "reasoning.text", "text": block.get("thinking"), "signature": block.get("signature")}


def _is_continuation(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    """Return whether the later entry continues the earlier one: some clients keep the parts of a stream.

    A signature ends its entry. Without an index, a text with a signature is complete.
    """
    if (
        not (_is_text_entry(earlier) and _is_text_entry(later))
        or earlier.get("signature")
        or earlier.get("index") != later.get("index")
    ):
        return False
    return isinstance(later.get("index"), int) or not (_entry_text(later) and later.get("signature"))


def _insert_text(entries: list[dict[str, Any]], text: str) -> None:
    """Insert the text into the first text entry, or as a new first entry."""
    for index, entry in enumerate(entries):
        if _is_text_entry(entry):
            entries[index] = {**entry, "text": text}
            return
    entries.insert(0, {"type": "reasoning.text", "text": text})


def _reasoning_part(entry: Mapping[str, Any]) -> ReasoningPart:
    entry_text, signature, data = _entry_text(entry), entry.get("signature"), entry.get("data")
    responses_metadata = metadata_of_entry(entry)
    if responses_metadata is not None:
        return ReasoningPart(entry_text, provider_metadata=responses_metadata)
    anthropic_metadata: dict[str, Any] | None = None
    if _is_anthropic_format(entry):
        if _is_text_entry(entry) and (signature is None or isinstance(signature, str)):
            anthropic_metadata = {"signature": signature} if signature else {}
        elif entry.get("type") == "reasoning.encrypted" and isinstance(data, str) and data:
            anthropic_metadata = {"redactedData": data}
    if anthropic_metadata is None:
        return ReasoningPart(entry_text, provider_metadata={"openai": {"reasoning_details": [dict(entry)]}})
    if anthropic_metadata and isinstance(entry.get("provider"), str):
        anthropic_metadata["provider"] = entry["provider"]
    metadata: ProviderMetadata | None = {"anthropic": anthropic_metadata} if anthropic_metadata else None
    return ReasoningPart(entry_text, provider_metadata=metadata)


def _is_anthropic_format(entry: Mapping[str, Any]) -> bool:
    format_name = entry.get("format")
    return format_name is None or (isinstance(format_name, str) and format_name.startswith("anthropic"))


def _is_text_entry(entry: Mapping[str, Any]) -> bool:
    return entry.get("type") == "reasoning.text"


def _entry_text(entry: Mapping[str, Any]) -> str:
    """Return the entry's text, if it has any."""
    text = entry.get("text") or entry.get("summary")
    return text if isinstance(text, str) else ""
