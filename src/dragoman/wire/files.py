"""Files in messages: media types, and the data of data: URLs."""

from __future__ import annotations

import base64
import binascii
import re

from dragoman.messages import FilePart

_DATA_URL = re.compile(r"data:[^,]*?(;base64)?,(.*)", re.DOTALL | re.IGNORECASE)
_PERCENT_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_TEXT_TYPES = re.compile(
    r"text/.*|application/(json|xml|ya?ml|x-ya?ml|toml|javascript|sql|x-sh)|.*\+(json|xml|yaml)"
)


def base_media_type(part: FilePart) -> str:
    """The file's media type in lower case, without parameters."""
    return part.media_type.partition(";")[0].strip().lower()


def inline_text(part: FilePart) -> str | None:
    """A text file from a data: URL as its name and text; None for any other file."""
    data = _DATA_URL.fullmatch(part.url) if _TEXT_TYPES.fullmatch(base_media_type(part)) else None
    text = _decode_data_url(data[2], is_base64=bool(data[1])) if data is not None else None
    return None if text is None else f"{part.filename or 'file'}:\n{text}"


def base64_data(part: FilePart) -> str | None:
    """The base64 data of a file from a data: URL; None for any other file."""
    data = _DATA_URL.fullmatch(part.url)
    return data[2] if data is not None and data[1] else None


def file_reference(part: FilePart) -> str:
    """A text that refers to a file by name, type and URL."""
    return f"{part.filename or 'file'} ({base_media_type(part)}): {part.url}"


def _decode_data_url(data: str, *, is_base64: bool) -> str | None:
    """Decode the text of a data: URL; None if it is not text."""
    raw = _PERCENT_ESCAPE.sub(lambda escape: bytes([int(escape[1], 16)]), data.encode(errors="replace"))
    try:
        return (base64.b64decode(raw, validate=True) if is_base64 else raw).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
