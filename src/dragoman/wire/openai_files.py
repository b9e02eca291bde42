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
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else _file(part)
        for part in parts
        if (isinstance(part, TextPart) and part.text) or isinstance(part, FilePart)
    ]
    if all(part["type"] == "text" for part in written):
        return "\n".join(part["text"] for part in written)
    return written


def _file(part: FilePart) -> dict[str, Any]:
    kind = part.media_type.partition(";")[0].strip().lower()
    name = part.filename or "file"
    data = _DATA_URL.fullmatch(part.url)
    if _TEXT.fullmatch(kind) and data is not None:
        text = _decode(data[2], packed=bool(data[1]))
        if text is not None:
            return {"type": "text", "text": f"{name}:\n{text}"}
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": part.url}}
    if kind in _AUDIO and data is not None and data[1]:
        return {"type": "input_audio", "input_audio": {"data": data[2], "format": _AUDIO[kind]}}
    if data is None:
        return {"type": "text", "text": f"{name} ({kind}): {part.url}"}
    return {"type": "file", "file": {"filename": name, "file_data": part.url}}


def _decode(data: str, *, packed: bool) -> str | None:
    """The text in a data: URL; None when it is no text after all."""
    raw = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), data.encode(errors="replace"))
    try:
        return (base64.b64decode(raw, validate=True) if packed else raw).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
