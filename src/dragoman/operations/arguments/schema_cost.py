"""The cost of a JSON Schema of another program: to compile it, and to check a value with it.

The validator compiles and checks in one native call that blocks the interpreter. A schema of 2 kB can make
that call take hours: by references that double at each level, or by patterns with large repetitions. So the
cost is estimated first, and a schema or value that would cost too much is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from dragoman.json_decoding import parse_digits
from dragoman.large_json import SMALL, measure
from dragoman.operations.arguments.subschemas import (
    ALTERNATIVES,
    ANY_SCHEMA,
    Schema,
    child_schemas,
    child_values,
    get_list,
    get_mapping,
    is_container,
    is_schema,
    rules_with_children,
    same_value_schemas,
)

MAX_COMPILE_COST = 25_000  # microseconds, roughly
MAX_CHECK_COST = 1_000_000  # rules applied to values, each 0.02 to 0.05 microseconds
MAX_COUNTED_COST = 200_000  # the same where each rule is counted, which takes longer than applying it
MAX_OPEN = 200  # nested parts of a schema
CHILD_KEYWORDS = (
    "items",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "additionalItems",
)
NAME_MATCH_COST, USUAL_NAME = 4.0, 20
LEAST_CHECK_COST, CHECK_COST_PER_VALUE = 1_000, 8
ENTRY_COST, ITEM_COST, COPY_COST, PATTERN_COST = 1.5, 0.4, 5.0, 12.0
UNIQUE_COST, FRACTION_COST, ALTERNATIVE_COST = 5.0, 2_000.0, 5.0
MAX_EXACT = 1e15  # larger numbers, and smaller fractions than its inverse, are divided digit by digit
MAX_WIDE_COST, MAX_UNIQUE_WIDE_COST = 200_000, 400
WORD = 64  # bits of an integer that is compared at once
COSTLY_KEYWORDS = frozenset({"uniqueItems", "multipleOf", "pattern", "patternProperties"})
EXTRA_KEYWORDS = frozenset({"uniqueItems", "multipleOf", *ALTERNATIVES})
COMPARING_KEYWORDS = frozenset(
    {"multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const"}
)
PATTERN_STEPS = 50  # steps of a regular expression in one unit of MAX_CHECK_COST
PATTERN_TOKEN = re.compile(
    r"(?P<group>\((?:\?(?:[:=!>]|<[=!]|P?<\w+>|[a-zA-Z-]+:?)?)?)|(?P<end>\))"
    r"|\{(?P<least>\d*)(?:,(?P<most>\d*))?\}|(?P<class>\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\])|(?P<open>\[)"
    r"|(?P<property>\\[pP](?:\{[^}\\]*\}|.))|(?P<wide>\\[SWDB.]|\.)|(?P<plain>\\.|.)",
    re.DOTALL,
)
ATOM_COSTS = {"property": 1_000.0, "wide": 45.0, "class": 1.0, "plain": 0.1}  # microseconds a repetition
BACKTRACKING = re.compile(r"\(\?(?:[=!>]|<[=!])|\\[1-9k]|[*+?}]\+")
BACKTRACKING_COST = 2_500
MAX_REPETITIONS = 1_000_000
MAX_CACHED = 1_000  # characters of a pattern
UNCOUNTED_KEYWORDS = ("$dynamicRef", "$recursiveRef")
BASE_KEYWORDS = ("$id", "id")  # references in such a part start from it
COUNTED_KEYWORDS = frozenset(
    {
        "$ref",
        *UNCOUNTED_KEYWORDS,
        *BASE_KEYWORDS,
        "pattern",
        "patternProperties",
        "unevaluatedProperties",
        "unevaluatedItems",
    }
)


class RecursiveSchema(Exception):
    """A schema refers to itself, or through a very long chain of others."""


class CostLimitReached(Exception):
    """The cost is above the limit, so that counting stops."""


class CompileCost:
    """The cost of compiling one schema, or a part of `root`. Raises CostLimitReached above the limit."""

    def __init__(self, schema: Schema, limit: float, *, root: Schema) -> None:
        self.total = 0.0
        self.patterns = 0.0
        """The cost of all patterns together."""
        self.backtracking = 0
        """The number of patterns that need backtracking."""
        self.root = root
        self._limit = limit
        self._has_base = self._refers_elsewhere = False
        self._walk(schema)

    def _add(self, cost: float) -> None:
        self.total += cost
        if self.total > self._limit:
            raise CostLimitReached

    def _walk(self, schema: Schema) -> None:
        pending: list[Any] = [schema]
        while pending:
            current = pending.pop()
            if isinstance(current, Mapping):
                self._add(ENTRY_COST * (len(current) + 1))
                self._add_keywords(current)
                pending.extend(filter(is_container, current.values()))
            else:
                self._add(ITEM_COST * len(current))
                pending.extend(filter(is_container, current))

    def _add_keywords(self, schema: Schema) -> None:
        if COUNTED_KEYWORDS.isdisjoint(schema):
            return
        patterns = get_mapping(schema, "patternProperties")
        self._add(0.05 * len(patterns) * len(get_mapping(schema, "properties")))
        for pattern in (schema.get("pattern"), *patterns):
            if isinstance(pattern, str):
                cost = pattern_cost(pattern)
                self.patterns += cost
                self.backtracking += bool(BACKTRACKING.search(pattern))
                self._add(PATTERN_COST + cost)
        self._add_references(schema)
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            self._add_copies(schema)

    def _add_references(self, schema: Schema) -> None:
        """Record the schema's references. Only those that are paths in the document can be counted."""
        reference = text_of(schema, "$ref") or "#"
        is_path = reference == "#" or reference.startswith("#/")
        has_base = any(text_of(schema, keyword) for keyword in BASE_KEYWORDS)
        self._has_base = self._has_base or has_base
        self._refers_elsewhere = self._refers_elsewhere or not is_path
        is_uncounted = (
            any(text_of(schema, keyword) for keyword in UNCOUNTED_KEYWORDS)
            or (not is_path and reference.startswith("#"))
            or (has_base and schema is not self.root)
        )
        if is_uncounted or (self._has_base and self._refers_elsewhere):
            raise CostLimitReached

    def _add_copies(self, schema: Schema) -> None:
        """Add the subschemas that the validator copies for `unevaluated…`: those for the same value."""
        pending: list[tuple[Schema, tuple[int, ...]]] = [(schema, ())]
        while pending:
            current, ancestors = pending.pop()
            self._add(COPY_COST * (len(current) + 2))
            path = (*ancestors, id(current))
            copied = copied_schemas(self.root, current)
            pending.extend((each, path) for each in copied if id(each) not in path)


class RulesByDepth:
    """Counts the rules that apply to one value at most, by the depth of the value.

    Each part of the schema is counted once, however many references lead to it.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._counts: dict[int, list[float]] = {}
        self._open: set[int] = set()

    def count(self, schema: Schema) -> list[float]:
        """Return the counts below a part of the schema. Raises RecursiveSchema."""
        if "$ref" not in schema and not any(map(is_container, schema.values())):
            return [1.0 + extra_weight(schema)]
        key = id(schema)
        counted = self._counts.get(key)
        if counted is not None:
            return counted
        if key in self._open or len(self._open) > MAX_OPEN:
            raise RecursiveSchema
        self._open.add(key)
        below: list[float] = []
        for each in get_mapping(schema, "properties").values():
            if is_schema(each):
                below = [max(pair) for pair in zip_longest(below, self.count(each), fillvalue=0.0)]
        for times, each in subschemas_within(schema):
            below = add_counts(below, self.count(each), times=times)
        counts = [rule_weight(schema) + extra_weight(schema), *below]
        for each in applied_schemas(self._root, schema, value=ANY_SCHEMA):
            counts = add_counts(counts, self.count(each))
        self._open.discard(key)
        self._counts[key] = counts
        return counts


def add_counts(left: list[float], right: list[float], *, times: float = 1) -> list[float]:
    return [a + times * b for a, b in zip_longest(left, right, fillvalue=0.0)]


def subschemas_within(schema: Schema) -> Iterator[tuple[float, Schema]]:
    """Yield the weight of each subschema for values within a value, except for `properties`, and it."""
    for keyword in CHILD_KEYWORDS:
        if isinstance(each := schema.get(keyword), Mapping):
            yield 1, each
    for keyword in ("prefixItems", "items"):
        yield from ((1, each) for each in get_list(schema, keyword) if is_schema(each))
    for each in get_mapping(schema, "patternProperties").values():
        yield NAME_MATCH_COST, each if is_schema(each) else ANY_SCHEMA


def rule_weight(schema: Schema) -> float:
    """Return the weight of a schema without its subschemas: lists of options and names take longer."""
    return 1 + sum(map(len, filter(is_container, schema.values()))) / 4


def extra_weight(schema: Schema) -> float:
    """Return the most that unique items, fractions of `multipleOf` and alternatives add to the weight."""
    if EXTRA_KEYWORDS.isdisjoint(schema):
        return 0.0
    is_fraction = isinstance(schema.get("multipleOf"), float)
    alternatives = sum(len(get_list(schema, keyword)) for keyword in ALTERNATIVES)
    unique = UNIQUE_COST if schema.get("uniqueItems") else 0
    return unique + (FRACTION_COST if is_fraction else 0) + ALTERNATIVE_COST * alternatives


def most_rules(root: Schema) -> float | None:
    """Return how many rules one value is checked against at most; None if that depends on the value."""
    try:
        return max(RulesByDepth(root).count(root))
    except RecursiveSchema:
        return None


def text_of(schema: Schema, keyword: str) -> str:
    """Return the value of a keyword if it is text, else an empty one: a field may have the same name."""
    value = schema.get(keyword)
    return value if isinstance(value, str) else ""


def copied_schemas(root: Schema, schema: Schema) -> Iterator[Schema]:
    yield from same_value_schemas(root, schema)
    for name in ("dependentSchemas", "dependencies"):
        yield from (each for each in get_mapping(schema, name).values() if is_schema(each))


def compile_cost(
    schema: Schema, limit: float = MAX_COMPILE_COST, *, root: Schema | None = None
) -> CompileCost | None:
    """Return the cost of compiling a schema, or a part of `root`; None if it is above the limit."""
    try:
        return CompileCost(schema, limit, root=schema if root is None else root)
    except CostLimitReached:
        return None


def pattern_cost(pattern: str) -> float:
    """Return roughly how large a regular expression is once its repetitions are written out."""
    groups: list[float] = [0.0]
    last = 0.0
    for token in PATTERN_TOKEN.finditer(pattern):
        kind = token.lastgroup
        if kind in ("least", "most"):
            times = max(repetitions(number) for number in (token["least"], token["most"], "1") if number)
            groups[-1] += last * (times - 1)
            last *= times
            continue
        if kind == "open":  # a class without an end: the pattern is invalid and will not be compiled
            break
        if kind == "group":
            groups.append(0.0)
            continue
        if kind == "end":
            last = groups.pop() if len(groups) > 1 else 0.0
        else:
            last = class_cost(token[0]) if kind == "class" else ATOM_COSTS.get(kind or "", 0.0)
        groups[-1] += last
    return sum(groups)


def repetitions(digits: str) -> int:
    """Return a number of repetitions, at most a million."""
    number = parse_digits(digits)
    return MAX_REPETITIONS if number is None else min(number, MAX_REPETITIONS)


def class_cost(text: str) -> float:
    """Return the cost of a class of characters such as `[a-z]`."""
    if re.search(r"\\[pP]", text):
        return ATOM_COSTS["property"]
    if text.startswith("[^") or re.search(r"\\[SWD]|[^\x00-\x7f]", text):
        return ATOM_COSTS["wide"]
    return ATOM_COSTS["class"]


class CheckCost:
    """Estimates the cost of checking values with one compiled schema."""

    def __init__(self, cost: CompileCost) -> None:
        self._cost = cost
        self._most_rules = most_rules(cost.root)
        self._wide_limit = wide_integers_limit(cost.root)

    def is_too_high(self, value: Any, *, count: int) -> bool:
        """Return whether checking a value, which consists of `count` values, would take too long."""
        if has_wide_integers(value, self._wide_limit):
            return True
        if self._most_rules is not None:
            most = count * (self._most_rules + self._cost.backtracking * BACKTRACKING_COST)
            size = measure(value) if self._cost.patterns else 0
            if size <= SMALL and most + size * self._cost.patterns / PATTERN_STEPS <= MAX_CHECK_COST:
                return False
        return has_too_many_checks(self._cost.root, value, count=count)


def has_too_many_checks(root: Schema, value: Any, *, count: int) -> bool:
    """Return whether the validator would apply too many rules to a value; counts each application."""
    limit = min(MAX_COUNTED_COST, LEAST_CHECK_COST + CHECK_COST_PER_VALUE * count)
    weighed = WeighedRules(root)
    total = 0.0
    pending: list[tuple[Any, list[Schema]]] = [(value, [root])]
    while pending:
        current, rules = pending.pop()
        is_object = isinstance(current, Mapping)
        for rule in rules:
            weight, applied = weighed.weigh(rule, is_object=is_object)
            total += weight + rule_cost(rule, current)
            if total > limit:
                return True
            rules.extend(applied)
        parents, steps = rules_with_children(rules, current)
        total += steps
        if total > limit:
            return True
        for key, child in child_values(current):
            if child_rules := [schema for rule in parents for schema in child_schemas(rule, key)]:
                pending.append((child, child_rules))
    return False


def wide_integers_limit(schema: Schema) -> int | None:
    """Return the limit of the cost of integers beyond 64 bits; None if no rule compares them."""
    limit = None
    pending: list[Any] = [schema]
    while pending:
        current = pending.pop()
        if isinstance(current, Mapping):
            if current.get("uniqueItems") is True:  # each of them is compared with all others
                return MAX_UNIQUE_WIDE_COST
            if not COMPARING_KEYWORDS.isdisjoint(current):
                limit = MAX_WIDE_COST
            pending.extend(filter(is_container, current.values()))
        else:
            pending.extend(filter(is_container, current))
    return limit


def has_wide_integers(value: Any, limit: int | None) -> bool:
    """Return whether the integers beyond 64 bits in a value cost more than the limit."""
    if limit is None:
        return False
    cost = 0
    pending: list[Any] = [value]
    while pending and cost <= limit:
        for _, each in child_values(pending.pop()):
            if isinstance(each, int):
                words = each.bit_length() // WORD
                cost += (words + 1) ** 2 if words else 0
            elif not isinstance(each, str):
                pending.append(each)
    return cost > limit


class WeighedRules:
    """Weighs each rule of a schema once, and finds the subschemas that apply to the same value."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._weighed: dict[tuple[int, bool], tuple[float, list[Schema]]] = {}

    def weigh(self, rule: Schema, *, is_object: bool) -> tuple[float, list[Schema]]:
        key = (id(rule), is_object)
        weighed = self._weighed.get(key)
        if weighed is None:
            applied = applied_schemas(self._root, rule, value=ANY_SCHEMA if is_object else None)
            weighed = self._weighed[key] = (rule_weight(rule), list(applied))
        return weighed


def applied_schemas(root: Schema, rule: Schema, *, value: Any) -> Iterator[Schema]:
    """Yield the subschemas that apply to the same value, each as often as it is applied."""
    unevaluated = "unevaluatedProperties" in rule or "unevaluatedItems" in rule
    for _ in range(2 if unevaluated else 1):
        if isinstance(value, Mapping):
            yield from copied_schemas(root, rule)
        else:
            yield from same_value_schemas(root, rule)


def rule_cost(rule: Schema, value: Any) -> float:
    """Return the cost of the unique items, divisions and patterns of a rule for one value."""
    if COSTLY_KEYWORDS.isdisjoint(rule):
        return 0.0
    if isinstance(value, list | tuple) and rule.get("uniqueItems"):
        return UNIQUE_COST * len(value)
    if isinstance(value, int | float) and isinstance(step := rule.get("multipleOf"), float):
        return 0.0 if abs(value) < MAX_EXACT and step * MAX_EXACT > 1 else FRACTION_COST
    if isinstance(value, str) and isinstance(pattern := rule.get("pattern"), str):
        return match_cost(pattern, len(value))
    if isinstance(value, Mapping) and (patterns := get_mapping(rule, "patternProperties")):
        return NAME_MATCH_COST * len(patterns) * len(value) + sum(
            len(value) * match_cost(pattern, USUAL_NAME) for pattern in patterns
        )
    return 0.0


def match_cost(pattern: str, length: int) -> float:
    """Return the cost of matching a text of this length, including that of this estimate."""
    backtracks, steps = pattern_steps(pattern) if len(pattern) <= MAX_CACHED else (True, 0.0)
    return len(pattern) / 10 + (BACKTRACKING_COST if backtracks else length * steps)


@lru_cache(maxsize=256)
def pattern_steps(pattern: str) -> tuple[bool, float]:
    """Return whether a pattern needs backtracking, and its cost per character otherwise."""
    return bool(BACKTRACKING.search(pattern)), (1 + pattern_cost(pattern)) / PATTERN_STEPS


def outline(schema: Schema) -> dict[str, Any]:
    """Return a schema that only checks the names of an object's fields."""
    named: dict[str, Any] = {"type": "object"}
    if "$ref" in schema:
        return named
    required = get_list(schema, "required")
    if all(isinstance(name, str) for name in required):
        named["required"] = list(dict.fromkeys(required))
    properties = get_mapping(schema, "properties")
    if schema.get("additionalProperties") is False and not get_mapping(schema, "patternProperties"):
        named |= {"properties": dict.fromkeys(properties, ANY_SCHEMA), "additionalProperties": False}
    return named
