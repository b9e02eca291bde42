"""Strict schemas: what providers hold an answer to exactly. Objects are closed and all their fields required.

Source: OpenAI's structured outputs; the words it does not check are told in descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.wire.openai.messages import mapping_enc_hook

# ---- Schemas as Anthropic's structured output takes them: objects closed, and without what it does not
# check.
# What is taken out is said in the description, so that the model still reads it.

_SUPPORTED_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
_SUPPORTED_KEYWORDS = ("$ref", "type", "enum", "const", "required", "title", "default")
_UNDESCRIBED_KEYWORDS = frozenset({"additionalProperties", "$schema", "$id", "$comment", "strict", "format"})
_COMBINATORS = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
_SCHEMA_MAPS = ("$defs", "definitions", "properties")


def to_closed_schema(schema: Any) -> Any:
    """The schema for `output_config.format`; a value that is no object goes as it is."""
    if not isinstance(schema, Mapping):
        return schema
    closed = _supported_keywords(schema)
    for name in _SCHEMA_MAPS:
        if isinstance(schema.get(name), Mapping):
            closed[name] = {key: to_closed_schema(value) for key, value in schema[name].items()}
    for name, word in _COMBINATORS.items():
        if isinstance(schema.get(name), list):
            closed[word] = [*closed.get(word, ()), *map(to_closed_schema, schema[name])]
    if _is_object(schema):
        closed = {**closed, "properties": closed.get("properties", {}), "additionalProperties": False}
    description = _description(schema, closed)
    return closed | {"description": description} if description else closed


def _supported_keywords(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What is checked of a schema besides the schemas that stand in it by name or as a choice."""
    kept: dict[str, Any] = {name: schema[name] for name in _SUPPORTED_KEYWORDS if name in schema}
    if isinstance(schema.get("items"), Mapping):
        kept["items"] = to_closed_schema(schema["items"])
    if schema.get("minItems") in (0, 1):
        kept["minItems"] = schema["minItems"]
    if schema.get("format") in _SUPPORTED_FORMATS:
        kept["format"] = schema["format"]
    return kept


def _is_object(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in schema


def _description(schema: Mapping[str, Any], closed: Mapping[str, Any]) -> str:
    """The schema's own, and what was taken out of it."""
    said = schema.get("description")
    left = {
        name: value
        for name, value in schema.items()
        if name not in closed
        and name not in _UNDESCRIBED_KEYWORDS
        and name not in _COMBINATORS
        and name != "description"
    }
    if isinstance(schema.get("format"), str) and "format" not in closed:
        left["format"] = schema["format"]
    words = [said] if isinstance(said, str) and said else []
    words += [", ".join(f"{name}: {_json_text(value)}" for name, value in left.items())] if left else []
    return "\n\n".join(words)


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=mapping_enc_hook).decode()


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
