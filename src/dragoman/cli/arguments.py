"""Arguments of an operation as they are typed on a command line: a JSON text, and NAME=VALUE pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.errors import BadRequest


def parse(raw: str | None, pairs: Sequence[str], *, properties: Mapping[str, Any]) -> dict[str, Any]:
    """The input: the JSON object `raw`, and the pairs over it. BadRequest when one cannot be read.

    A value whose property takes a string is one, as it stands; any other is JSON where it can be.
    """
    try:
        input = msgspec.json.decode(raw) if raw and raw.strip() else {}
    except msgspec.DecodeError as error:
        raise BadRequest(f"--input is no JSON: {error}") from None
    if not isinstance(input, dict):
        raise BadRequest("--input must be a JSON object", hint='such as {"name": "value"}')
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadRequest(f"{pair!r} is no argument", hint="write NAME=VALUE")
        input[name] = value if takes_text(properties.get(name)) else read(value)
    return input


def takes_text(rules: Any) -> bool:
    """Whether a property's schema lets a string through."""
    if not isinstance(rules, Mapping):
        return False
    kinds = rules.get("type")
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
        return True
    return any(takes_text(each) for each in (*rules.get("anyOf", ()), *rules.get("oneOf", ())))


def read(value: str) -> Any:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
