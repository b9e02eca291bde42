"""Lossless coercion between JSON types: text that is a number, a number that should be text."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from decimal import Decimal
from typing import Any

import msgspec

from dragoman.operations.arguments.broken_json import repair_json

NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,30})(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?")
MAX_TEXT_LENGTH = 1_000_000
Coercion = tuple[Any, str]


def coerce(value: Any, types: Set[str]) -> Coercion | None:
    """Return the value as one of the types and a note on the change; None if that is ambiguous.

    The value must not have one of the types already.
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
    """Return the value that a text spells, for a schema that does not accept text."""
    if len(text) > MAX_TEXT_LENGTH:
        return None
    stripped = text.strip()
    if types & {"integer", "number"} and (number := parse_number(stripped, types)) is not None:
        return number, f"was text; taken as the number {msgspec.json.encode(number).decode()}"
    if "boolean" in types and stripped.lower() in ("true", "false"):
        return stripped.lower() == "true", f"was text; taken as {stripped.lower()}"
    if "null" in types and stripped.lower() in ("null", "none"):
        return None, "was text; taken as null"
    if "object" in types and stripped[:1] in "{`" and (parsed := repair_json(stripped)) is not None:
        return parsed, "was JSON in a text; taken as the object in it"
    if "array" in types:
        return coerce_text_to_list(text, stripped)
    return None


def coerce_text_to_list(text: str, stripped: str) -> Coercion | None:
    if stripped.startswith("["):
        parsed = repair_json(f'{{"list": {stripped}}}')
        if parsed is not None and isinstance(parsed.get("list"), list):
            return parsed["list"], "was JSON in a text; taken as the list in it"
        return None
    return [text], "was a single value; taken as a list of that one"


def parse_number(text: str, types: Set[str]) -> int | float | None:
    """Return the number that a text spells, if no digit is lost."""
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
    """Return the only option that equals the value apart from case, white space or type."""
    if isinstance(value, str):
        matching = [
            option for option in options if isinstance(option, str) and fold_case(option) == fold_case(value)
        ]
        if len(matching) == 1:
            return matching[0], f"was {value.strip()!r}; taken as {matching[0]!r}"
        equivalent = [
            option
            for option in options
            if not isinstance(option, str) and spells_option(value.strip(), option)
        ]
        if not matching and len(equivalent) == 1:
            return equivalent[0], f"was text; taken as {msgspec.json.encode(equivalent[0]).decode()}"
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
    return "boolean" if isinstance(value, bool) else "number"
