"""Read and write JSON where msgspec's defaults do not fit.

Providers send JSON that is almost valid: with NaN, control characters, lone surrogates or invalid
UTF-8. Requests contain mappings that are not dicts, and must give the same bytes every time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from dragoman.json_decoding import DECODE_ERRORS, decode_json, replace_surrogates
from dragoman.large_json import LARGE, SMALL, encode_large, measure

MAX_LENIENT = 4_000_000  # bytes that are parsed by a parser that cannot work in pieces
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


BodyEncoder: TypeAlias = Callable[[Any], bytes]


def text_start(raw: bytes) -> bytes:
    """Return what follows the byte order mark and the white space at the beginning of a text.

    Nothing while there may be no more than these, or a part of them.
    """
    return b"" if BYTE_ORDER_MARK.startswith(raw) else raw.removeprefix(BYTE_ORDER_MARK).lstrip()


def is_part_of_mark(raw: bytes) -> bool:
    """Return whether a text that begins so may begin with a byte order mark whose rest is still to come."""
    return 0 < len(raw) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(raw)


def parse_lenient_json(payload: bytes, *, keeps_halves: bool = False) -> Any:
    """Parse JSON that may have NaN, control characters, lone surrogates or invalid UTF-8; else ValueError.

    Surrogates become U+FFFD, so that what is read can be stored. With `keeps_halves` they stay: for frames of
    a stream, where the other half may follow in the next frame.
    """
    if len(payload) > LARGE:
        try:
            return decode_json(payload.removeprefix(BYTE_ORDER_MARK))
        except DECODE_ERRORS as error:
            if len(payload) > MAX_LENIENT:
                raise ValueError(str(error)) from None
    try:
        value = json.loads(payload.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace"), strict=False)
        return value if keeps_halves or b"\\u" not in payload else replace_surrogates(value)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def drop_non_finite(value: Any) -> Any:
    """Return the value without members and items that are NaN or infinite: as JSON they would be null.

    Not recursive: a provider chooses the depth of the value.
    """
    root = [value]
    pending: list[tuple[Any, Any, Any]] = [(root, 0, value)]
    while pending:
        parent, key, item = pending.pop()
        if isinstance(item, list):
            items = [each for each in item if not is_non_finite(each)]
            pending += [(items, index, each) for index, each in enumerate(items)]
            parent[key] = items
        elif isinstance(item, Mapping):
            members = {name: each for name, each in item.items() if not is_non_finite(each)}
            pending += [(members, name, each) for name, each in members.items()]
            parent[key] = members
    return root[0]


def is_non_finite(value: Any) -> bool:
    """Return whether the value is NaN or infinite."""
    return isinstance(value, float) and not math.isfinite(value)


def as_text(value: Any) -> str | None:
    """Convert to text: numbers to digits, lists of text parts joined; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(filter(None, map(as_text, value))) or None
    if isinstance(value, Mapping):
        return as_text(value.get("text") or value.get("content") or value.get("summary"))
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def encode_json(value: Any) -> str:
    """Encode the value as JSON text, the same for the same value."""
    return encode_body(value).decode()


def encode_body(value: Any) -> bytes:
    """Encode the body of a request; mappings become objects, and lone surrogates U+FFFD."""
    try:
        return msgspec.json.encode(value, enc_hook=mapping_enc_hook)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, enc_hook=mapping_enc_hook)
        return msgspec.json.encode(replace_surrogates(plain))


def encode_document(value: Any) -> bytes:
    """Encode JSON of any size: in pieces if it is large."""
    return msgspec.json.encode(value) if measure(value) <= SMALL else encode_large(value)


def encode_once(text: str) -> str | msgspec.Raw:
    """Return a long text as JSON already: for one that several documents have."""
    return text if len(text) <= SMALL else msgspec.Raw(encode_large(text))


def encode_large_body(value: Any) -> bytes:
    """Encode the body of a request in pieces, as `encode_body` does: in a thread, for megabytes."""
    try:
        return encode_large(value, enc_hook=mapping_enc_hook)
    except UnicodeEncodeError:
        return encode_large(replace_surrogates(value), enc_hook=mapping_enc_hook)


def mapping_enc_hook(value: Any) -> Any:
    """Return an `enc_hook` for msgspec that encodes any mapping as an object."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")


def compact_json(value: Any) -> str:
    """Encode the value without white space; unlike msgspec, this accepts lone surrogates."""
    if measure(value) > SMALL:
        try:
            return encode_large(value).decode()
        except (UnicodeEncodeError, OverflowError):  # a lone surrogate, or an integer beyond 64 bits
            pass
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
