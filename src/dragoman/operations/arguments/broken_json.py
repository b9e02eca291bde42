"""Broken JSON: parse malformed arguments of a call, if nothing is lost or invented by that."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from dragoman.json_decoding import DECODE_ERRORS, decode_json

MAX_LENGTH = 1_000_000  # characters
MAX_GUESS_LENGTH = 4_000  # characters: tolerant parsing takes quadratic time
MAX_DEPTH = 50
CODE_FENCE = re.compile(r"\A```[A-Za-z0-9_-]*[ \t]*\n(.*?)\n?```\Z", re.DOTALL)
WORD = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[^\W\d_]+")
# Symbols with a meaning of their own, such as a minus, `!` and `%`, unlike the punctuation of JSON.
SYMBOL = re.compile(r"""[^\w\s{}\[\](),:;.+\\"'`\u201c\u201d\u2018\u2019]""")
EXPONENT = re.compile(r"(?<=\d)[eE][+-]?\d+")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
ESCAPED_BLANKS = dict.fromkeys("nrtbf", " ")
LITERALS = {"none": "null"}
OPENING, CLOSING = "{[(", "}])"
COMPLETE_ENDINGS = ("}", "]", '"', "'", "”")


def repair_json(text: str, *, truncated: bool = False) -> dict[str, Any] | None:
    """Return the object that a malformed text was meant to be; None if that is uncertain.

    Repairs code fences, line breaks in strings, superfluous commas, single quotes, Python literals,
    unquoted names and missing closing brackets. With `truncated` the text is known to be cut off, so only
    complete JSON counts. Every word, number and symbol of the text is in the result, and no others.
    """
    if len(text) > MAX_LENGTH:
        return None
    stripped = strip_code_fence(text.strip())
    parsed = parse_strict(stripped)
    if parsed is None and not truncated:
        parsed = parse_lenient(stripped)
    if parsed is None and not truncated and stripped.endswith(COMPLETE_ENDINGS):
        parsed = parse_tolerant(stripped)
    return parsed


def strip_code_fence(text: str) -> str:
    match = CODE_FENCE.match(text)
    return match[1].strip() if match else text


def parse_strict(text: str) -> dict[str, Any] | None:
    try:
        parsed = decode_json(text)
    except DECODE_ERRORS:
        return None
    return parsed if isinstance(parsed, dict) else None


def parse_lenient(text: str) -> dict[str, Any] | None:
    """Parse JSON that may have control characters in its strings."""
    try:
        parsed = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) and preserves_words(text, parsed) else None


def parse_tolerant(text: str) -> dict[str, Any] | None:
    """Parse with the json-repair package, if the result preserves every word."""
    if len(text) > MAX_GUESS_LENGTH or is_too_deep(text):
        return None
    import json_repair  # late: most calls never need it

    try:
        parsed = json_repair.loads(text, skip_json_loads=True)
    except (ValueError, TypeError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) and preserves_words(text, parsed) else None


def is_too_deep(text: str) -> bool:
    """Return whether brackets may be nested deeper than in any real arguments."""
    depth = 0
    for character in text:
        depth += (character in OPENING) - (character in CLOSING)
        if depth > MAX_DEPTH:
            return True
    return False


def preserves_words(text: str, parsed: dict[str, Any]) -> bool:
    """Return whether the text and the object have the same words, numbers and symbols, equally often."""
    try:
        counts = Counter(word for leaf in leaf_texts(parsed) for word in normalised_words(leaf))
        return Counter(normalised_words(ESCAPE.sub(unescape_match, text))) == counts
    except (ValueError, ArithmeticError):  # raised by `Decimal` for an exponent of twenty digits
        return False


def unescape_match(escape: re.Match[str]) -> str:
    code, character = escape.groups()
    return chr(int(code, 16)) if code else ESCAPED_BLANKS.get(character, character)


def normalised_words(text: str) -> Iterator[str]:
    yield from SYMBOL.findall(EXPONENT.sub("", text))
    for word in WORD.findall(text):
        yield normalise_number(word) if word[0].isdecimal() else LITERALS.get(word.lower(), word.lower())


def normalise_number(word: str) -> str:
    """Return a number in one spelling, so that 1.50 is 1.5; leading zeros are significant."""
    if word.startswith("0") and word[1:2].isdecimal():
        return word
    return str(Decimal(word).normalize())


def leaf_texts(value: Any) -> Iterator[str]:
    """Yield the texts of all names and values. Raises ValueError for a number that JSON cannot express."""
    if isinstance(value, dict):
        for name, child in value.items():
            yield str(name)
            yield from leaf_texts(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from leaf_texts(child)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not a JSON number")
    else:
        yield value if isinstance(value, str) else "null" if value is None else str(value)
