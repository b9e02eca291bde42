"""Files as the blocks of an Anthropic message: images and documents, by their data or by URL.

Source: wire notes on providers, §6.2 and §10.1. What Anthropic cannot take is None; `refuse` says so.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from dragoman.errors import BadRequest
from dragoman.messages import FilePart
from dragoman.wire.anthropic_metadata import FAMILY, cache_mark

_DATA_URL = re.compile(r"data:([^,;]*)[^,]*?(;base64)?,(.*)", re.DOTALL | re.IGNORECASE)
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")
_PDF_URL = re.compile(r"https?://[^/?#]*/[^?#]*\.pdf(?:[?#].*)?", re.DOTALL | re.IGNORECASE)
_IMAGES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
_PDF = "application/pdf"
_VAGUE = ("", "application/octet-stream", "image/*", "*/*")
_TEXT = re.compile(
    r"text/.*|application/(json|xml|ya?ml|x-ya?ml|toml|javascript|sql|x-sh)|.*\+(json|xml|yaml)"
)
_EXTRAS = ("title", "context", "citations", "transformations")


def write_file(part: FilePart) -> dict[str, Any] | None:
    """The block, with its cache mark; None when Anthropic takes no such file."""
    block = _block(part)
    if block is None:
        return None
    own = (part.provider_metadata or {}).get(FAMILY, {})
    extras = {name: own[name] for name in _EXTRAS if own.get(name) is not None}
    if part.filename and block["type"] == "document":
        extras.setdefault("title", part.filename)
    return {**block, **extras, **cache_mark(part.provider_metadata)}


def refuse(part: FilePart, field: str) -> BadRequest:
    """What to tell whoever sent a file that Anthropic does not take."""
    return BadRequest(
        f"{field}: Anthropic's models take no file of the type {part.media_type!r:.80}",
        field=field,
        hint="they take PNG, JPEG, GIF and WebP images, PDF by data or URL, and text by data",
    )


def _block(part: FilePart) -> dict[str, Any] | None:
    kind = part.media_type.partition(";")[0].strip().lower()
    data = _DATA_URL.fullmatch(part.url)
    if data is None:
        return _linked(kind, part.url)
    if kind in _VAGUE:
        kind = data[1].strip().lower()
    kind = "image/jpeg" if kind == "image/jpg" else kind
    packed, text = bool(data[2]), data[3]
    if kind in _IMAGES or kind == _PDF:
        source = {"type": "base64", "media_type": kind, "data": text if packed else _pack(text)}
        return {"type": "document" if kind == _PDF else "image", "source": source}
    if not _TEXT.fullmatch(kind):
        return None
    read = _read(text, packed=packed)
    if not read:
        return None
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": read}}


def _linked(kind: str, url: str) -> dict[str, Any] | None:
    if not url.startswith(("http://", "https://")):
        return None
    if kind in _VAGUE and kind != "image/*" and _PDF_URL.fullmatch(url):
        kind = _PDF
    source: Mapping[str, str] = {"type": "url", "url": url}
    if kind == _PDF:
        return {"type": "document", "source": source}
    return {"type": "image", "source": source} if kind.startswith("image/") else None


def _pack(text: str) -> str:
    return base64.b64encode(_unescape(text)).decode()


def _read(text: str, *, packed: bool) -> str | None:
    """The text in a data: URL; None when it is no text after all."""
    raw = _unescape(text)
    try:
        return (base64.b64decode(raw, validate=True) if packed else raw).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _unescape(text: str) -> bytes:
    """What a data: URL holds where it is not packed: bytes, some of them as `%` and two digits."""
    return _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), text.encode())
