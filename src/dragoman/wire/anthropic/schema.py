"""Schemas as Anthropic's structured output takes them: objects closed, and without what it does not check.

What is taken out is said in the description, so that the model still reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.wire.openai.history import mapping_enc_hook

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
