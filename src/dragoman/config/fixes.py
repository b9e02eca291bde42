"""Suggested fixes: what to write instead of a value of the wrong type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dragoman.config.problems import MAX_TEXT, FieldPath, looks_secret
from dragoman.config.yaml_document import InvalidScalar, parse_duration

_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")
_GROUPED = re.compile(r"\d{1,3}([,' ]\d{3})+")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg])(i?)b?", re.IGNORECASE)
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_EXPONENTS = {"k": 1, "m": 2, "g": 3}
_BOOLEANS = {
    **dict.fromkeys(("yes", "on", "y", "1", "true"), "true"),
    **dict.fromkeys(("no", "off", "n", "0", "false"), "false"),
}


def type_fix(value: Any, expected: Sequence[str], *, path: FieldPath) -> str:
    """Return `; write …` for a value of the wrong type, or an empty text.

    `expected` are the names of types in msgspec's messages, such as `int` and `array`.
    """
    match value:
        case str() | int() if "bool" in expected and str(value).lower() in _BOOLEANS:
            return f"; write {_BOOLEANS[str(value).lower()]}"
        case str() if "int" in expected or "float" in expected:
            return _number_fix(value)
        case str() if "array" in expected:
            return _list_fix(value, path)
        case str() if "object" in expected and not path:
            return "; write `name: value` lines, with a space behind each colon"
        case dict() if "array" in expected:
            return "; write a list: each item begins with `- `"
        case list() if "object" in expected:
            return "; write `NAME:` and its fields below it, without `- `"
        case _:
            return ""


def variable_fix(text: str) -> str:
    """Return how to write the variable in a text such as `$NAME`; for other texts an empty text."""
    found = _VARIABLE.fullmatch(text)
    return f"; a variable is written ${{{found[1]}}}" if found else ""


def _number_fix(text: str) -> str:
    if _NUMBER.fullmatch(text):
        return "; write it without quotes"
    if _GROUPED.fullmatch(text):
        return f"; write {re.sub('[^0-9]', '', text)}"
    if found := _SIZE.fullmatch(text):
        base = 1024 if found[3] else 1000
        return f"; write {float(found[1]) * base ** _EXPONENTS[found[2].lower()]:.0f}"
    try:
        return f"; write {parse_duration(text):g}, in seconds"
    except InvalidScalar:
        return ""


def _list_fix(text: str, path: FieldPath) -> str:
    words = text.split() if path[-1:] == ("command",) else [text]
    plain = all(re.fullmatch(r"[\w./@=+-]+", word) and not looks_secret(word) for word in words)
    shown = plain and len(text) <= MAX_TEXT and path[-1:] != ("headers",)
    return f"; write [{', '.join(words)}]" if shown else "; write a list: [first, second]"
