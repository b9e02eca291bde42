"""Schemas as Anthropic's structured output takes them: objects closed, and without what it does not check.

What is taken out is said in the description, so that the model still reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.wire.openai.history import plain

_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
_KEPT = ("$ref", "type", "enum", "const", "required", "title", "default")
_SILENT = frozenset({"additionalProperties", "$schema", "$id", "$comment", "strict", "format"})
_CHOICES = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
_TABLES = ("$defs", "definitions", "properties")


def close(schema: Any) -> Any:
    """The schema for `output_config.format`; a value that is no object goes as it is."""
    if not isinstance(schema, Mapping):
        return schema
    closed = _plain(schema)
    for name in _TABLES:
        if isinstance(schema.get(name), Mapping):
            closed[name] = {key: close(value) for key, value in schema[name].items()}
    for name, word in _CHOICES.items():
        if isinstance(schema.get(name), list):
            closed[word] = [*closed.get(word, ()), *map(close, schema[name])]
    if _is_object(schema):
        closed = {**closed, "properties": closed.get("properties", {}), "additionalProperties": False}
    description = _description(schema, closed)
    return closed | {"description": description} if description else closed


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What is checked of a schema besides the schemas that stand in it by name or as a choice."""
    kept: dict[str, Any] = {name: schema[name] for name in _KEPT if name in schema}
    if isinstance(schema.get("items"), Mapping):
        kept["items"] = close(schema["items"])
    if schema.get("minItems") in (0, 1):
        kept["minItems"] = schema["minItems"]
    if schema.get("format") in _FORMATS:
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
        if name not in closed and name not in _SILENT and name not in _CHOICES and name != "description"
    }
    if isinstance(schema.get("format"), str) and "format" not in closed:
        left["format"] = schema["format"]
    words = [said] if isinstance(said, str) and said else []
    words += [", ".join(f"{name}: {_show(value)}" for name, value in left.items())] if left else []
    return "\n\n".join(words)


def _show(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=plain).decode()
