"""Content in: the string or the parts of a chat.completions message as texts and files.

Source: wire notes on providers, §4.1 and §10.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from dragoman.errors import BadRequest
from dragoman.messages import FilePart, ProviderMetadata, ReasoningPart, TextPart
from dragoman.wire.openai.client_fields import (
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
from dragoman.wire.sources import media_type_from_url
from dragoman.wire.text_blocks import REFUSAL_METADATA

ContentKind = Literal["text", "refusal", "image_url", "input_audio", "file"]
ContentPart: TypeAlias = TextPart | FilePart

TEXT_KINDS: tuple[ContentKind, ...] = ("text",)
ASSISTANT_KINDS: tuple[ContentKind, ...] = ("text", "refusal")
USER_KINDS: tuple[ContentKind, ...] = ("text", "image_url", "input_audio", "file")

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(;[^,]*)?;base64,", re.IGNORECASE)
_AUDIO_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg"}
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
_COMMON_FIELDS = ("type", "cache_control", "prompt_cache_breakpoint")


def parse_content(
    value: Any, field: str, *, kinds: tuple[ContentKind, ...], ignored: IgnoredFields
) -> list[ContentPart]:
    """The content's pieces in order, without empty texts; `kinds` are the parts that may stand in it."""
    if isinstance(value, str):
        return [TextPart(value)] if value else []
    if not isinstance(value, list):
        raise invalid_field(value, field, expected="a string or a list of parts")
    read = [
        _parse_part(part, f"{field}[{index}]", kinds=kinds, ignored=ignored)
        for index, part in enumerate(value)
    ]
    return [part for part in read if isinstance(part, FilePart) or part.text]


def refusal_part(text: str, cache_metadata: ProviderMetadata | None = None) -> TextPart:
    """What the model said when it refused."""
    return TextPart(text, provider_metadata={**(cache_metadata or {}), **REFUSAL_METADATA})


def _parse_part(
    value: Any, field: str, *, kinds: tuple[ContentKind, ...], ignored: IgnoredFields
) -> ContentPart:
    kind = read_object(value, field).get("type")
    if kind not in kinds:
        wanted = ", ".join(kinds)
        raise BadRequest(
            f"{field}.type must be one of {wanted}, got {describe_value(kind)}", field=f"{field}.type"
        )
    ignored.add_unknown(value, (*_COMMON_FIELDS, kind), field="messages[].content[]")
    return _PARSERS[kind](value, field, mark=read_cache_control(value, field))


def _parse_text(value: Mapping[str, Any], field: str, *, mark: ProviderMetadata | None) -> ContentPart:
    return TextPart(read_string(value.get("text"), f"{field}.text"), provider_metadata=mark)


def _parse_refusal(value: Mapping[str, Any], field: str, *, mark: ProviderMetadata | None) -> ContentPart:
    return refusal_part(read_string(value.get("refusal"), f"{field}.refusal"), mark)


def _parse_image(value: Mapping[str, Any], field: str, *, mark: ProviderMetadata | None) -> ContentPart:
    image, field = value.get("image_url"), f"{field}.image_url"
    if isinstance(image, str):
        image = {"url": image}  # not OpenAI's, but widely taken
    image = read_object(image, field)
    url = _parse_url(image.get("url"), f"{field}.url")
    detail = read_optional_string(image.get("detail"), f"{field}.detail")
    metadata: ProviderMetadata = {**(mark or {}), **({"openai": {"imageDetail": detail}} if detail else {})}
    return FilePart(media_type_from_url(url), url, provider_metadata=metadata or None)


def _parse_audio(value: Mapping[str, Any], field: str, *, mark: ProviderMetadata | None) -> ContentPart:
    field = f"{field}.input_audio"
    audio = read_object(value.get("input_audio"), field)
    data = read_nonempty_string(audio.get("data"), f"{field}.data")
    given = read_nonempty_string(audio.get("format"), f"{field}.format").lower()
    kind = _AUDIO_TYPES.get(given, f"audio/{given}")
    return FilePart(kind, f"data:{kind};base64,{data}", provider_metadata=mark)


def _parse_file(value: Mapping[str, Any], field: str, *, mark: ProviderMetadata | None) -> ContentPart:
    field = f"{field}.file"
    file = read_object(value.get("file"), field)
    called = read_optional_string(file.get("filename"), f"{field}.filename")
    if file.get("file_data") is None and file.get("file_id") is not None:
        raise BadRequest(
            f"{field}.file_id: a file that another service keeps cannot be read from here",
            field=f"{field}.file_id",
            hint="send the file itself as file_data",
        )
    data = read_nonempty_string(file.get("file_data"), f"{field}.file_data")
    guess = _FILE_TYPES.get(called.rpartition(".")[2].lower(), _UNKNOWN_TYPE)
    if data.startswith(("http://", "https://", "data:")):
        url = _parse_url(data, f"{field}.file_data")
        found = _DATA_URL.match(url)
        kind = found[1].lower() if found else _FILE_TYPES.get(_extension(url), guess)
    else:
        kind, url = guess, f"data:{guess};base64,{data}"
    return FilePart(kind, url, called or None, provider_metadata=mark)


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


# ---- Thoughts in: what an assistant message of a chat.completions request says of its reasoning.
# The text comes as `reasoning_content` or `reasoning`. What must go back to the model unchanged (signatures,
# encrypted reasoning) comes in `reasoning_details`, or in LiteLLM's `thinking_blocks`. Source: wire notes on
# providers, §4.6.

REASONING_FIELDS = (
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "thinking_blocks",
    "reasoning_opaque",
)


def parse_reasoning(message: Mapping[str, Any], field: str) -> list[ReasoningPart]:
    """The reasoning in order; the text field is only heard when the details do not tell it already."""
    if message.keys().isdisjoint(REASONING_FIELDS):
        return []
    said = read_optional_string(message.get("reasoning_content"), f"{field}.reasoning_content")
    said = said or read_optional_string(message.get("reasoning"), f"{field}.reasoning")
    entries = _reasoning_entries(message, field)
    if said and not any(map(_entry_text, entries)):
        _insert_text(entries, said)
    thoughts = [_reasoning_part(entry) for entry in entries]
    opaque = message.get("reasoning_opaque")
    if opaque:
        thoughts.append(ReasoningPart("", provider_metadata={"openai": {"reasoning_opaque": opaque}}))
    return [thought for thought in thoughts if thought.text or thought.provider_metadata]


def _reasoning_entries(message: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    """The details with the pieces of one entry put together."""
    details = read_list(message.get("reasoning_details"), f"{field}.reasoning_details")
    blocks = read_list(message.get("thinking_blocks"), f"{field}.thinking_blocks")
    given = [
        read_object(entry, f"{field}.reasoning_details[{index}]") for index, entry in enumerate(details)
    ] or [
        _entry_from_block(read_object(block, f"{field}.thinking_blocks[{index}]"))
        for index, block in enumerate(blocks)
    ]
    entries: list[dict[str, Any]] = []
    for entry in given:
        if entries and _is_continuation(entries[-1], entry):
            entries[-1] = {**entries[-1], **entry, "text": _entry_text(entries[-1]) + _entry_text(entry)}
        else:
            entries.append(entry)
    return entries


def _entry_from_block(block: Mapping[str, Any]) -> dict[str, Any]:
    """An Anthropic block as an entry of `reasoning_details`."""
    if block.get("type") == "redacted_thinking":
        return {"type": "reasoning.encrypted", "data": block.get("data")}
    return {"type": "reasoning.text", "text": block.get("thinking"), "signature": block.get("signature")}


def _is_continuation(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    """Whether the new entry is a piece of the old one: a client kept the pieces of a stream as they came.

    A signature ends its entry. Without an index, a text that has a signature beside it is whole.
    """
    if (
        not (_is_text_entry(earlier) and _is_text_entry(later))
        or earlier.get("signature")
        or earlier.get("index") != later.get("index")
    ):
        return False
    return isinstance(later.get("index"), int) or not (_entry_text(later) and later.get("signature"))


def _insert_text(entries: list[dict[str, Any]], text: str) -> None:
    """Put the text where it is missing: into the first entry that is there for one, else in front."""
    for place, entry in enumerate(entries):
        if _is_text_entry(entry):
            entries[place] = {**entry, "text": text}
            return
    entries.insert(0, {"type": "reasoning.text", "text": text})


def _reasoning_part(entry: Mapping[str, Any]) -> ReasoningPart:
    told, signature, data = _entry_text(entry), entry.get("signature"), entry.get("data")
    kept: dict[str, Any] | None = None
    if _is_anthropic_format(entry):
        if _is_text_entry(entry) and (signature is None or isinstance(signature, str)):
            kept = {"signature": signature} if signature else {}
        elif entry.get("type") == "reasoning.encrypted" and isinstance(data, str) and data:
            kept = {"redactedData": data}
    if kept is None:
        return ReasoningPart(told, provider_metadata={"openai": {"reasoning_details": [dict(entry)]}})
    if kept and isinstance(entry.get("provider"), str):
        kept["provider"] = entry["provider"]
    metadata: ProviderMetadata | None = {"anthropic": kept} if kept else None
    return ReasoningPart(told, provider_metadata=metadata)


def _is_anthropic_format(entry: Mapping[str, Any]) -> bool:
    form = entry.get("format")
    return form is None or (isinstance(form, str) and form.startswith("anthropic"))


def _is_text_entry(entry: Mapping[str, Any]) -> bool:
    return entry.get("type") == "reasoning.text"


def _entry_text(entry: Mapping[str, Any]) -> str:
    """The entry's words, if it has any."""
    told = entry.get("text") or entry.get("summary")
    return told if isinstance(told, str) else ""
