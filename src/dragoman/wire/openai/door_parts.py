"""Content in: the string or the parts of a chat.completions message as texts and files.

Source: wire notes on providers, §4.1 and §10.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from dragoman.errors import BadRequest
from dragoman.messages import FilePart, ProviderMetadata, ReasoningPart, TextPart
from dragoman.wire.blocks import REFUSAL
from dragoman.wire.openai.door_fields import (
    Ignored,
    cache_mark,
    listing,
    mapping,
    name,
    show,
    string,
    text,
    wrong,
)
from dragoman.wire.sources import media_type

Kind = Literal["text", "refusal", "image_url", "input_audio", "file"]
Said: TypeAlias = TextPart | FilePart

TEXTS: tuple[Kind, ...] = ("text",)
SPOKEN: tuple[Kind, ...] = ("text", "refusal")
ANY: tuple[Kind, ...] = ("text", "image_url", "input_audio", "file")

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(;[^,]*)?;base64,", re.IGNORECASE)
_AUDIO = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_FILES = {
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
_UNKNOWN = "application/octet-stream"
_MARKS = ("type", "cache_control", "prompt_cache_breakpoint")


def read_content(value: Any, field: str, *, kinds: tuple[Kind, ...], ignored: Ignored) -> list[Said]:
    """The content's pieces in order, without empty texts; `kinds` are the parts that may stand in it."""
    if isinstance(value, str):
        return [TextPart(value)] if value else []
    if not isinstance(value, list):
        raise wrong(value, field, wanted="a string or a list of parts")
    read = [
        _part(part, f"{field}[{index}]", kinds=kinds, ignored=ignored) for index, part in enumerate(value)
    ]
    return [part for part in read if isinstance(part, FilePart) or part.text]


def refusal(said: str, mark: ProviderMetadata | None = None) -> TextPart:
    """What the model said when it refused."""
    return TextPart(said, provider_metadata={**(mark or {}), **REFUSAL})


def _part(value: Any, field: str, *, kinds: tuple[Kind, ...], ignored: Ignored) -> Said:
    kind = mapping(value, field).get("type")
    if kind not in kinds:
        wanted = ", ".join(kinds)
        raise BadRequest(f"{field}.type must be one of {wanted}, got {show(kind)}", field=f"{field}.type")
    ignored.rest(value, (*_MARKS, kind), field="messages[].content[]")
    return _READERS[kind](value, field, mark=cache_mark(value, field))


def _text(value: Mapping[str, Any], field: str, *, mark: ProviderMetadata | None) -> Said:
    return TextPart(string(value.get("text"), f"{field}.text"), provider_metadata=mark)


def _refusal(value: Mapping[str, Any], field: str, *, mark: ProviderMetadata | None) -> Said:
    return refusal(string(value.get("refusal"), f"{field}.refusal"), mark)


def _image(value: Mapping[str, Any], field: str, *, mark: ProviderMetadata | None) -> Said:
    image, field = value.get("image_url"), f"{field}.image_url"
    if isinstance(image, str):
        image = {"url": image}  # not OpenAI's, but widely taken
    image = mapping(image, field)
    url = _url(image.get("url"), f"{field}.url")
    detail = text(image.get("detail"), f"{field}.detail")
    metadata: ProviderMetadata = {**(mark or {}), **({"openai": {"imageDetail": detail}} if detail else {})}
    return FilePart(media_type(url), url, provider_metadata=metadata or None)


def _audio(value: Mapping[str, Any], field: str, *, mark: ProviderMetadata | None) -> Said:
    field = f"{field}.input_audio"
    audio = mapping(value.get("input_audio"), field)
    data = name(audio.get("data"), f"{field}.data")
    given = name(audio.get("format"), f"{field}.format").lower()
    kind = _AUDIO.get(given, f"audio/{given}")
    return FilePart(kind, f"data:{kind};base64,{data}", provider_metadata=mark)


def _file(value: Mapping[str, Any], field: str, *, mark: ProviderMetadata | None) -> Said:
    field = f"{field}.file"
    file = mapping(value.get("file"), field)
    called = text(file.get("filename"), f"{field}.filename")
    if file.get("file_data") is None and file.get("file_id") is not None:
        raise BadRequest(
            f"{field}.file_id: a file that another service keeps cannot be read from here",
            field=f"{field}.file_id",
            hint="send the file itself as file_data",
        )
    data = name(file.get("file_data"), f"{field}.file_data")
    guess = _FILES.get(called.rpartition(".")[2].lower(), _UNKNOWN)
    if data.startswith(("http://", "https://", "data:")):
        url = _url(data, f"{field}.file_data")
        found = _DATA_URL.match(url)
        kind = found[1].lower() if found else _FILES.get(_ending(url), guess)
    else:
        kind, url = guess, f"data:{guess};base64,{data}"
    return FilePart(kind, url, called or None, provider_metadata=mark)


def _url(value: Any, field: str) -> str:
    url = name(value, field)
    if not url.startswith(("http://", "https://")) and not _DATA_URL.match(url):
        raise BadRequest(
            f"{field} must be an http(s) URL or a base64 data: URL, got {show(url)}", field=field
        )
    return url


def _ending(url: str) -> str:
    return url.partition("?")[0].rpartition(".")[2].lower()


_READERS: Mapping[str, Callable[..., Said]] = {
    "text": _text,
    "refusal": _refusal,
    "image_url": _image,
    "input_audio": _audio,
    "file": _file,
}


# ---- Thoughts in: what an assistant message of a chat.completions request says of its reasoning.
# The text comes as `reasoning_content` or `reasoning`. What must go back to the model unchanged (signatures,
# encrypted reasoning) comes in `reasoning_details`, or in LiteLLM's `thinking_blocks`. Source: wire notes on
# providers, §4.6.

FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "reasoning_opaque")


def read_thoughts(message: Mapping[str, Any], field: str) -> list[ReasoningPart]:
    """The reasoning in order; the text field is only heard when the details do not tell it already."""
    if message.keys().isdisjoint(FIELDS):
        return []
    said = text(message.get("reasoning_content"), f"{field}.reasoning_content")
    said = said or text(message.get("reasoning"), f"{field}.reasoning")
    entries = _entries(message, field)
    if said and not any(map(_told, entries)):
        _fill(entries, said)
    thoughts = [_thought(entry) for entry in entries]
    opaque = message.get("reasoning_opaque")
    if opaque:
        thoughts.append(ReasoningPart("", provider_metadata={"openai": {"reasoning_opaque": opaque}}))
    return [thought for thought in thoughts if thought.text or thought.provider_metadata]


def _entries(message: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    """The details with the pieces of one entry put together."""
    details = listing(message.get("reasoning_details"), f"{field}.reasoning_details")
    blocks = listing(message.get("thinking_blocks"), f"{field}.thinking_blocks")
    given = [
        mapping(entry, f"{field}.reasoning_details[{index}]") for index, entry in enumerate(details)
    ] or [_detail(mapping(block, f"{field}.thinking_blocks[{index}]")) for index, block in enumerate(blocks)]
    entries: list[dict[str, Any]] = []
    for entry in given:
        if entries and _goes_on(entries[-1], entry):
            entries[-1] = {**entries[-1], **entry, "text": _told(entries[-1]) + _told(entry)}
        else:
            entries.append(entry)
    return entries


def _detail(block: Mapping[str, Any]) -> dict[str, Any]:
    """An Anthropic block as an entry of `reasoning_details`."""
    if block.get("type") == "redacted_thinking":
        return {"type": "reasoning.encrypted", "data": block.get("data")}
    return {"type": "reasoning.text", "text": block.get("thinking"), "signature": block.get("signature")}


def _goes_on(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether the new entry is a piece of the old one: a client kept the pieces of a stream as they came.

    A signature ends its entry. Without an index, a text that has a signature beside it is whole.
    """
    if not (_is_text(old) and _is_text(new)) or old.get("signature") or old.get("index") != new.get("index"):
        return False
    return isinstance(new.get("index"), int) or not (_told(new) and new.get("signature"))


def _fill(entries: list[dict[str, Any]], said: str) -> None:
    """Put the text where it is missing: into the first entry that is there for one, else in front."""
    for place, entry in enumerate(entries):
        if _is_text(entry):
            entries[place] = {**entry, "text": said}
            return
    entries.insert(0, {"type": "reasoning.text", "text": said})


def _thought(entry: Mapping[str, Any]) -> ReasoningPart:
    told, signature, data = _told(entry), entry.get("signature"), entry.get("data")
    kept: dict[str, Any] | None = None
    if _is_anthropic(entry):
        if _is_text(entry) and (signature is None or isinstance(signature, str)):
            kept = {"signature": signature} if signature else {}
        elif entry.get("type") == "reasoning.encrypted" and isinstance(data, str) and data:
            kept = {"redactedData": data}
    if kept is None:
        return ReasoningPart(told, provider_metadata={"openai": {"reasoning_details": [dict(entry)]}})
    if kept and isinstance(entry.get("provider"), str):
        kept["provider"] = entry["provider"]
    metadata: ProviderMetadata | None = {"anthropic": kept} if kept else None
    return ReasoningPart(told, provider_metadata=metadata)


def _is_anthropic(entry: Mapping[str, Any]) -> bool:
    form = entry.get("format")
    return form is None or (isinstance(form, str) and form.startswith("anthropic"))


def _is_text(entry: Mapping[str, Any]) -> bool:
    return entry.get("type") == "reasoning.text"


def _told(entry: Mapping[str, Any]) -> str:
    """The entry's words, if it has any."""
    told = entry.get("text") or entry.get("summary")
    return told if isinstance(told, str) else ""
