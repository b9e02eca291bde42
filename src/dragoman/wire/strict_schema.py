"""Strict schemas: what providers hold an answer to exactly. Objects are closed and all their fields required.

Source: OpenAI's structured outputs; the words it does not check are told in descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.wire.anthropic.schema import to_closed_schema

_SUBSCHEMA_KEYWORDS = ("items", "prefixItems", "anyOf", "oneOf", "allOf")
_SUBSCHEMA_MAPS = ("properties", "$defs")


def to_strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema as a provider takes it for strict; None when it has objects whose fields nobody knows."""
    if has_open_objects(schema):
        return None
    required: dict[str, Any] = _require_all_fields(to_closed_schema(schema))
    return required


def has_open_objects(schema: Any) -> bool:
    """Whether an object in the schema may have fields of any name: closed, it would be empty."""
    if isinstance(schema, list):
        return any(has_open_objects(item) for item in schema)
    if not isinstance(schema, Mapping):
        return False
    others = schema.get("additionalProperties")
    if isinstance(others, Mapping) or others is True:
        return True
    if schema.get("type") == "object" and not schema.get("properties") and others is not False:
        return True
    return any(has_open_objects(value) for value in _subschemas(schema))


def _subschemas(schema: Mapping[str, Any]) -> list[Any]:
    """The schemas within one, and lists of them."""
    inner = [schema[word] for word in _SUBSCHEMA_KEYWORDS if word in schema]
    for table in _SUBSCHEMA_MAPS:
        held = schema.get(table)
        inner += held.values() if isinstance(held, Mapping) else ()
    return inner


def _require_all_fields(schema: Any) -> Any:
    """The closed schema with all fields required, and references by themselves."""
    if isinstance(schema, list):
        return [_require_all_fields(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    made = {name: value for name, value in schema.items() if name != "default"}
    made |= {word: _require_all_fields(schema[word]) for word in _SUBSCHEMA_KEYWORDS if word in schema}
    for table in _SUBSCHEMA_MAPS:
        if isinstance(schema.get(table), Mapping):
            made[table] = {name: _require_all_fields(value) for name, value in schema[table].items()}
    if "properties" in made:
        made["required"] = list(made["properties"])
    return made
