"""Files in results: the bytes of images, sounds and PDFs become MCP content blocks.

A block stays where the bytes were, so that a result keeps its shape: `{"chart": b"\\x89PNG…"}` becomes
`{"chart": {"type": "image", "data": base64, "mimeType": "image/png"}}`. A result that is nothing but a file
becomes `{"content": [block]}`. `wire/multimodal_outputs.py` reads both. Other bytes are base64.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any

import msgspec

from dragoman.wire.files import detect_media_type

SEARCHED = 262_144  # bytes that are searched in one call, which blocks the interpreter
LONGEST_START = 16
BYTES_TYPES = (bytes, bytearray, memoryview)
# The beginnings of base64 for the types that `detect_media_type` recognises.
_ENCODED_FILE = re.compile(
    rb'"(?:iVBORw0KGgo|/9j/|R0lGOD|UklGR|SUQz|//[I-Po-v]|T2dnUw|ZkxhQ|JVBERi)[A-Za-z0-9+/]'
)


def may_contain_files(encoded: bytes) -> bool:
    """Return whether encoded JSON may have been made from the bytes of a file."""
    return any(
        _ENCODED_FILE.search(encoded, start, start + SEARCHED + LONGEST_START) is not None
        for start in range(0, len(encoded), SEARCHED)
    )


def with_file_blocks(value: Any, enc_hook: Callable[[Any], Any]) -> Any:
    """Return a result as JSON types, with a content block for each file in it."""
    if isinstance(value, BYTES_TYPES):
        block = file_block(bytes(value))
        return encode_bytes(value) if block is None else {"content": [block]}
    plain = msgspec.to_builtins(value, builtin_types=(bytes, bytearray), enc_hook=enc_hook, str_keys=True)
    return _replace_bytes(plain)


def file_block(data: bytes) -> dict[str, Any] | None:
    """Return the content block of an image, sound or PDF; None for other bytes."""
    media_type = detect_media_type(data)
    if media_type is None:
        return None
    main_type, encoded = media_type.partition("/")[0], base64.b64encode(data).decode()
    if main_type in ("image", "audio"):
        return {"type": main_type, "data": encoded, "mimeType": media_type}
    return {"type": "resource", "resource": {"mimeType": media_type, "blob": encoded}}


def is_drawable(value: Any) -> bool:
    """Return whether an object renders itself as PNG for notebooks, as Pillow's images do."""
    return callable(getattr(type(value), "_repr_png_", None))


def render_png(value: Any) -> bytes | None:
    """Return the PNG that a drawable object renders; None if it has none at the moment."""
    rendered = value._repr_png_()
    if isinstance(rendered, str):
        try:
            rendered = base64.b64decode(rendered, validate=True)
        except binascii.Error:
            return None
    return rendered if isinstance(rendered, bytes) and detect_media_type(rendered) else None


def encode_bytes(data: Any) -> str:
    """Return bytes as base64 text, the form of bytes of any other type."""
    return base64.b64encode(data).decode()


def _replace_bytes(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _replace_bytes(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_bytes(item) for item in value]
    if isinstance(value, BYTES_TYPES):
        return file_block(bytes(value)) or encode_bytes(value)
    return value
