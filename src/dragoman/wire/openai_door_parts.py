"""Content in: the string or the parts of a chat.completions message as texts and files.

Source: wire notes on providers, §4.1 and §10.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from dragoman.errors import BadRequest
from dragoman.messages import FilePart, ProviderMetadata, TextPart
from dragoman.wire.blocks import REFUSAL
from dragoman.wire.openai_door_fields import Ignored, cache_mark, mapping, name, show, string, text, wrong
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
