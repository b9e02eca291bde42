"""Lossless changes of one value into another type: text that is a number, a number that should be text."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from decimal import Decimal
from typing import Any

import msgspec

from dragoman.operations.arguments.repair import repair

NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,30})(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?")
LONGEST_TEXT = 1_000_000
NAMES = {"integer": "whole number", "boolean": "true or false", "array": "list", "null": "null"}
Change = tuple[Any, str]


def convert(value: Any, wanted: Set[str]) -> Change | None:
    """The value as one of the wanted types, and in words what was done; None when it is not sure.

    Nothing for a value that is of such a type already.
    """
    if isinstance(value, str):
        return from_text(value, wanted)
    if "string" in wanted and isinstance(value, bool | int | float):
        text = msgspec.json.encode(value).decode()
        return text, f"was a {sort_of(value)}; taken as the text {text!r}"
    if "array" in wanted and value is not None:
        return [value], "was a single value; taken as a list of that one"
    return None


def from_text(text: str, wanted: Set[str]) -> Change | None:
    """What a text says, when a text is not what is wanted."""
    if len(text) > LONGEST_TEXT:
        return None
    bare = text.strip()
    if wanted & {"integer", "number"} and (number := to_number(bare, wanted)) is not None:
        return number, f"was text; taken as the number {msgspec.json.encode(number).decode()}"
    if "boolean" in wanted and bare.lower() in ("true", "false"):
        return bare.lower() == "true", f"was text; taken as {bare.lower()}"
    if "null" in wanted and bare.lower() in ("null", "none"):
        return None, "was text; taken as null"
    if "object" in wanted and bare[:1] in "{`" and (found := repair(bare)) is not None:
        return found, "was JSON in a text; taken as the object in it"
    if "array" in wanted:
        return from_list(text, bare)
    return None


def from_list(text: str, bare: str) -> Change | None:
    if bare.startswith("["):
        inside = repair(f'{{"list": {bare}}}')
        if inside is not None and isinstance(inside.get("list"), list):
            return inside["list"], "was JSON in a text; taken as the list in it"
        return None
    return [text], "was a single value; taken as a list of that one"


def to_number(text: str, wanted: Set[str]) -> int | float | None:
    """The number that a text spells, when no digit of it is lost."""
    if not NUMBER.fullmatch(text):
        return None
    exact = Decimal(text)
    if exact == exact.to_integral_value() and exact.adjusted() < 18:
        return int(exact)
    if "number" not in wanted:
        return None
    number = float(exact)
    return number if Decimal(repr(number)) == exact else None


def choose(value: Any, options: Sequence[Any]) -> Change | None:
    """The one option that differs from a text in case or blanks only, or is the number or word it spells."""
    if isinstance(value, str):
        same = [each for each in options if isinstance(each, str) and folded(each) == folded(value)]
        if len(same) == 1:
            return same[0], f"was {value.strip()!r}; taken as {same[0]!r}"
        spelled = [each for each in options if not isinstance(each, str) and says(value.strip(), each)]
        if not same and len(spelled) == 1:
            return spelled[0], f"was text; taken as {msgspec.json.encode(spelled[0]).decode()}"
        return None
    if isinstance(value, bool | int | float):
        text = msgspec.json.encode(value).decode()
        return (text, f"was a {sort_of(value)}; taken as the text {text!r}") if text in options else None
    return None


def folded(text: str) -> str:
    return text.strip().casefold()


def says(text: str, option: Any) -> bool:
    if option is None or isinstance(option, bool):
        return text.lower() == {None: "null", True: "true", False: "false"}[option]
    return isinstance(option, int | float) and to_number(text, {"number"}) == option


def sort_of(value: Any) -> str:
    return "truth value" if isinstance(value, bool) else "number"
