"""The form of a constrained answer: the JSON Schema that lets a model call one of the tools, or answer.

A small server makes a grammar of the schema, and knows only part of JSON Schema. So schemas are simplified:
references are put in where they point (within themselves they end), `allOf` is merged, objects with
properties take no others, and `pattern`, `format`, `not`, `if` and whatever else is no shape is left out. An
input of the form may therefore still be refused where it is called; the call says so.
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
    """The schema of `{"call", "input"}` for each of the tools and, if it is allowed, of `{"answer"}`."""
    forms = [
        _closed_object({"call": {"const": tool.name}, "input": tool_input_schema(tool)}) for tool in tools
    ]
    return {"anyOf": [*forms, _closed_object({"answer": {"type": "string"}})] if allow_answer else forms}


def tool_input_schema(tool: Tool) -> dict[str, Any]:
    """The simplified schema of a tool's input; it is always an object."""
    simple = simplify_schema(tool.input_schema)
    if "anyOf" in simple:
        return {"anyOf": [{**choice, "type": "object"} for choice in simple["anyOf"]]}
    return {**simple, "type": "object"}


def simplify_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema in the few words that every server knows."""
    return _SchemaSimplifier(schema).simplify(schema)


def example_value(schema: Mapping[str, Any]) -> Any:
    """A value of a simplified schema, as short as it can be: what a model is shown of a call."""
    for word in ("const", "default"):
        if word in schema:
            return schema[word]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        return example_value(schema["anyOf"][0])
    kind = schema.get("type")
    match kind[0] if kind and isinstance(kind, list) else kind:
        case "object":
            required = schema.get("required", ())
            shown = schema.get("properties", {}).items()
            return {name: example_value(of) for name, of in shown if name in required or "default" in of}
        case "array":
            return [example_value(schema.get("items", {}))]
        case other:
            return _EXAMPLE_VALUES.get(str(other), "...")


class _SchemaSimplifier:
    """One walk over a schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._open_references: list[str] = []  # the references that the walk is in
        self._depth = 0

    def simplify(self, schema: Any) -> dict[str, Any]:
        """`{}`, which is any value, for what is nested too deep, or in itself."""
        if not isinstance(schema, Mapping) or self._depth > MAX_DEPTH:
            return {}
        outside = len(self._open_references)
        self._depth += 1
        simple = self._simplify_keywords(self._resolve_references(schema))
        self._depth -= 1
        del self._open_references[outside:]
        return simple

    def _simplify_keywords(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        simple = {word: schema[word] for word in _SUPPORTED_KEYWORDS if word in schema}
        if isinstance(schema.get("properties"), Mapping) and schema["properties"]:
            return simple | self._simplify_object(schema)
        choices = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(choices, list) and "type" not in simple:
            return simple | {"anyOf": [self.simplify(choice) for choice in choices]}
        for word in ("items", "additionalProperties"):
            if isinstance(schema.get(word), Mapping):
                simple[word] = self.simplify(schema[word])
        if schema.get("additionalProperties") is False:
            simple |= {"properties": {}, "additionalProperties": False}
        return simple

    def _simplify_object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        shown = {name: self.simplify(of) for name, of in schema["properties"].items()}
        required = [name for name in schema.get("required", ()) if isinstance(name, str)]
        missing: dict[str, Any] = {name: {} for name in required if name not in shown}
        return _closed_object({**shown, **missing}, required)

    def _resolve_references(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """The schema with its own `$ref` and `allOf` merged into it."""
        parts = list(schema.get("allOf") or ())
        if "$ref" in schema:
            parts.append(self._resolve_pointer(str(schema["$ref"])))
        whole: Mapping[str, Any] = {word: of for word, of in schema.items() if word not in ("allOf", "$ref")}
        for part in parts:
            if isinstance(part, Mapping):
                whole = _merge_schemas(self._resolve_references(part), whole)
        return whole

    def _resolve_pointer(self, pointer: str) -> Any:
        """What a JSON Pointer within the schema points to; nothing when the walk is there already."""
        if pointer in self._open_references or not pointer.startswith("#"):
            return None
        self._open_references.append(pointer)
        found: Any = self._root
        for step in pointer.split("/")[1:]:
            word = step.replace("~1", "/").replace("~0", "~")
            found = found.get(word) if isinstance(found, Mapping) else None
        return found


def _closed_object(properties: Mapping[str, Any], required: Iterable[str] | None = None) -> dict[str, Any]:
    """An object of these properties and no others; all are required unless it is said which."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }


def _merge_schemas(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**left, **right}
    if "properties" in left and "properties" in right:
        merged["properties"] = {**left["properties"], **right["properties"]}
    if "required" in left and "required" in right:
        merged["required"] = [*left["required"], *right["required"]]
    return merged
