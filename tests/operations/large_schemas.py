"""Schemas that cost much to compile or to check: large ones, and small ones that multiply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from itertools import pairwise
from typing import Any

Schema = dict[str, Any]


def chain(make: Callable[[Schema], Schema], *, length: int = 40) -> Schema:
    """Return definitions, each made of the next: what refers to it twice doubles at each."""
    names = [f"d{number}" for number in range(length + 1)]
    definitions = {name: make({"$ref": f"#/$defs/{following}"}) for name, following in pairwise(names)}
    return {"$defs": {**definitions, names[-1]: {"type": "string"}}}


def nested(depth: int, width: int) -> Schema:
    """Return a tree of objects."""
    if depth == 0:
        return {"type": "string", "minLength": 1}
    return {"type": "object", "properties": {f"k{each}": nested(depth - 1, width) for each in range(width)}}


def with_fields(count: int, field: Callable[[int], Any], **more: Any) -> Schema:
    return {"type": "object", "properties": {f"field_{each}": field(each) for each in range(count)}, **more}


FIRST: Schema = {"$ref": "#/$defs/d0"}
BRANCH: Schema = {"properties": {"x": {"$ref": "#/$defs/node"}}}
DEEP: Schema = reduce(lambda inner, _: {"x": inner}, range(60), {})
LARGE: Mapping[str, Schema] = {
    "fields": with_fields(3_000, lambda _: {"type": "string", "description": "Says what."}),
    "options": with_fields(1, lambda _: {"enum": [f"option-{each}" for each in range(12_000)]}),
    "objects": with_fields(1, lambda _: {"enum": [{"k": each, "v": [each]} for each in range(6_000)]}),
    "constants": with_fields(
        1, lambda _: {"oneOf": [{"const": each, "title": "t"} for each in range(4_000)]}
    ),
    "tree": nested(5, 5),
    "references": with_fields(
        1_500,
        lambda each: {"$ref": f"#/$defs/d{each}"},
        **{
            "$defs": {
                f"d{each}": {"type": "object", "properties": {"y": {"$ref": f"#/$defs/d{each * 7 % 1500}"}}}
                for each in range(1_500)
            }
        },
    ),
    "patterns": with_fields(3_000, lambda each: {"pattern": f"^[a-z{each}]+$"}),
}
DOUBLING: Mapping[str, Callable[[Schema], Schema]] = {
    "anyOf": lambda rest: {"anyOf": [rest, rest]},
    "allOf": lambda rest: {"allOf": [rest, rest]},
    "oneOf and not": lambda rest: {"oneOf": [rest, {"not": rest}]},
    "if": lambda rest: {"if": rest, "then": rest, "else": rest},
}
EITHER = chain(DOUBLING["anyOf"])
MANY_NAMES = [f"z{each}" for each in range(900)]
FIELDS = {f"k{each}": "v" * 50 for each in range(900)}
HOSTILE: Mapping[str, tuple[Schema, Schema]] = {  # and the input of a call
    **{name: ({"properties": {"a": FIRST}, **chain(make)}, {"a": 5}) for name, make in DOUBLING.items()},
    "unevaluated": ({"unevaluatedProperties": False, **FIRST, **EITHER}, {"a": 5}),
    "dependent": (FIRST | chain(lambda rest: {"dependentSchemas": {"a": rest, "b": rest}}), {"a": 5, "b": 5}),
    "names": ({"propertyNames": FIRST, **chain(lambda rest: {"not": {"allOf": [rest, rest]}})}, {"a": 5}),
    "draft 7": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {"a": {"items": [FIRST]}},
            **EITHER,
        },
        {"a": [5]},
    ),
    "anchors": (
        {
            "properties": {"a": {"$ref": "#d0"}},
            "$defs": {
                str(each): {"$anchor": f"d{each}", "anyOf": [{"$ref": f"#d{each + 1}"}] * 2}
                for each in range(40)
            }
            | {"last": {"$anchor": "d40", "type": "string"}},
        },
        {"a": 5},
    ),
    "a base": ({"properties": {"a": {"$id": "http://x/y", **FIRST, **EITHER}}}, {"a": 5}),
    "recursive": (
        {
            "$ref": "#/$defs/node",
            "$defs": {"node": {"anyOf": [BRANCH | {"required": ["y"]}, BRANCH | {"required": ["z"]}]}},
        },
        DEEP,
    ),
    "letters": (with_fields(300, lambda _: {"pattern": r"^\p{L}{1,200}$"}), {"field_1": "b"}),
    "repetitions": (
        with_fields(30, lambda _: {"pattern": "^(([a-z]{1,60}){1,60}){1,60}$"}),
        {"field_1": "b"},
    ),
    "backtracking": (
        {"properties": {"a": {"contains": {"pattern": "^(?=(a+)+$)b"}}}},
        {"a": ["a" * 40 + "!"] * 900},
    ),
    "many rules": (
        {"properties": {"a": {"items": {"allOf": [{"minLength": 1}] * 2_000}}}},
        {"a": ["x"] * 900},
    ),
    "unique wide integers": (
        {"properties": {"a": {"uniqueItems": True}}},
        {"a": [2**70 + each for each in range(1_000)]},
    ),
    "fractions": ({"properties": {"a": {"items": {"multipleOf": 1e-300}}}}, {"a": [1e300] * 2_000}),
    "all unique": (
        {"properties": {"a": {"allOf": [{"uniqueItems": True}] * 100}}},
        {"a": [[each] for each in range(9_000)]},
    ),
    "contains": (
        {"properties": {"a": {"allOf": [{"contains": {"const": 0}}] * 200}}},
        {"a": [*range(9_000)]},
    ),
    "patterns of names": (
        {"patternProperties": {f"^a{each}.*b$": {} for each in range(200)}, "required": ["z"]},
        FIELDS,
    ),
    "unevaluated fields": (
        {
            "properties": {
                "a": {
                    "allOf": [{"properties": {f"k{each}": {}}} for each in range(300)],
                    "unevaluatedProperties": False,
                }
            }
        },
        {"a": {f"k{each}": 1 for each in range(3_000)}},
    ),
}
HOSTILE_ERRORS: Mapping[str, tuple[Schema, Schema]] = {  # each error has a copy of the input
    "required": ({"required": MANY_NAMES}, FIELDS),
    "required by others": ({"dependentRequired": {f"k{each}": MANY_NAMES for each in range(20)}}, FIELDS),
    "required by all": (
        {"properties": {"a": {"allOf": [{"required": [each]} for each in MANY_NAMES]}}},
        {"a": FIELDS},
    ),
    "names of fields": ({"propertyNames": {"maxLength": 1}}, FIELDS),
    "alternatives": (
        {"properties": {"a": {"anyOf": [{"const": each} for each in range(900)]}}},
        {"a": "v" * 200_000},
    ),
    "dependent": ({"dependentSchemas": {f"k{each}": {"required": ["z"]} for each in range(900)}}, FIELDS),
}
