"""The JSON Schema of a constrained answer: a call of one of the tools, or an answer.

A small server turns the schema into a grammar and supports only part of JSON Schema. So schemas are
simplified: references are inlined (recursive ones end), `allOf` is merged, objects with properties are
closed, and `pattern`, `format`, `not`, `if` and other keywords are removed. An input that fits may therefore
still be rejected when the tool is called; the call reports that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dragoman.model_request import Tool

MAX_DEPTH = 12
_SUPPORTED_KEYWORDS = (
    "type", "enum", "const", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "minItems", "maxItems",
)  # fmt: skip
_EXAMPLE_VALUES: Mapping[str, Any] = {"integer": 1, "number": 1, "boolean": True, "null": None}


def answer_schema(tools: Sequence[Tool], *, allow_answer: bool) -> dict[str, Any]:
    """Return the schema of `{"call", "input"}` for each tool and, if `allow_answer`, of `{"answer"}`."""
    choices = [
        _closed_object({"call": {"const": tool.name}, "input": tool_input_schema(tool)}) for tool in tools
    ]
    return {"anyOf": [*choices, _closed_object({"answer": {"type": "string"}})] if allow_answer else choices}


def tool_input_schema(tool: Tool) -> dict[str, Any]:
    """Return the simplified schema of a tool's input; always an object."""
    simple = simplify_schema(tool.input_schema)
    if "anyOf" in simple:
        return {"anyOf": [{**choice, "type": "object"} for choice in simple["anyOf"]]}
    return {**simple, "type": "object"}


def simplify_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Simplify the schema to the keywords that every server supports."""
    return _SchemaSimplifier(schema).simplify(schema)


def example_value(schema: Mapping[str, Any]) -> Any:
    """Return a value that fits a simplified schema, as short as possible, for the example calls."""
    for keyword in ("const", "default"):
        if keyword in schema:
            return schema[keyword]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        return example_value(schema["anyOf"][0])
    schema_type = schema.get("type")
    match schema_type[0] if schema_type and isinstance(schema_type, list) else schema_type:
        case "object":
            required = schema.get("required", ())
            properties = schema.get("properties", {}).items()
            return {
                name: example_value(field_schema)
                for name, field_schema in properties
                if name in required or "default" in field_schema
            }
        case "array":
            return [example_value(schema.get("items", {}))]
        case type_name:
            return _EXAMPLE_VALUES.get(str(type_name), "...")


class _SchemaSimplifier:
    """Simplifies one schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._open_references: list[str] = []  # references being resolved
        self._depth = 0

    def simplify(self, schema: Any) -> dict[str, Any]:
        """Simplify a subschema; `{}`, which allows any value, if it is nested too deeply or recursive."""
        if not isinstance(schema, Mapping) or self._depth > MAX_DEPTH:
            return {}
        depth_before = len(self._open_references)
        self._depth += 1
        simple = self._simplify_keywords(self._resolve_references(schema))
        self._depth -= 1
        del self._open_references[depth_before:]
        return simple

    def _simplify_keywords(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        simple = {keyword: schema[keyword] for keyword in _SUPPORTED_KEYWORDS if keyword in schema}
        if isinstance(schema.get("properties"), Mapping) and schema["properties"]:
            return simple | self._simplify_object(schema)
        choices = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(choices, list) and "type" not in simple:
            return simple | {"anyOf": [self.simplify(choice) for choice in choices]}
        for keyword in ("items", "additionalProperties"):
            if isinstance(schema.get(keyword), Mapping):
                simple[keyword] = self.simplify(schema[keyword])
        if schema.get("additionalProperties") is False:
            simple |= {"properties": {}, "additionalProperties": False}
        return simple

    def _simplify_object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        properties = {
            name: self.simplify(field_schema) for name, field_schema in schema["properties"].items()
        }
        required = [name for name in schema.get("required", ()) if isinstance(name, str)]
        missing: dict[str, Any] = {name: {} for name in required if name not in properties}
        return _closed_object({**properties, **missing}, required)

    def _resolve_references(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Merge `$ref` and `allOf` into the schema."""
        parts = list(schema.get("allOf") or ())
        if "$ref" in schema:
            parts.append(self._resolve_pointer(str(schema["$ref"])))
        merged: Mapping[str, Any] = {
            keyword: keyword_value
            for keyword, keyword_value in schema.items()
            if keyword not in ("allOf", "$ref")
        }
        for part in parts:
            if isinstance(part, Mapping):
                merged = _merge_schemas(self._resolve_references(part), merged)
        return merged

    def _resolve_pointer(self, pointer: str) -> Any:
        """Resolve a JSON Pointer within the schema; None if it is recursive."""
        if pointer in self._open_references or not pointer.startswith("#"):
            return None
        self._open_references.append(pointer)
        target: Any = self._root
        for step in pointer.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            target = target.get(key) if isinstance(target, Mapping) else None
        return target


def _closed_object(properties: Mapping[str, Any], required: Iterable[str] | None = None) -> dict[str, Any]:
    """Return a closed object with these properties; all are required unless `required` is given."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }


def _merge_schemas(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**base, **override}
    if "properties" in base and "properties" in override:
        merged["properties"] = {**base["properties"], **override["properties"]}
    if "required" in base and "required" in override:
        merged["required"] = [*base["required"], *override["required"]]
    return merged
