"""Repair: broken JSON of a call's arguments, read as what was meant, when nothing is lost or made up."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec

LONGEST = 1_000_000
LONGEST_GUESS = 4_000  # characters: the time that guessing takes grows with their square
DEEPEST = 50
FENCE = re.compile(r"\A```[A-Za-z0-9_-]*[ \t]*\n(.*?)\n?```\Z", re.DOTALL)
WORD = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[^\W\d_]+")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
BLANK = dict.fromkeys("nrtbf", " ")
LITERALS = {"none": "null"}
OPENING, CLOSING = "{[(", "}])"
WHOLE_ENDS = ("}", "]", '"', "'", "”")


def repair(text: str, *, cut: bool = False) -> dict[str, Any] | None:
    """The object that a text was meant to be; None when that cannot be said for sure.

    Mends code fences, line breaks in strings, commas too many, single quotes, Python's words, names without
    quotes and lacking brackets at the end. `cut`: the text is known to have broken off, so that only one
    that is whole counts. Every word and number of the text is in the result, and nothing else is.
    """
    if len(text) > LONGEST:
        return None
    bare = unfenced(text.strip())
    found = strict(bare)
    if found is None and not cut:
        found = lenient(bare)
    if found is None and not cut and bare.endswith(WHOLE_ENDS):
        found = guess(bare)
    return found


def unfenced(text: str) -> str:
    fenced = FENCE.match(text)
    return fenced[1].strip() if fenced else text


def strict(text: str) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def lenient(text: str) -> dict[str, Any] | None:
    """JSON but for control characters in its strings."""
    try:
        found = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and is_faithful(text, found) else None


def guess(text: str) -> dict[str, Any] | None:
    """What a tolerant reader makes of it, when that is faithful."""
    if len(text) > LONGEST_GUESS or is_deep(text):
        return None
    import json_repair  # late: most calls never need it

    try:
        found = json_repair.loads(text, skip_json_loads=True)
    except (ValueError, TypeError, RecursionError):
        return None
    return found if isinstance(found, dict) and is_faithful(text, found) else None


def is_deep(text: str) -> bool:
    """Whether brackets may be nested deeper than any arguments are."""
    depth = 0
    for sign in text:
        depth += (sign in OPENING) - (sign in CLOSING)
        if depth > DEEPEST:
            return True
    return False


def is_faithful(text: str, found: dict[str, Any]) -> bool:
    """Whether the words and numbers of a text are those of the object, each as often."""
    try:
        held = Counter(word for leaf in leaves(found) for word in words(leaf))
    except ValueError:
        return False
    return Counter(words(ESCAPE.sub(unescape, text))) == held


def unescape(escape: re.Match[str]) -> str:
    code, sign = escape.groups()
    return chr(int(code, 16)) if code else BLANK.get(sign, sign)


def words(text: str) -> Iterator[str]:
    for word in WORD.findall(text):
        yield number(word) if word[0].isdecimal() else LITERALS.get(word.lower(), word.lower())


def number(word: str) -> str:
    """A number spelled in one way, so that 1.50 is 1.5; zeros at its beginning mean something."""
    if word.startswith("0") and word[1:2].isdecimal():
        return word
    return str(Decimal(word).normalize())


def leaves(value: Any) -> Iterator[str]:
    """The texts of all names and values. ValueError for what JSON cannot hold."""
    if isinstance(value, dict):
        for name, held in value.items():
            yield str(name)
            yield from leaves(held)
    elif isinstance(value, list | tuple):
        for held in value:
            yield from leaves(held)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("no JSON number")
    else:
        yield value if isinstance(value, str) else "null" if value is None else str(value)
