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

MAX_LENGTH = 1_000_000
MAX_GUESS_LENGTH = 4_000  # characters: the time that guessing takes grows with their square
MAX_DEPTH = 50
CODE_FENCE = re.compile(r"\A```[A-Za-z0-9_-]*[ \t]*\n(.*?)\n?```\Z", re.DOTALL)
WORD = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[^\W\d_]+")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
ESCAPED_BLANKS = dict.fromkeys("nrtbf", " ")
LITERALS = {"none": "null"}
OPENING, CLOSING = "{[(", "}])"
COMPLETE_ENDINGS = ("}", "]", '"', "'", "”")


def repair_json(text: str, *, truncated: bool = False) -> dict[str, Any] | None:
    """The object that a text was meant to be; None when that cannot be said for sure.

    Mends code fences, line breaks in strings, commas too many, single quotes, Python's words, names without
    quotes and lacking brackets at the end. `cut`: the text is known to have broken off, so that only one
    that is whole counts. Every word and number of the text is in the result, and nothing else is.
    """
    if len(text) > MAX_LENGTH:
        return None
    bare = strip_code_fence(text.strip())
    found = parse_strict(bare)
    if found is None and not truncated:
        found = parse_lenient(bare)
    if found is None and not truncated and bare.endswith(COMPLETE_ENDINGS):
        found = parse_tolerant(bare)
    return found


def strip_code_fence(text: str) -> str:
    fenced = CODE_FENCE.match(text)
    return fenced[1].strip() if fenced else text


def parse_strict(text: str) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def parse_lenient(text: str) -> dict[str, Any] | None:
    """JSON but for control characters in its strings."""
    try:
        found = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and preserves_words(text, found) else None


def parse_tolerant(text: str) -> dict[str, Any] | None:
    """What a tolerant reader makes of it, when that is faithful."""
    if len(text) > MAX_GUESS_LENGTH or is_too_deep(text):
        return None
    import json_repair  # late: most calls never need it

    try:
        found = json_repair.loads(text, skip_json_loads=True)
    except (ValueError, TypeError, RecursionError):
        return None
    return found if isinstance(found, dict) and preserves_words(text, found) else None


def is_too_deep(text: str) -> bool:
    """Whether brackets may be nested deeper than any arguments are."""
    depth = 0
    for sign in text:
        depth += (sign in OPENING) - (sign in CLOSING)
        if depth > MAX_DEPTH:
            return True
    return False


def preserves_words(text: str, parsed: dict[str, Any]) -> bool:
    """Whether the words and numbers of a text are those of the object, each as often."""
    try:
        held = Counter(word for leaf in leaf_texts(parsed) for word in normalised_words(leaf))
    except ValueError:
        return False
    return Counter(normalised_words(ESCAPE.sub(unescape_match, text))) == held


def unescape_match(escape: re.Match[str]) -> str:
    code, sign = escape.groups()
    return chr(int(code, 16)) if code else ESCAPED_BLANKS.get(sign, sign)


def normalised_words(text: str) -> Iterator[str]:
    for word in WORD.findall(text):
        yield normalise_number(word) if word[0].isdecimal() else LITERALS.get(word.lower(), word.lower())


def normalise_number(word: str) -> str:
    """A number spelled in one way, so that 1.50 is 1.5; zeros at its beginning mean something."""
    if word.startswith("0") and word[1:2].isdecimal():
        return word
    return str(Decimal(word).normalize())


def leaf_texts(value: Any) -> Iterator[str]:
    """The texts of all names and values. ValueError for what JSON cannot hold."""
    if isinstance(value, dict):
        for name, held in value.items():
            yield str(name)
            yield from leaf_texts(held)
    elif isinstance(value, list | tuple):
        for held in value:
            yield from leaf_texts(held)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("no JSON number")
    else:
        yield value if isinstance(value, str) else "null" if value is None else str(value)
