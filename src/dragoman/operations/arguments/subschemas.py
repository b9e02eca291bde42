"""Subschemas: which parts of a JSON Schema speak of which parts of a value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import unquote

Weight = Literal["light", "heavy", "tangled"]
Rules = Mapping[str, Any]

ANY: Rules = {}
TOTAL = 20_000
TANGLED = 1_000
LONGEST_CHAIN = 32
ALTERNATIVES = ("anyOf", "oneOf")
SAME = ("if", "then", "else", "not", "propertyNames")


def weigh(root: Rules, value: Any) -> Weight:
    """How much there is to check: `heavy` when the value is big, `tangled` when rules multiply on one spot.

    To list all that is wrong costs memory and time in that measure, and the schema may be somebody else's.
    """
    total = 0
    waiting: list[tuple[Any, list[Rules]]] = [(value, [root])]
    while waiting:
        here, rules = waiting.pop()
        if not spread(root, rules, here=here):
            return "tangled"
        total += len(rules)
        if total > TOTAL:
            return "heavy"
        for step, child in children(here):
            if told := [each for rule in rules for each in inside(rule, step)]:
                waiting.append((child, told))
    return "light"


def spread(root: Rules, rules: list[Rules], *, here: Any) -> bool:
    """Add to the rules all that speak of the same value; False when they are too many."""
    for rule in rules:
        rules.extend(beside(root, rule))
        if isinstance(here, Mapping):
            rules.extend(each for each in rule.get("dependentSchemas", ANY).values() if is_rules(each))
        if len(rules) > TANGLED:
            return False
    return True


def beside(root: Rules, schema: Rules) -> Iterator[Rules]:
    """The subschemas that speak of the same value."""
    if "$ref" in schema:
        yield target(root, schema["$ref"])
    for name in ("allOf", *ALTERNATIVES):
        yield from (each for each in listed(schema, name) if is_rules(each))
    for name in SAME:
        if is_rules(schema.get(name)):
            yield schema[name]


def inside(schema: Rules, step: str | int) -> list[Rules]:
    """The subschemas that speak of what is at this key or index."""
    found: list[Any] = []
    if isinstance(step, int):
        first = listed(schema, "prefixItems")
        found = [first[step] if step < len(first) else schema.get("items"), schema.get("contains")]
        found.append(schema.get("unevaluatedItems"))
        return [each for each in found if is_rules(each)]
    found = [named(schema, "properties").get(step)]
    found += [rule for pattern, rule in named(schema, "patternProperties").items() if speaks(pattern, step)]
    known = any(each is not None for each in found)
    if not known:
        found += [schema.get("additionalProperties"), schema.get("unevaluatedProperties")]
    return [each for each in found if is_rules(each)]


def children(value: Any) -> Iterator[tuple[str | int, Any]]:
    """The keys or indices of a value, with what is there."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def speaks(pattern: str, name: str) -> bool:
    """Whether a pattern of `patternProperties` may speak of a name: sure only for plain beginnings."""
    plain = re.fullmatch(r"\^([A-Za-z0-9_-]+)", pattern)
    return plain is None or name.startswith(plain[1])


def resolve(root: Rules, schema: Any) -> Rules:
    """The schema itself, or what its `$ref` leads to within the same document; ANY where that is nothing."""
    for _ in range(LONGEST_CHAIN):
        if not is_rules(schema):
            return ANY
        if "$ref" not in schema:
            return dict(schema)
        others = {key: rule for key, rule in schema.items() if key != "$ref"}
        schema = {**target(root, schema["$ref"]), **others}
    return ANY


def target(root: Rules, reference: Any) -> Rules:
    """What a reference within the document leads to; ANY for another one."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return ANY
    steps = [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference[1:].split("/")[1:]]
    found = fragment(root, steps)
    return found if is_rules(found) else ANY


def fragment(root: Any, path: Sequence[str | int]) -> Any:
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


def is_rules(schema: Any) -> bool:
    return isinstance(schema, Mapping)


def named(schema: Rules, keyword: str) -> Rules:
    found = schema.get(keyword)
    return found if isinstance(found, Mapping) else ANY


def listed(schema: Rules, keyword: str) -> Sequence[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else ()
