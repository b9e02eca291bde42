"""Lossless changes of one value into another type: text that is a number, a number that should be text."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from decimal import Decimal
from typing import Any

import msgspec

from dragoman.operations.arguments.broken_json import repair_json

NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,30})(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?")
MAX_TEXT_LENGTH = 1_000_000
TYPE_NAMES = {"integer": "whole number", "boolean": "true or false", "array": "list", "null": "null"}
Coercion = tuple[Any, str]


def coerce(value: Any, types: Set[str]) -> Coercion | None:
    """The value as one of the wanted types, and in words what was done; None when it is not sure.

    Nothing for a value that is of such a type already.
    """
    if isinstance(value, str):
        return coerce_text(value, types)
    if "string" in types and isinstance(value, bool | int | float):
        text = msgspec.json.encode(value).decode()
        return text, f"was a {type_label(value)}; taken as the text {text!r}"
    if "array" in types and value is not None:
        return [value], "was a single value; taken as a list of that one"
    return None


def coerce_text(text: str, types: Set[str]) -> Coercion | None:
    """What a text says, when a text is not what is wanted."""
    if len(text) > MAX_TEXT_LENGTH:
        return None
    bare = text.strip()
    if types & {"integer", "number"} and (number := parse_number(bare, types)) is not None:
        return number, f"was text; taken as the number {msgspec.json.encode(number).decode()}"
    if "boolean" in types and bare.lower() in ("true", "false"):
        return bare.lower() == "true", f"was text; taken as {bare.lower()}"
    if "null" in types and bare.lower() in ("null", "none"):
        return None, "was text; taken as null"
    if "object" in types and bare[:1] in "{`" and (found := repair_json(bare)) is not None:
        return found, "was JSON in a text; taken as the object in it"
    if "array" in types:
        return coerce_text_to_list(text, bare)
    return None


def coerce_text_to_list(text: str, stripped: str) -> Coercion | None:
    if stripped.startswith("["):
        inside = repair_json(f'{{"list": {stripped}}}')
        if inside is not None and isinstance(inside.get("list"), list):
            return inside["list"], "was JSON in a text; taken as the list in it"
        return None
    return [text], "was a single value; taken as a list of that one"


def parse_number(text: str, types: Set[str]) -> int | float | None:
    """The number that a text spells, when no digit of it is lost."""
    if not NUMBER.fullmatch(text):
        return None
    exact = Decimal(text)
    if exact == exact.to_integral_value() and exact.adjusted() < 18:
        return int(exact)
    if "number" not in types:
        return None
    number = float(exact)
    return number if Decimal(repr(number)) == exact else None


def match_option(value: Any, options: Sequence[Any]) -> Coercion | None:
    """The one option that differs from a text in case or blanks only, or is the number or word it spells."""
    if isinstance(value, str):
        same = [each for each in options if isinstance(each, str) and fold_case(each) == fold_case(value)]
        if len(same) == 1:
            return same[0], f"was {value.strip()!r}; taken as {same[0]!r}"
        spelled = [
            each for each in options if not isinstance(each, str) and spells_option(value.strip(), each)
        ]
        if not same and len(spelled) == 1:
            return spelled[0], f"was text; taken as {msgspec.json.encode(spelled[0]).decode()}"
        return None
    if isinstance(value, bool | int | float):
        text = msgspec.json.encode(value).decode()
        return (text, f"was a {type_label(value)}; taken as the text {text!r}") if text in options else None
    return None


def fold_case(text: str) -> str:
    return text.strip().casefold()


def spells_option(text: str, option: Any) -> bool:
    if option is None or isinstance(option, bool):
        return text.lower() == {None: "null", True: "true", False: "false"}[option]
    return isinstance(option, int | float) and parse_number(text, {"number"}) == option


def type_label(value: Any) -> str:
    return "truth value" if isinstance(value, bool) else "number"
