"""Subschemas: which parts of a JSON Schema speak of which parts of a value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import unquote

CheckCost = Literal["light", "heavy", "tangled"]
Schema = Mapping[str, Any]

ANY_SCHEMA: Schema = {}
MAX_CHECKS = 20_000
MAX_RULES_PER_VALUE = 1_000
MAX_REF_CHAIN = 32
ALTERNATIVES = ("anyOf", "oneOf")
SAME_VALUE_KEYWORDS = ("if", "then", "else", "not", "propertyNames")


def estimate_cost(root: Schema, value: Any) -> CheckCost:
    """How much there is to check: `heavy` when the value is big, `tangled` when rules multiply on one spot.

    To list all that is wrong costs memory and time in that measure, and the schema may be somebody else's.
    """
    total = 0
    waiting: list[tuple[Any, list[Schema]]] = [(value, [root])]
    while waiting:
        here, rules = waiting.pop()
        if not expand_rules(root, rules, value=here):
            return "tangled"
        total += len(rules)
        if total > MAX_CHECKS:
            return "heavy"
        for step, child in child_values(here):
            if told := [each for rule in rules for each in child_schemas(rule, step)]:
                waiting.append((child, told))
    return "light"


def expand_rules(root: Schema, rules: list[Schema], *, value: Any) -> bool:
    """Add to the rules all that speak of the same value; False when they are too many."""
    for rule in rules:
        rules.extend(same_value_schemas(root, rule))
        if isinstance(value, Mapping):
            rules.extend(
                each for each in rule.get("dependentSchemas", ANY_SCHEMA).values() if is_schema(each)
            )
        if len(rules) > MAX_RULES_PER_VALUE:
            return False
    return True


def same_value_schemas(root: Schema, schema: Schema) -> Iterator[Schema]:
    """The subschemas that speak of the same value."""
    if "$ref" in schema:
        yield ref_target(root, schema["$ref"])
    for name in ("allOf", *ALTERNATIVES):
        yield from (each for each in get_list(schema, name) if is_schema(each))
    for name in SAME_VALUE_KEYWORDS:
        if is_schema(schema.get(name)):
            yield schema[name]


def child_schemas(schema: Schema, step: str | int) -> list[Schema]:
    """The subschemas that speak of what is at this key or index."""
    found: list[Any] = []
    if isinstance(step, int):
        first = get_list(schema, "prefixItems")
        found = [first[step] if step < len(first) else schema.get("items"), schema.get("contains")]
        found.append(schema.get("unevaluatedItems"))
        return [each for each in found if is_schema(each)]
    found = [get_mapping(schema, "properties").get(step)]
    found += [
        rule for pattern, rule in get_mapping(schema, "patternProperties").items() if may_match(pattern, step)
    ]
    known = any(each is not None for each in found)
    if not known:
        found += [schema.get("additionalProperties"), schema.get("unevaluatedProperties")]
    return [each for each in found if is_schema(each)]


def child_values(value: Any) -> Iterator[tuple[str | int, Any]]:
    """The keys or indices of a value, with what is there."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def may_match(pattern: str, name: str) -> bool:
    """Whether a pattern of `patternProperties` may speak of a name: sure only for plain beginnings."""
    plain = re.fullmatch(r"\^([A-Za-z0-9_-]+)", pattern)
    return plain is None or name.startswith(plain[1])


def resolve_ref(root: Schema, schema: Any) -> Schema:
    """The schema itself, or what its `$ref` leads to within the same document; ANY where that is nothing."""
    for _ in range(MAX_REF_CHAIN):
        if not is_schema(schema):
            return ANY_SCHEMA
        if "$ref" not in schema:
            return dict(schema)
        others = {key: rule for key, rule in schema.items() if key != "$ref"}
        schema = {**ref_target(root, schema["$ref"]), **others}
    return ANY_SCHEMA


def ref_target(root: Schema, reference: Any) -> Schema:
    """What a reference within the document leads to; ANY for another one."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return ANY_SCHEMA
    steps = [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference[1:].split("/")[1:]]
    found = schema_at(root, steps)
    return found if is_schema(found) else ANY_SCHEMA


def schema_at(root: Any, path: Sequence[str | int]) -> Any:
    """What is at a path in the schema; None when nothing is."""
    here = root
    for step in path:
        if isinstance(here, Mapping):
            here = here.get(str(step))
        elif isinstance(here, list) and str(step).isdigit() and int(step) < len(here):
            here = here[int(step)]
        else:
            return None
    return here


def is_schema(schema: Any) -> bool:
    return isinstance(schema, Mapping)


def get_mapping(schema: Schema, keyword: str) -> Schema:
    found = schema.get(keyword)
    return found if isinstance(found, Mapping) else ANY_SCHEMA


def get_list(schema: Schema, keyword: str) -> Sequence[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else ()
