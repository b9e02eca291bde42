"""Files: what a user says and attaches, as the content of a chat.completions message."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any

from dragoman.messages import FilePart, Part, TextPart

_DATA_URL = re.compile(r"data:[^,]*?(;base64)?,(.*)", re.DOTALL | re.IGNORECASE)
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_TEXT = re.compile(
    r"text/.*|application/(json|xml|ya?ml|x-ya?ml|toml|javascript|sql|x-sh)|.*\+(json|xml|yaml)"
)
_AUDIO = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}


def content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """The texts and files in order: one string when all is text, as older servers want it."""
    written = [
        piece(part)
        for part in parts
        if (isinstance(part, TextPart) and part.text) or isinstance(part, FilePart)
    ]
    if all(part["type"] == "text" for part in written):
        return "\n".join(part["text"] for part in written)
    return written


def piece(part: TextPart | FilePart) -> dict[str, Any]:
    """A text or a file as one part of a content. What has no form of its own becomes text."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    kind, text = media_type(part), inline(part)
    if text is not None:
        return {"type": "text", "text": text}
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": part.url, **_detail(part)}}
    data = packed(part)
    if kind in _AUDIO and data is not None:
        return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO[kind]}}
    if _DATA_URL.fullmatch(part.url) is None:
        return {"type": "text", "text": link(part)}
    return {"type": "file", "file": {"filename": part.filename or "file", "file_data": part.url}}


def media_type(part: FilePart) -> str:
    """The file's media type in lower case, without parameters."""
    return part.media_type.partition(";")[0].strip().lower()


def inline(part: FilePart) -> str | None:
    """A text file that came along as what can be said of it: its name and its text; None for any other."""
    data = _DATA_URL.fullmatch(part.url) if _TEXT.fullmatch(media_type(part)) else None
    text = _decode(data[2], packed=bool(data[1])) if data is not None else None
    return None if text is None else f"{part.filename or 'file'}:\n{text}"


def packed(part: FilePart) -> str | None:
    """The base64 of a file that came along as such; None for any other."""
    data = _DATA_URL.fullmatch(part.url)
    return data[2] if data is not None and data[1] else None


def link(part: FilePart) -> str:
    """A file that is elsewhere, in words."""
    return f"{part.filename or 'file'} ({media_type(part)}): {part.url}"


def _detail(part: FilePart) -> dict[str, Any]:
    detail = (part.provider_metadata or {}).get("openai", {}).get("imageDetail")
    return {"detail": detail} if isinstance(detail, str) else {}


def _decode(data: str, *, packed: bool) -> str | None:
    """The text in a data: URL; None when it is no text after all."""
    raw = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), data.encode(errors="replace"))
    try:
        return (base64.b64decode(raw, validate=True) if packed else raw).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
