"""Subschemas: which parts of a JSON Schema apply to which parts of a value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import unquote

from dragoman.json_decoding import parse_digits
from dragoman.large_json import measure

CheckCost = Literal["light", "heavy", "tangled"]
Schema = Mapping[str, Any]

ANY_SCHEMA: Schema = {}
MAX_CHECKS = 2_000
MAX_RULES_PER_VALUE = 1_000
MANY_RULES = 50
MAX_STEPS = 20_000  # rules that are looked up for the values within a value
MAX_COPIED = 4_000_000  # bytes; each error contains a copy of its value
MAX_REF_CHAIN = 32
ALTERNATIVES = ("anyOf", "oneOf")
SAME_VALUE_KEYWORDS = ("if", "then", "else", "not", "propertyNames")
APPLIED_KEYWORDS = frozenset({"$ref", "allOf", *ALTERNATIVES, *SAME_VALUE_KEYWORDS})
ITEM_KEYWORDS = ("prefixItems", "items", "additionalItems", "contains", "unevaluatedItems")
SCALARS = frozenset({str, int, float, bool, type(None)})
FIELD_KEYWORDS = ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties")


def estimate_cost(root: Schema, value: Any) -> CheckCost:
    """Estimate the cost of listing all errors, which is how the validator's time and memory grow.

    `heavy` for a large value, `tangled` if rules multiply on one value. The schema is not trusted.
    """
    total = steps = copied = 0
    pending: list[tuple[Any, list[Schema]]] = [(value, [root])]
    while pending:
        current, rules = pending.pop()
        size = measure(current)
        if not expand_rules(root, rules, value=current):
            return "tangled"
        if len(rules) > MANY_RULES and len(rules) * size > MAX_COPIED:
            return "tangled"
        total += len(rules) + (len(current) if isinstance(current, Mapping | list | tuple) else 0)
        copied += size * sum(count_errors(rule, current) for rule in rules)
        parents, taken = rules_with_children(rules, current)
        steps += taken
        if total > MAX_CHECKS or steps > MAX_STEPS or copied > MAX_COPIED:
            return "heavy"
        for key, child in child_values(current):
            if child_rules := [schema for rule in parents for schema in child_schemas(rule, key)]:
                pending.append((child, child_rules))
    return "light"


def count_errors(rule: Schema, value: Any) -> int:
    """Return how many errors of the value itself a rule may cause: one for each missing field or name."""
    if not isinstance(value, Mapping):
        return 1
    dependent = [names for key, names in get_mapping(rule, "dependentRequired").items() if key in value]
    lists = [get_list(rule, "required"), *(names for names in dependent if isinstance(names, list))]
    missing = sum(isinstance(name, str) and name not in value for names in lists for name in names)
    return 1 + missing + (len(value) if "propertyNames" in rule else 0)


def rules_with_children(rules: Sequence[Schema], value: Any) -> tuple[list[Schema], int]:
    """Return the rules for the values within a value, and how many steps it takes to look up all."""
    if not isinstance(value, Mapping | list | tuple):
        return [], 0
    keywords = FIELD_KEYWORDS if isinstance(value, Mapping) else ITEM_KEYWORDS
    parents = [rule for rule in rules if any(keyword in rule for keyword in keywords)]
    return parents, len(value) * sum(1 + len(get_mapping(rule, "patternProperties")) for rule in parents)


def expand_rules(root: Schema, rules: list[Schema], *, value: Any) -> bool:
    """Add all schemas that apply to the same value; return False if they are too many."""
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
    """Return the subschemas that apply to the same value."""
    if APPLIED_KEYWORDS.isdisjoint(schema):
        return
    if "$ref" in schema:
        yield ref_target(root, schema["$ref"])
    for name in ("allOf", *ALTERNATIVES):
        yield from (each for each in get_list(schema, name) if is_schema(each))
    for name in SAME_VALUE_KEYWORDS:
        if is_schema(schema.get(name)):
            yield schema[name]


def is_container(value: Any) -> bool:
    """Return whether a value of a schema is an object or a list; other values return quickly."""
    return type(value) not in SCALARS and isinstance(value, Mapping | list)


def child_schemas(schema: Schema, step: str | int) -> list[Schema]:
    """Return the subschemas that apply to the value at a key or index."""
    candidates: list[Any] = []
    if isinstance(step, int):
        by_place = get_list(schema, "prefixItems") or get_list(schema, "items")
        others = schema.get("additionalItems" if isinstance(schema.get("items"), list) else "items")
        candidates = [by_place[step] if step < len(by_place) else others, schema.get("contains")]
        candidates.append(schema.get("unevaluatedItems"))
        return [each for each in candidates if is_schema(each)]
    candidates = [get_mapping(schema, "properties").get(step)]
    candidates += [
        rule for pattern, rule in get_mapping(schema, "patternProperties").items() if may_match(pattern, step)
    ]
    is_named = any(each is not None for each in candidates)
    if not is_named:
        candidates += [schema.get("additionalProperties"), schema.get("unevaluatedProperties")]
    return [each for each in candidates if is_schema(each)]


def child_values(value: Any) -> Iterator[tuple[str | int, Any]]:
    """Return the keys or indexes of a value with their values."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def may_match(pattern: str, name: str) -> bool:
    """Return whether a pattern of `patternProperties` may match a name; exact only for plain prefixes."""
    literal_prefix = re.fullmatch(r"\^([A-Za-z0-9_-]+)", pattern)
    return literal_prefix is None or name.startswith(literal_prefix[1])


def resolve_ref(root: Schema, schema: Any) -> Schema:
    """Return the schema with its `$ref` resolved within the document; ANY_SCHEMA if it leads nowhere."""
    for _ in range(MAX_REF_CHAIN):
        if not is_schema(schema):
            return ANY_SCHEMA
        if "$ref" not in schema:
            return dict(schema)
        others = {key: rule for key, rule in schema.items() if key != "$ref"}
        schema = {**ref_target(root, schema["$ref"]), **others}
    return ANY_SCHEMA


def ref_target(root: Schema, reference: Any) -> Schema:
    """Return the schema that a reference within the document points to; ANY_SCHEMA for any other."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return ANY_SCHEMA
    steps = [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference[1:].split("/")[1:]]
    schema = schema_at(root, steps)
    return schema if is_schema(schema) else ANY_SCHEMA


def schema_at(root: Any, path: Sequence[str | int]) -> Any:
    """Return the value at a path of the schema, or None."""
    current = root
    for step in path:
        if isinstance(current, Mapping):
            current = current.get(str(step))
        elif isinstance(current, list) and (at := parse_digits(str(step))) is not None and at < len(current):
            current = current[at]
        else:
            return None
    return current


def is_schema(schema: Any) -> bool:
    return isinstance(schema, Mapping)


def get_mapping(schema: Schema, keyword: str) -> Schema:
    value = schema.get(keyword)
    return value if isinstance(value, Mapping) else ANY_SCHEMA


def get_list(schema: Schema, keyword: str) -> Sequence[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else ()
