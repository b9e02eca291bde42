"""Mending: arguments that nearly fit their schema, taken as what was meant; each change is told in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jsonschema_rs
import msgspec

from dragoman.operations.arguments.argument_problems import dotted_path
from dragoman.operations.arguments.broken_json import repair_json
from dragoman.operations.arguments.coercion import coerce, match_option
from dragoman.operations.arguments.subschemas import (
    ALTERNATIVES,
    Schema,
    child_schemas,
    estimate_cost,
    get_list,
    get_mapping,
    is_schema,
    resolve_ref,
)
from dragoman.operations.arguments.validation import REGEX_OPTIONS, is_too_deep

ROOT_URI = "urn:dragoman:arguments"
WRAPPERS = ("arguments", "input", "parameters", "args", "kwargs")
MAX_NOTES = 20
MAX_VISITED_VALUES = 20_000  # values that are looked at
NON_ALPHANUMERIC = re.compile(r"[^0-9a-z]+")
PathTuple = tuple[str | int, ...]


class RepairedArguments(msgspec.Struct, frozen=True):
    """Arguments that fit, and what was changed in them; a value that fitted before has no notes."""

    value: dict[str, Any]
    notes: tuple[str, ...] = ()


def repair_arguments(input: Any, schema: Mapping[str, Any]) -> RepairedArguments | None:
    """The arguments as they were meant, or None when they cannot be made to fit without guessing.

    Changes only what does not fit: text that is JSON, a number or a truth value, and the other way round; a
    single value for a list; null for a field that may be left out; an option or a name written otherwise; an
    object wrapped into another. Makes nothing up, and drops nothing but nulls.
    """
    given = repair_json(input) if isinstance(input, str) else input
    notes = [] if given is input else ["the arguments were text; taken as the object in it"]
    if not isinstance(given, dict) or is_too_deep(given) or estimate_cost(schema, given) != "light":
        return None
    try:
        fitter = ArgumentRepairer(dict(schema))
        return fitter.repair(given, notes)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, RecursionError):
        return None


class RepairAttempt(msgspec.Struct, frozen=True):
    """A value changed so that it may fit, and what was done to it."""

    value: Any
    notes: tuple[str, ...] = ()


class ArgumentRepairer:
    """Fits values to the parts of one schema."""

    def __init__(self, root_schema: dict[str, Any]) -> None:
        self._root_schema = root_schema
        self._registry = jsonschema_rs.Registry([(ROOT_URI, root_schema)])
        self._draft = {"$schema": root_schema["$schema"]} if "$schema" in root_schema else {}
        self._validator = self._compile(root_schema)
        self._remaining_visits = MAX_VISITED_VALUES
        self._validators: dict[int, tuple[Schema, jsonschema_rs.Validator]] = {}

    def repair(self, arguments: dict[str, Any], notes: Sequence[str]) -> RepairedArguments | None:
        """The object as it fits the whole schema."""
        if self._validator.is_valid(arguments):
            return RepairedArguments(arguments, tuple(notes))
        for attempt in self._candidates(arguments):
            if isinstance(attempt.value, dict) and self._validator.is_valid(attempt.value):
                told = [*notes, *attempt.notes]
                more = [f"and {len(told) - MAX_NOTES} more changes"] if len(told) > MAX_NOTES else []
                return RepairedArguments(attempt.value, (*told[:MAX_NOTES], *more))
        return None

    def _candidates(self, arguments: dict[str, Any]) -> list[RepairAttempt]:
        found = [self._repair_value(arguments, self._root_schema, path=())]
        known = get_mapping(resolve_ref(self._root_schema, self._root_schema), "properties")
        (name, *others) = arguments or ("",)
        if name in WRAPPERS and not others and name not in known:
            inner = arguments[name]
            held = repair_json(inner) if isinstance(inner, str) else inner
            if isinstance(held, dict):
                fitted = self._repair_value(held, self._root_schema, path=())
                note = f"the arguments were wrapped in `{name}`; taken out of it"
                found.append(RepairAttempt(fitted.value, (note, *fitted.notes)))
        return found

    def _repair_value(self, value: Any, schema: Any, *, path: PathTuple) -> RepairAttempt:
        """The value as it fits a part of the schema, as nearly as can be said for sure."""
        self._remaining_visits -= 1
        if self._remaining_visits < 0:
            raise ValueError("there is more to mend than anybody can follow")
        if not is_schema(schema) or self._is_valid(value, schema):
            return RepairAttempt(value)
        rules = resolve_ref(self._root_schema, schema)
        attempt = self._coerce(value, rules, path=path)
        for part in (each for each in get_list(rules, "allOf") if is_schema(each)):
            attempt = self._repair_all_of(attempt, part, path=path)
        for keyword in ALTERNATIVES:
            if branches := [each for each in get_list(rules, keyword) if is_schema(each)]:
                attempt = self._repair_any_of(attempt, branches, path=path)
        return self._repair_children(attempt, rules, path=path)

    def _repair_all_of(self, before: RepairAttempt, schema: Schema, *, path: PathTuple) -> RepairAttempt:
        after = self._repair_value(before.value, schema, path=path)
        return RepairAttempt(after.value, before.notes + after.notes)

    def _repair_any_of(
        self, before: RepairAttempt, branches: Sequence[Schema], *, path: PathTuple
    ) -> RepairAttempt:
        """The value as it fits one of several forms, unless it could be made to fit them in several ways."""
        if any(self._is_valid(before.value, branch) for branch in branches):
            return before
        tried = [(branch, self._repair_value(before.value, branch, path=path)) for branch in branches]
        fitting = [attempt for branch, attempt in tried if self._is_valid(attempt.value, branch)]
        ways = {msgspec.json.encode(attempt.value, order="sorted"): attempt for attempt in reversed(fitting)}
        if len(ways) != 1:
            return before
        (after,) = ways.values()
        return RepairAttempt(after.value, before.notes + after.notes)

    def _coerce(self, value: Any, rules: Schema, *, path: PathTuple) -> RepairAttempt:
        """The value as one of the options, or of one of the types, that are named."""
        options = [rules["const"]] if "const" in rules else get_list(rules, "enum")
        wanted = schema_types(rules)
        change = match_option(value, options) if options else None
        if change is None and not options and wanted and not has_type(value, wanted):
            change = coerce(value, wanted)
        return (
            RepairAttempt(value)
            if change is None
            else RepairAttempt(change[0], (f"{quote_path(path)} {change[1]}",))
        )

    def _repair_children(self, attempt: RepairAttempt, rules: Schema, *, path: PathTuple) -> RepairAttempt:
        """The value with all that is in it fitted."""
        value, notes = attempt.value, list(attempt.notes)
        if isinstance(value, dict):
            value = self._rename_fields(value, rules, path=path, notes=notes)
            value = self._drop_nulls(value, rules, path=path, notes=notes)
            steps: Collection[Any] = value
        elif isinstance(value, list):
            value, steps = list(value), range(len(value))
        else:
            return attempt
        for step in steps:
            for part in child_rules(rules, step):
                inner = self._repair_value(value[step], part, path=(*path, step))
                value[step] = inner.value
                notes += inner.notes
        return RepairAttempt(value, tuple(notes))

    def _rename_fields(
        self, value: dict[str, Any], rules: Schema, *, path: PathTuple, notes: list[str]
    ) -> dict[str, Any]:
        """The object with names as the schema writes them, where no two could be meant."""
        known = get_mapping(rules, "properties")
        strange = [name for name in value if not child_schemas({**rules, **CLOSED_OBJECT}, name)]
        free = [name for name in known if name not in value and self._accepts_rename(name, rules)]
        meant = {normalise_name(name): name for name in free}
        clashing = [key for key, count in Counter(map(normalise_name, [*free])).items() if count > 1]
        clashing += [key for key, count in Counter(map(normalise_name, strange)).items() if count > 1]
        changed = {
            name: meant[normalise_name(name)]
            for name in strange
            if normalise_name(name) in meant and normalise_name(name) not in clashing
        }
        notes += [
            f"{quote_path((*path, old))} was taken as `{new}`, its name" for old, new in changed.items()
        ]
        return {changed.get(name, name): held for name, held in value.items()}

    def _accepts_rename(self, name: str, rules: Schema) -> bool:
        """Whether a field is missed, or another of its name would not be let in."""
        is_closed = rules.get("additionalProperties") is False or rules.get("unevaluatedProperties") is False
        return is_closed or name in get_list(rules, "required")

    def _drop_nulls(
        self, value: dict[str, Any], rules: Schema, *, path: PathTuple, notes: list[str]
    ) -> dict[str, Any]:
        """The object without nulls in fields that may be left out and take no null."""
        known, required = get_mapping(rules, "properties"), get_list(rules, "required")
        empty = [
            name
            for name, held in value.items()
            if held is None
            and name in known
            and name not in required
            and not self._is_valid(None, known[name])
        ]
        notes += [f"{quote_path((*path, name))} was null; left out" for name in empty]
        return {name: held for name, held in value.items() if name not in empty}

    def _is_valid(self, value: Any, schema: Any) -> bool:
        """Whether a value fits a part of the schema."""
        if not isinstance(schema, Mapping):
            return schema is not False
        known = self._validators.get(id(schema))
        if known is None:
            known = self._validators[id(schema)] = (
                schema,
                self._compile({**self._draft, **absolute_refs(schema)}),
            )
        return known[1].is_valid(value)

    def _compile(self, schema: Any) -> jsonschema_rs.Validator:
        return jsonschema_rs.validator_for(
            schema,
            registry=self._registry,
            validate_formats=False,
            offline=True,
            pattern_options=REGEX_OPTIONS,
        )


CLOSED_OBJECT: Schema = {"additionalProperties": None, "unevaluatedProperties": None}


def child_rules(rules: Schema, step: str | int) -> list[Schema]:
    """The rules for what is at a key or index, but for those that only some of the items have to follow."""
    return child_schemas({name: rule for name, rule in rules.items() if name != "contains"}, step)


def absolute_refs(schema: Any) -> Any:
    """A part of the schema that still points into the whole one."""
    if isinstance(schema, list):
        return [absolute_refs(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: f"{ROOT_URI}{held}"
        if key == "$ref" and isinstance(held, str) and held.startswith("#")
        else absolute_refs(held)
        for key, held in schema.items()
        if key not in ("$id", "$anchor", "$dynamicAnchor")
    }


def schema_types(rules: Schema) -> frozenset[str]:
    """The types that a schema names, or those that its rules are for."""
    kinds = rules.get("type")
    if kinds is not None:
        return frozenset([kinds] if isinstance(kinds, str) else kinds)
    if any(name in rules for name in ("properties", "required")):
        return frozenset(["object"])
    return frozenset(["array"]) if "items" in rules or "prefixItems" in rules else frozenset()


def has_type(value: Any, types: Collection[str]) -> bool:
    """Whether a value is of one of these types."""
    return any(kind in types for kind in value_types(value))


def value_types(value: Any) -> tuple[str, ...]:
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


def normalise_name(name: str) -> str:
    """A name without what case and word breaks add to it."""
    return NON_ALPHANUMERIC.sub("", name.lower())


def quote_path(path: PathTuple) -> str:
    return f"`{dotted_path(path)}`" if path else "the input"
