"""JSON of other programs, decoded so that every text in it can be stored and sent on.

Clients, models, MCP servers and spokes send lone surrogates: half of an emoji that was cut between two
UTF-16 units, usually as an escape such as `\\ud83d`. Such a text has no UTF-8 form, and msgspec does not
decode it. Every decoder of outside data uses `decode_json`, which replaces the half by U+FFFD; no other code
needs to handle it. Numbers keep their value: NaN, infinities and numbers too large for a float are errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar, overload

import msgspec

from dragoman.large_json import LARGE, SMALL, decode_large, split_fields

T = TypeVar("T")

DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What `decode_json` raises for text that is not JSON, or not of the decoder's type."""
_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
# It begins with what is rare, so that the search skips to it.
_LONE_ESCAPE = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!%s)|[c-fC-F][0-9a-fA-F]{2}(?<!%s%s))" % (_LOW, _HIGH, _LOW)
)
_ESCAPED_BACKSLASH, _HIDDEN_BACKSLASH = b"\\\\", b"\0\0"
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_any_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


MAX_DIGITS = 18


def parse_digits(text: str) -> int | None:
    """Return the number that 1 to 18 ASCII digits stand for; None for any other text.

    `str.isdigit` accepts `²`, which `int` refuses, and `int` refuses thousands of digits.
    """
    return int(text) if len(text) <= MAX_DIGITS and text.isascii() and text.isdigit() else None


@overload
def decode_json(raw: bytes | str) -> Any: ...
@overload
def decode_json(raw: bytes | str, decoder: msgspec.json.Decoder[T]) -> T: ...
def decode_json(raw: bytes | str, decoder: msgspec.json.Decoder[Any] = _any_decoder) -> Any:
    """Decode JSON, with U+FFFD for every lone surrogate. Raises one of `DECODE_ERRORS`."""
    if len(raw) <= LARGE:
        try:
            return decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeError):
            if len(raw) <= SMALL:
                return _decode(raw, decoder)
    if decoder is not _any_decoder:
        return _decode(raw, decoder)
    data = raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogatepass")
    return decode_large(data, _decode)


def decode_typed(raw: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode JSON as `decode_json` does, also megabytes; the decoder's type contains no `Raw`."""
    if len(raw) <= LARGE:
        return decode_json(raw, decoder)
    return msgspec.convert(decode_large(raw, _decode), decoder.type)


def decode_fields(raw: bytes) -> dict[str, msgspec.Raw]:
    """Split a JSON object into its fields, each with its bytes. Raises one of `DECODE_ERRORS`."""
    return split_fields(raw, _decode) if len(raw) > LARGE else _decode(raw, _fields_decoder)


def _decode(raw: bytes | str, decoder: msgspec.json.Decoder[Any] = _any_decoder) -> Any:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeError):
        mended = mend_json(raw)
        if mended is None:
            raise
    return decoder.decode(mended)


def mend_json(raw: bytes | str) -> bytes | None:
    """Return the JSON text with U+FFFD for every lone surrogate; None if it has none, or is not UTF-8."""
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None
    data = well_formed(text).encode()
    if _SURROGATE_ESCAPE.search(data) and b"\0" not in data:  # a JSON text contains no NUL
        hidden = data.replace(_ESCAPED_BACKSLASH, _HIDDEN_BACKSLASH)
        mended = _LONE_ESCAPE.sub(rb"\\ufffd", hidden)
        data = mended.replace(_HIDDEN_BACKSLASH, _ESCAPED_BACKSLASH)
    return None if data == raw else data


def well_formed(text: str) -> str:
    """Return the text with U+FFFD for every lone surrogate, and surrogate pairs joined."""
    if is_well_formed(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_well_formed(text: str) -> bool:
    """Return whether the text can be encoded as UTF-8: whether it contains no surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace_surrogates(value: Any) -> Any:
    """Return a decoded JSON value with `well_formed` texts."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, list | tuple):
        return [replace_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    return value


def prune_depth(data: bytes, max_depth: int) -> bytes:
    """Replace what is nested deeper with null in a JSON text; one that ends in there is cut off before it."""
    parts: list[bytes] = []
    depth = start = 0
    for token in _TOKEN.finditer(data):
        sign = token[0]
        if sign in (b"[", b"{"):
            depth += 1
            if depth == max_depth + 1:
                parts.append(data[start : token.start()])
        elif sign in (b"]", b"}"):
            if depth == max_depth + 1:
                parts.append(b"null")
                start = token.end()
            depth -= 1
    if depth <= max_depth:
        parts.append(data[start:])
    return b"".join(parts)


def is_deeper_than(value: Any, limit: int) -> bool:
    """Return whether a JSON value is nested deeper. Not recursive: the value may overflow the stack."""
    level = [value]
    for _ in range(limit):
        level = [item for each in level for item in children(each)]
        if not level:
            return False
    return True


def children(value: Any) -> Iterator[Any]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (item for item in items if isinstance(item, (dict, list)))
