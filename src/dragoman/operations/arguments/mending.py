"""Mending: arguments that nearly fit their schema, taken as what was meant; each change is told in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jsonschema_rs
import msgspec

from dragoman.operations.arguments.findings import dotted
from dragoman.operations.arguments.lossless import choose, convert
from dragoman.operations.arguments.repair import repair
from dragoman.operations.arguments.schema import BACKTRACKS, is_deep
from dragoman.operations.arguments.subschemas import (
    ALTERNATIVES,
    Rules,
    inside,
    is_rules,
    listed,
    named,
    resolve,
    weigh,
)

ROOT = "urn:dragoman:arguments"
WRAPPERS = ("arguments", "input", "parameters", "args", "kwargs")
NOTES = 20
PATIENCE = 20_000  # values that are looked at
MIXED = re.compile(r"[^0-9a-z]+")
Path = tuple[str | int, ...]


class Mended(msgspec.Struct, frozen=True):
    """Arguments that fit, and what was changed in them; a value that fitted before has no notes."""

    value: dict[str, Any]
    notes: tuple[str, ...] = ()


def mend(input: Any, schema: Mapping[str, Any]) -> Mended | None:
    """The arguments as they were meant, or None when they cannot be made to fit without guessing.

    Changes only what does not fit: text that is JSON, a number or a truth value, and the other way round; a
    single value for a list; null for a field that may be left out; an option or a name written otherwise; an
    object wrapped into another. Makes nothing up, and drops nothing but nulls.
    """
    given = repair(input) if isinstance(input, str) else input
    notes = [] if given is input else ["the arguments were text; taken as the object in it"]
    if not isinstance(given, dict) or is_deep(given) or weigh(schema, given) != "light":
        return None
    try:
        fitter = Fitter(dict(schema))
        return fitter.mend(given, notes)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, RecursionError):
        return None


class Attempt(msgspec.Struct, frozen=True):
    """A value changed so that it may fit, and what was done to it."""

    value: Any
    notes: tuple[str, ...] = ()


class Fitter:
    """Fits values to the parts of one schema."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._registry = jsonschema_rs.Registry([(ROOT, root)])
        self._draft = {"$schema": root["$schema"]} if "$schema" in root else {}
        self._whole = self._compile(root)
        self._left = PATIENCE
        self._parts: dict[int, tuple[Rules, jsonschema_rs.Validator]] = {}

    def mend(self, given: dict[str, Any], notes: Sequence[str]) -> Mended | None:
        """The object as it fits the whole schema."""
        if self._whole.is_valid(given):
            return Mended(given, tuple(notes))
        for attempt in self._attempts(given):
            if isinstance(attempt.value, dict) and self._whole.is_valid(attempt.value):
                told = [*notes, *attempt.notes]
                more = [f"and {len(told) - NOTES} more changes"] if len(told) > NOTES else []
                return Mended(attempt.value, (*told[:NOTES], *more))
        return None

    def _attempts(self, given: dict[str, Any]) -> list[Attempt]:
        found = [self._fit(given, self._root, path=())]
        known = named(resolve(self._root, self._root), "properties")
        (name, *others) = given or ("",)
        if name in WRAPPERS and not others and name not in known:
            inner = given[name]
            held = repair(inner) if isinstance(inner, str) else inner
            if isinstance(held, dict):
                fitted = self._fit(held, self._root, path=())
                note = f"the arguments were wrapped in `{name}`; taken out of it"
                found.append(Attempt(fitted.value, (note, *fitted.notes)))
        return found

    def _fit(self, value: Any, schema: Any, *, path: Path) -> Attempt:
        """The value as it fits a part of the schema, as nearly as can be said for sure."""
        self._left -= 1
        if self._left < 0:
            raise ValueError("there is more to mend than anybody can follow")
        if not is_rules(schema) or self._fits(value, schema):
            return Attempt(value)
        rules = resolve(self._root, schema)
        attempt = self._chosen(value, rules, path=path)
        for part in (each for each in listed(rules, "allOf") if is_rules(each)):
            attempt = self._then(attempt, part, path=path)
        for keyword in ALTERNATIVES:
            if branches := [each for each in listed(rules, keyword) if is_rules(each)]:
                attempt = self._either(attempt, branches, path=path)
        return self._filled(attempt, rules, path=path)

    def _then(self, before: Attempt, schema: Rules, *, path: Path) -> Attempt:
        after = self._fit(before.value, schema, path=path)
        return Attempt(after.value, before.notes + after.notes)

    def _either(self, before: Attempt, branches: Sequence[Rules], *, path: Path) -> Attempt:
        """The value as it fits one of several forms, unless it could be made to fit them in several ways."""
        if any(self._fits(before.value, branch) for branch in branches):
            return before
        tried = [(branch, self._fit(before.value, branch, path=path)) for branch in branches]
        fitting = [attempt for branch, attempt in tried if self._fits(attempt.value, branch)]
        ways = {msgspec.json.encode(attempt.value, order="sorted"): attempt for attempt in reversed(fitting)}
        if len(ways) != 1:
            return before
        (after,) = ways.values()
        return Attempt(after.value, before.notes + after.notes)

    def _chosen(self, value: Any, rules: Rules, *, path: Path) -> Attempt:
        """The value as one of the options, or of one of the types, that are named."""
        options = [rules["const"]] if "const" in rules else listed(rules, "enum")
        wanted = types_of(rules)
        change = choose(value, options) if options else None
        if change is None and not options and wanted and not is_one_of(value, wanted):
            change = convert(value, wanted)
        return Attempt(value) if change is None else Attempt(change[0], (f"{spell(path)} {change[1]}",))

    def _filled(self, attempt: Attempt, rules: Rules, *, path: Path) -> Attempt:
        """The value with all that is in it fitted."""
        value, notes = attempt.value, list(attempt.notes)
        if isinstance(value, dict):
            value = self._named(value, rules, path=path, notes=notes)
            value = self._bared(value, rules, path=path, notes=notes)
            steps: Collection[Any] = value
        elif isinstance(value, list):
            value, steps = list(value), range(len(value))
        else:
            return attempt
        for step in steps:
            for part in told(rules, step):
                inner = self._fit(value[step], part, path=(*path, step))
                value[step] = inner.value
                notes += inner.notes
        return Attempt(value, tuple(notes))

    def _named(self, value: dict[str, Any], rules: Rules, *, path: Path, notes: list[str]) -> dict[str, Any]:
        """The object with names as the schema writes them, where no two could be meant."""
        known = named(rules, "properties")
        strange = [name for name in value if not inside({**rules, **CLOSED}, name)]
        free = [name for name in known if name not in value and self._is_wanted(name, rules)]
        meant = {plain(name): name for name in free}
        clashing = [key for key, count in Counter(map(plain, [*free])).items() if count > 1]
        clashing += [key for key, count in Counter(map(plain, strange)).items() if count > 1]
        changed = {
            name: meant[plain(name)]
            for name in strange
            if plain(name) in meant and plain(name) not in clashing
        }
        notes += [f"{spell((*path, old))} was taken as `{new}`, its name" for old, new in changed.items()]
        return {changed.get(name, name): held for name, held in value.items()}

    def _is_wanted(self, name: str, rules: Rules) -> bool:
        """Whether a field is missed, or another of its name would not be let in."""
        is_closed = rules.get("additionalProperties") is False or rules.get("unevaluatedProperties") is False
        return is_closed or name in listed(rules, "required")

    def _bared(self, value: dict[str, Any], rules: Rules, *, path: Path, notes: list[str]) -> dict[str, Any]:
        """The object without nulls in fields that may be left out and take no null."""
        known, required = named(rules, "properties"), listed(rules, "required")
        empty = [
            name
            for name, held in value.items()
            if held is None and name in known and name not in required and not self._fits(None, known[name])
        ]
        notes += [f"{spell((*path, name))} was null; left out" for name in empty]
        return {name: held for name, held in value.items() if name not in empty}

    def _fits(self, value: Any, schema: Any) -> bool:
        """Whether a value fits a part of the schema."""
        if not isinstance(schema, Mapping):
            return schema is not False
        known = self._parts.get(id(schema))
        if known is None:
            known = self._parts[id(schema)] = (schema, self._compile({**self._draft, **moved(schema)}))
        return known[1].is_valid(value)

    def _compile(self, schema: Any) -> jsonschema_rs.Validator:
        return jsonschema_rs.validator_for(
            schema, registry=self._registry, validate_formats=False, offline=True, pattern_options=BACKTRACKS
        )


CLOSED: Rules = {"additionalProperties": None, "unevaluatedProperties": None}


def told(rules: Rules, step: str | int) -> list[Rules]:
    """The rules for what is at a key or index, but for those that only some of the items have to follow."""
    return inside({name: rule for name, rule in rules.items() if name != "contains"}, step)


def moved(schema: Any) -> Any:
    """A part of the schema that still points into the whole one."""
    if isinstance(schema, list):
        return [moved(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: f"{ROOT}{held}"
        if key == "$ref" and isinstance(held, str) and held.startswith("#")
        else moved(held)
        for key, held in schema.items()
        if key not in ("$id", "$anchor", "$dynamicAnchor")
    }


def types_of(rules: Rules) -> frozenset[str]:
    """The types that a schema names, or those that its rules are for."""
    kinds = rules.get("type")
    if kinds is not None:
        return frozenset([kinds] if isinstance(kinds, str) else kinds)
    if any(name in rules for name in ("properties", "required")):
        return frozenset(["object"])
    return frozenset(["array"]) if "items" in rules or "prefixItems" in rules else frozenset()


def is_one_of(value: Any, wanted: Collection[str]) -> bool:
    """Whether a value is of one of these types."""
    return any(kind in wanted for kind in kinds_of(value))


def kinds_of(value: Any) -> tuple[str, ...]:
    match value:
        case None:
            return ("null",)
        case bool():
            return ("boolean",)
        case int():
            return ("integer", "number")
        case float():
            return ("integer", "number") if value.is_integer() else ("number",)
        case str():
            return ("string",)
        case dict():
            return ("object",)
        case _:
            return ("array",)


def plain(name: str) -> str:
    """A name without what case and word breaks add to it."""
    return MIXED.sub("", name.lower())


def spell(path: Path) -> str:
    return f"`{dotted(path)}`" if path else "the input"
