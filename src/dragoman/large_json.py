"""JSON of megabytes, decoded and encoded in pieces; and how large a value is.

One call of a C function holds the interpreter, and so the event loop, however many threads there are: 16 MB
of text with escapes take `msgspec` 100 ms. The functions here make many short calls instead. Run them in a
thread (see `offload.py`): all calls together take longer than one would.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

SMALL = 262_144
"""Bytes of a value that the event loop works on itself."""
LARGE = 1_000_000
"""Bytes of JSON up to which one call is short enough."""
FEW_FIELDS = 16_384
"""Bytes of JSON that cannot have many fields."""
VALUE = 100
"""Bytes that a value costs as much time as."""
MAX_WIDE_TEXT = 16_000_000
"""Bytes of memory of one text with characters that take two or four each: no model reads as much."""
MAX_CONTAINERS = 500_000
"""Objects and lists in JSON of megabytes: each of them takes time when the text is cut into pieces."""
_MANY = 2_000  # items of a list that one call encodes
_MAX_SPLITS = 32  # levels of a structure that are cut: each is read once more
_WINDOW = 131_072  # bytes that one call reads
_WHOLE = 4_000_000  # bytes without long strings that one call decodes: cutting them takes many times as long
_SHORT = 64  # bytes of a string that is left in its place
_MARKED = b"~\\"
_MAX_KEY = 1_000  # bytes before the value of a field
_KEY = re.compile(rb'\s*("(?:[^"\\]|\\.)*")\s*:\s*', re.DOTALL)
_BRACKET = re.compile(rb"[][{}]")
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]..$", re.DOTALL)
_SPACES = b" \t\r\n"
_encoder = msgspec.json.Encoder()
_SCALARS = frozenset({int, float, bool, type(None)})
_CHANGEABLE = frozenset({str, list, dict})  # by the texts that marks stand for


def decode_large(raw: bytes, decode: Callable[[bytes], Any]) -> Any:
    """Decode JSON; `decode` decodes its pieces. Raises what `decode` does.

    Raises DecodeError also for a long text, and for more than `MAX_CONTAINERS` objects and lists.

    The positions in errors are those in a text whose long strings are replaced by short ones.
    """
    skeleton, ranges = _shorten_strings(raw)
    _check_containers(skeleton)
    value = _decode_structure(skeleton, decode)
    if type(value) not in _CHANGEABLE:
        return value
    return _restore(value, lambda index: _decode_text(raw, ranges[index], decode=decode))


def encode_large(
    value: Any,
    *,
    enc_hook: Callable[[Any], Any] | None = None,
    order: Literal["deterministic", "sorted"] | None = None,
) -> bytes:
    """Encode a value, as `msgspec.json.encode` does. UnicodeEncodeError for a lone surrogate."""
    encode = msgspec.json.Encoder(enc_hook=enc_hook, order=order).encode
    return encode(_with_encoded_values(value, encode))


def split_fields(raw: bytes, decode: Callable[[bytes], Any]) -> dict[str, msgspec.Raw]:
    """Return the fields of a JSON object, each with its bytes; these are not checked. DecodeError."""
    start, end, commas = _object_bounds(raw)
    fields: dict[str, msgspec.Raw] = {}
    for first, last in zip([start, *(comma + 1 for comma in commas)], [*commas, end], strict=True):
        key = _KEY.match(raw[first : min(last, first + _MAX_KEY)])
        if key is None:
            if not commas and not raw[first : min(last, first + _MAX_KEY)].strip(_SPACES):
                return {}
            raise msgspec.DecodeError(f"expected a name and a colon (byte {first})")
        while raw[last - 1 : last] in (b" ", b"\t", b"\r", b"\n"):
            last -= 1  # noqa: PLW2901 - without a copy
        if first + key.end() >= last:
            raise msgspec.DecodeError(f"expected a value (byte {last})")
        fields[decode(key[1])] = msgspec.Raw(raw[first + key.end() : last])
    return fields


def weigh(raw: bytes) -> int:
    """Return the bytes of a JSON text, and more for its fields, since each of them takes time."""
    size = len(raw)
    return size if size <= FEW_FIELDS or size > SMALL else size + VALUE * raw.count(b'":')


def measure(value: Any) -> int:
    """Return about how many bytes a JSON value takes; of a large one, some number above `SMALL`."""
    size = 0
    pending = [value]
    while pending and size <= SMALL:
        item = pending.pop()
        kind = type(item)
        if kind is str or isinstance(item, str | bytes):
            size += len(item)
            continue
        size += VALUE
        if kind in _SCALARS:  # before the check for a mapping, which is a search for any other class
            continue
        if isinstance(item, list | tuple):
            size += VALUE * len(item)
            if size <= SMALL:
                pending += item
        elif kind is dict or isinstance(item, Mapping):
            size += VALUE * len(item)
            if size <= SMALL:
                pending += [*item, *item.values()]
    return size


# ---- strings and structure ---------------------------------------------------------------------------------


def _windows(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the text in parts with their positions; backslashes and quotes that are escaped become NUL."""
    start = 0
    while start < len(raw):
        part = raw[start : start + _WINDOW]
        end = start + len(part)
        if b"\\" in part:
            if (len(part) - len(part.rstrip(b"\\"))) % 2 and end < len(raw):
                end += 1
                part = raw[start:end]
            part = part.replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0")
        yield start, part
        start = end


def _shorten_strings(raw: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the JSON with a mark and a number for each long string, and where those strings are.

    So that no other string begins with the mark, those that do, or begin with an escape, count as long.
    """
    parts: list[bytes] = []
    ranges: list[tuple[int, int]] = []
    copied, opened = 0, -1
    for position in _quotes(raw):
        if opened < 0:
            opened = position + 1
            continue
        if position - opened > _SHORT or raw[opened] in _MARKED:
            parts += [raw[copied:opened], b"~%d" % len(ranges)]
            ranges.append((opened, position))
            copied = position
        opened = -1
    return b"".join([*parts, raw[copied:]]), ranges


def _quotes(raw: bytes) -> Iterator[int]:
    """Yield the positions of the quotes that begin and end strings."""
    for start, window in _windows(raw):
        at = window.find(b'"')
        while at >= 0:
            yield start + at
            at = window.find(b'"', at + 1)


def _object_bounds(raw: bytes) -> tuple[int, int, list[int]]:
    """Return where the contents of an object begin and end, and the positions of the commas between them."""
    commas: list[int] = []
    depth, opened, closed = 0, -1, -1
    for start, outside in _outside_strings(raw):
        done = 0
        for bracket in _BRACKET.finditer(outside):
            at = bracket.start()
            if depth == 1:
                commas += _find_commas(outside, start, first=done, last=at)
            depth += 1 if bracket[0] in b"{[" else -1
            done = at + 1
            if opened < 0 and bracket[0] == b"{" and not outside[:at].strip(_SPACES) and not start:
                opened = done
            elif depth == 0 and closed < 0:
                closed = start + at
        if depth == 1:
            commas += _find_commas(outside, start, first=done, last=len(outside))
    rest = raw[closed + 1 : closed + 1 + _WINDOW].strip(_SPACES) if closed >= 0 else b""
    if opened < 0 or closed < 0 or depth or rest or raw[closed : closed + 1] != b"}":
        raise msgspec.DecodeError(
            "expected an object" if opened < 0 else "the object is malformed or truncated"
        )
    return opened, closed, commas


def _find_commas(outside: bytes, start: int, *, first: int, last: int) -> list[int]:
    found, at = list[int](), outside.find(b",", first, last)
    while at >= 0:
        found.append(start + at)
        at = outside.find(b",", at + 1, last)
    return found


def _outside_strings(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the text in parts with their positions; what is in strings is left blank."""
    in_string = False
    for start, window in _windows(raw):
        pieces = window.split(b'"')
        blank = [
            b" " * len(piece) if in_string ^ bool(index % 2) else piece for index, piece in enumerate(pieces)
        ]
        in_string ^= len(pieces) % 2 == 0
        yield start, b'"'.join(blank)


def _check_containers(skeleton: bytes) -> None:
    """Raise DecodeError for too many objects and lists; brackets in short strings count too."""
    count = 0
    for start in range(0, len(skeleton), _WINDOW):
        end = start + _WINDOW
        count += skeleton.count(b"{", start, end) + skeleton.count(b"[", start, end)
        if count > MAX_CONTAINERS:
            raise msgspec.DecodeError(f"more than {MAX_CONTAINERS} objects and lists")


# ---- many values -------------------------------------------------------------------------------------------


def _decode_structure(skeleton: bytes, decode: Callable[[bytes], Any], *, level: int = 0) -> Any:
    """Decode JSON without long strings: what has many values in several calls."""
    skeleton = skeleton.strip(_SPACES)
    if len(skeleton) <= _WHOLE or level == _MAX_SPLITS or skeleton[:1] not in (b"[", b"{"):
        return decode(skeleton)
    is_list = skeleton[:1] == b"["
    pieces = _cut_container(skeleton)
    if len(pieces) == 1 and not pieces[0]:
        return [] if is_list else {}
    items: list[Any] = []
    members: dict[str, Any] = {}
    for piece in pieces:
        if not piece:
            raise msgspec.DecodeError("expected a value after a comma")
        if is_list:
            is_item = len(piece) > 2 * _WINDOW
            items += (
                [_decode_structure(piece, decode, level=level + 1)] if is_item else decode(b"[%b]" % piece)
            )
        else:
            members |= _decode_members(piece, decode, level=level + 1)
    return items if is_list else members


def _decode_members(piece: bytes, decode: Callable[[bytes], Any], *, level: int) -> dict[str, Any]:
    """Decode members of an object: a long one alone, its value in several calls."""
    key = _KEY.match(piece[:_MAX_KEY]) if len(piece) > 2 * _WINDOW else None
    if key is None:
        members: dict[str, Any] = decode(b"{%b}" % piece)
        return members
    return {decode(key[1]): _decode_structure(piece[key.end() :], decode, level=level)}


def _cut_container(text: bytes) -> list[bytes]:
    """Return what is in an object or a list, cut at commas: about a window each, or one longer item."""
    cuts: list[int] = []
    last = previous = 0  # the last cut, and the last comma where one was possible
    for comma in _outer_commas(text):
        if comma - last > _WINDOW:
            if previous > last:
                cuts.append(previous)
                last = previous
            if comma - last > _WINDOW:
                cuts.append(comma)
                last = comma
        previous = comma
    if len(text) - last > _WINDOW and previous > last:
        cuts.append(previous)
    starts, ends = [1, *(cut + 1 for cut in cuts)], [*cuts, len(text) - 1]
    return [text[start:end].strip(_SPACES) for start, end in zip(starts, ends, strict=True)]


def _outer_commas(text: bytes) -> Iterator[int]:
    """Yield the first and the last comma between two containers of a container. DecodeError if it is cut."""
    depth = 0
    for start, outside in _outside_strings(text):
        done = 0
        for bracket in _BRACKET.finditer(outside):
            at = bracket.start()
            if depth == 1:
                yield from _end_commas(outside, start, first=done, last=at)
            depth += 1 if bracket[0] in b"{[" else -1
            done = at + 1
            if depth == 0 and start + done < len(text):
                raise msgspec.DecodeError(f"trailing characters (byte {start + done})")
        if depth == 1:
            yield from _end_commas(outside, start, first=done, last=len(outside))
    if depth or text[-1:] != (b"]" if text[:1] == b"[" else b"}"):
        raise msgspec.DecodeError("Input data was truncated")


def _end_commas(outside: bytes, start: int, *, first: int, last: int) -> Iterator[int]:
    comma = outside.find(b",", first, last)
    if comma >= 0:
        yield start + comma
        yield start + outside.rfind(b",", first, last)


# ---- texts -------------------------------------------------------------------------------------------------


def _restore(value: Any, read: Callable[[int], str]) -> Any:
    """Return a text, a list or an object with the texts that the marks stand for.

    They are changed in place: to free thousands of replaced ones would be one long call.
    """
    if isinstance(value, str):
        return read(int(value[1:])) if value.startswith("~") else value
    if isinstance(value, dict) and any(key.startswith("~") for key in value):
        value = {read(int(key[1:])) if key.startswith("~") else key: item for key, item in value.items()}
    for place, item in value.items() if isinstance(value, dict) else enumerate(value):
        if type(item) in _CHANGEABLE:
            value[place] = _restore(item, read)
    return value


def _decode_text(raw: bytes, between: tuple[int, int], *, decode: Callable[[bytes], Any]) -> str:
    """Decode what is between the quotes of a string."""
    start, end = between
    texts: list[str] = []
    length, width = 0, 1
    while start < end:
        last = _safe_end(raw, start, end=end)
        text: str = decode(b'"%b"' % raw[start:last])
        texts.append(text)
        length, width = length + len(text), max(width, _character_width(text))
        start = last
    if width > 1 and length * width > MAX_WIDE_TEXT:
        most = MAX_WIDE_TEXT // width
        raise msgspec.DecodeError(f"a text has {length} characters; {most} of other scripts are allowed")
    return texts[0] if len(texts) == 1 else "".join(texts)


def _character_width(text: str) -> int:
    """Return the bytes of memory that Python takes for each character of a text."""
    if text.isascii():
        return 1
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return 2 if len(text.encode("utf-16-le", "surrogatepass")) == 2 * len(text) else 4
    return 1


def _safe_end(raw: bytes, start: int, *, end: int) -> int:
    """Return where a piece of a string may end: not within an escape, a surrogate pair or a character."""
    last = start + _WINDOW
    if last >= end:
        return end
    piece = raw[start:last].replace(b"\\\\", b"\0\0")
    escape = piece.rfind(b"\\", len(piece) - 6)
    if escape >= 0 and len(piece) - escape < (6 if piece[escape + 1 : escape + 2] == b"u" else 2):
        last = start + escape
    while raw[last] & 0xC0 == 0x80 and last > start + 1:
        last -= 1
    pair = _HIGH_SURROGATE.search(piece[: last - start][-6:])
    return last - 6 if pair else last


def _with_encoded_values(value: Any, encode: Callable[[Any], bytes]) -> Any:
    """Return the value with its long texts and lists as JSON already."""
    if isinstance(value, str):
        return value if len(value) <= _SHORT else msgspec.Raw(_encode_text(value))
    if isinstance(value, list | tuple):
        items = [_with_encoded_values(item, encode) for item in value]
        if len(items) <= _MANY:
            return items
        pieces = [encode(items[at : at + _MANY])[1:-1] for at in range(0, len(items), _MANY)]
        return msgspec.Raw(b"[%b]" % b",".join(pieces))
    if isinstance(value, Mapping):
        return {key: _with_encoded_values(item, encode) for key, item in value.items()}
    return value


def _encode_text(text: str) -> bytes:
    if len(text) <= _WINDOW:
        return _encoder.encode(text)
    pieces = [_encoder.encode(text[at : at + _WINDOW])[1:-1] for at in range(0, len(text), _WINDOW)]
    return b'"%b"' % b"".join(pieces)
