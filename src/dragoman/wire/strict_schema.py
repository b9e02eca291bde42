"""Strict schemas: what providers hold an answer to exactly. Objects are closed and all their fields required.

Source: OpenAI's structured outputs; the words it does not check are told in descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.wire.anthropic.schema import close

_WORDS = ("items", "prefixItems", "anyOf", "oneOf", "allOf")
_TABLES = ("properties", "$defs")


def strict(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema as a provider takes it for strict; None when it has objects whose fields nobody knows."""
    if is_open(schema):
        return None
    required: dict[str, Any] = _require(close(schema))
    return required


def is_open(schema: Any) -> bool:
    """Whether an object in the schema may have fields of any name: closed, it would be empty."""
    if isinstance(schema, list):
        return any(is_open(item) for item in schema)
    if not isinstance(schema, Mapping):
        return False
    others = schema.get("additionalProperties")
    if isinstance(others, Mapping) or others is True:
        return True
    if schema.get("type") == "object" and not schema.get("properties") and others is not False:
        return True
    return any(is_open(value) for value in _inner(schema))


def _inner(schema: Mapping[str, Any]) -> list[Any]:
    """The schemas within one, and lists of them."""
    inner = [schema[word] for word in _WORDS if word in schema]
    for table in _TABLES:
        held = schema.get(table)
        inner += held.values() if isinstance(held, Mapping) else ()
    return inner


def _require(schema: Any) -> Any:
    """The closed schema with all fields required, and references by themselves."""
    if isinstance(schema, list):
        return [_require(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    made = {name: value for name, value in schema.items() if name != "default"}
    made |= {word: _require(schema[word]) for word in _WORDS if word in schema}
    for table in _TABLES:
        if isinstance(schema.get(table), Mapping):
            made[table] = {name: _require(value) for name, value in schema[table].items()}
    if "properties" in made:
        made["required"] = list(made["properties"])
    return made
