"""Files in messages: media types, and the data of data: URLs."""

from __future__ import annotations

import base64
import binascii
import re

from dragoman.messages import FilePart

MAX_IMAGE_BYTES = 5_000_000  # bytes; the limit of the strictest provider

_DATA_URL = re.compile(r"data:[^,]*?(;base64)?,(.*)", re.DOTALL | re.IGNORECASE)
_PERCENT_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_SIGNATURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"RIFF.{4}WAVE", re.DOTALL), "audio/wav"),
    (re.compile(rb"ID3[\x02-\x04][\x00-\x0f]"), "audio/mpeg"),
    (re.compile(rb"\xff[\xf2\xf3\xfa\xfb][\x10-\xef]"), "audio/mpeg"),
    (re.compile(rb"\xff[\xf0\xf1\xf8\xf9][\x00-\x33\x40-\x73\x80-\xb3\xc0-\xf3]"), "audio/aac"),
    (re.compile(rb"OggS\x00"), "audio/ogg"),
    (re.compile(rb"fLaC[\x00\x80]"), "audio/flac"),
    (re.compile(rb"%PDF-"), "application/pdf"),
)
_TEXT_TYPES = re.compile(
    r"text/.*|application/(json|xml|ya?ml|x-ya?ml|toml|javascript|sql|x-sh)|.*\+(json|xml|yaml)"
)


def detect_media_type(data: bytes) -> str | None:
    """Return the type of an image, sound or PDF by its first bytes; None for anything else."""
    start = data[:16]
    return next((media_type for signature, media_type in _SIGNATURES if signature.match(start)), None)


def base_media_type(part: FilePart) -> str:
    """Return the file's media type in lower case, without parameters."""
    return part.media_type.partition(";")[0].strip().lower()


def inline_text(part: FilePart) -> str | None:
    """Return a text file from a data: URL as its name and text; None for any other file."""
    data = _DATA_URL.fullmatch(part.url) if _TEXT_TYPES.fullmatch(base_media_type(part)) else None
    text = _decode_data_url(data[2], is_base64=bool(data[1])) if data is not None else None
    return None if text is None else f"{part.filename or 'file'}:\n{text}"


def base64_data(part: FilePart) -> str | None:
    """Return the base64 data of a file from a data: URL; None for any other file."""
    data = _DATA_URL.fullmatch(part.url)
    return data[2] if data is not None and data[1] else None


def file_note(part: FilePart) -> str:
    """Return a text in place of a file that a model cannot read: its type, and its size or URL."""
    name = part.filename or "a file"
    if part.url[:5].lower() != "data:":
        return f"[{name} of the type {base_media_type(part)} at {part.url}]"
    data = base64_data(part)
    size = len(part.url) - part.url.find(",") - 1 if data is None else base64_size(data)
    return f"[{name} of the type {base_media_type(part)}, {size_text(size)}]"


def base64_size(data: str) -> int:
    """Return the number of bytes in base64."""
    return len(data) * 3 // 4 - data[-2:].count("=")


def size_text(size: int) -> str:
    """Return a number of bytes for people: `640 bytes`, `12 kB`, `1.5 MB`."""
    if size < 1000:
        return "1 byte" if size == 1 else f"{size} bytes"
    return f"{size / 1000:.0f} kB" if size < 999_500 else f"{size / 1_000_000:.1f} MB"


def file_reference(part: FilePart) -> str:
    """Return a text that refers to a file by name, type and URL."""
    return f"{part.filename or 'file'} ({base_media_type(part)}): {part.url}"


def _decode_data_url(data: str, *, is_base64: bool) -> str | None:
    """Decode the text of a data: URL; None if it is not text."""
    raw = _PERCENT_ESCAPE.sub(lambda escape: bytes([int(escape[1], 16)]), data.encode(errors="replace"))
    try:
        return (base64.b64decode(raw, validate=True) if is_base64 else raw).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
