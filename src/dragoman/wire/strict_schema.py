"""Convert JSON Schemas to the subset that providers enforce for strict tools and structured output.

Source: OpenAI's structured outputs. Objects are closed and all their fields required; keywords that are not
enforced go into the description.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.wire.json_codec import encode_json

# ---- Closed schemas, for Anthropic

_SUPPORTED_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
_SUPPORTED_KEYWORDS = ("$ref", "type", "enum", "const", "required", "title", "default")
_UNDESCRIBED_KEYWORDS = frozenset({"additionalProperties", "$schema", "$id", "$comment", "strict", "format"})
_COMBINATORS = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
_SCHEMA_MAPS = ("$defs", "definitions", "properties")


def to_closed_schema(schema: Any) -> Any:
    """Convert the schema for `output_config.format`; a value that is not an object is unchanged."""
    if not isinstance(schema, Mapping):
        return schema
    closed = _supported_keywords(schema)
    for name in _SCHEMA_MAPS:
        if isinstance(schema.get(name), Mapping):
            closed[name] = {key: to_closed_schema(value) for key, value in schema[name].items()}
    for name, keyword in _COMBINATORS.items():
        if isinstance(schema.get(name), list):
            closed[keyword] = [*closed.get(keyword, ()), *map(to_closed_schema, schema[name])]
    if _is_object(schema):
        closed = {**closed, "properties": closed.get("properties", {}), "additionalProperties": False}
    description = _description(schema, closed)
    return closed | {"description": description} if description else closed


def _supported_keywords(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the supported keywords, except named subschemas and choices."""
    supported: dict[str, Any] = {name: schema[name] for name in _SUPPORTED_KEYWORDS if name in schema}
    if isinstance(schema.get("items"), Mapping):
        supported["items"] = to_closed_schema(schema["items"])
    if schema.get("minItems") in (0, 1):
        supported["minItems"] = schema["minItems"]
    if schema.get("format") in _SUPPORTED_FORMATS:
        supported["format"] = schema["format"]
    return supported


def _is_object(schema: Mapping[str, Any]) -> bool:
    schema_type = schema.get("type")
    return (
        schema_type == "object"
        or (isinstance(schema_type, list) and "object" in schema_type)
        or "properties" in schema
    )


def _description(schema: Mapping[str, Any], closed: Mapping[str, Any]) -> str:
    """Return the schema's description, with the removed keywords."""
    description = schema.get("description")
    removed = {
        name: value
        for name, value in schema.items()
        if name not in closed
        and name not in _UNDESCRIBED_KEYWORDS
        and name not in _COMBINATORS
        and name != "description"
    }
    if isinstance(schema.get("format"), str) and "format" not in closed:
        removed["format"] = schema["format"]
    paragraphs = [description] if isinstance(description, str) and description else []
    paragraphs += (
        [", ".join(f"{name}: {encode_json(value)}" for name, value in removed.items())] if removed else []
    )
    return "\n\n".join(paragraphs)


# ---- Strict schemas, for OpenAI

_SUBSCHEMA_KEYWORDS = ("items", "prefixItems", "anyOf", "oneOf", "allOf")
_SUBSCHEMA_MAPS = ("properties", "$defs")


def to_strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert the schema to a strict one; None if it has objects with arbitrary field names."""
    if has_open_objects(schema):
        return None
    required: dict[str, Any] = _require_all_fields(to_closed_schema(schema))
    return required


def has_open_objects(schema: Any) -> bool:
    """Return whether an object in the schema allows arbitrary field names; closed, it would be empty."""
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
    """Return the direct subschemas, and lists of them."""
    found_schemas = [schema[keyword] for keyword in _SUBSCHEMA_KEYWORDS if keyword in schema]
    for table in _SUBSCHEMA_MAPS:
        subschemas = schema.get(table)
        found_schemas += subschemas.values() if isinstance(subschemas, Mapping) else ()
    return found_schemas


def _require_all_fields(schema: Any) -> Any:
    """Return the closed schema with all fields required and `$ref` without siblings."""
    if isinstance(schema, list):
        return [_require_all_fields(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    strict_schema = {name: value for name, value in schema.items() if name != "default"}
    strict_schema |= {
        keyword: _require_all_fields(schema[keyword]) for keyword in _SUBSCHEMA_KEYWORDS if keyword in schema
    }
    for table in _SUBSCHEMA_MAPS:
        if isinstance(schema.get(table), Mapping):
            strict_schema[table] = {name: _require_all_fields(value) for name, value in schema[table].items()}
    if "properties" in strict_schema:
        strict_schema["required"] = list(strict_schema["properties"])
    return strict_schema
