"""Argument repair: correct arguments that nearly fit their schema, with a note on each change."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jsonschema_rs
import msgspec

from dragoman.operations.arguments.argument_problems import dotted_path
from dragoman.operations.arguments.broken_json import repair_json
from dragoman.operations.arguments.coercion import coerce, match_option
from dragoman.operations.arguments.schema_cost import compile_cost
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
from dragoman.operations.arguments.validation import is_too_deep, regex_options

ROOT_URI = "urn:dragoman:arguments"
WRAPPERS = ("arguments", "input", "parameters", "args", "kwargs")
MAX_NOTES = 20
MAX_REPAIR_COST = 40_000.0  # microseconds for compiling schemas, roughly
MAX_VISITED_VALUES = 5_000  # values after which the repair is given up
SEPARATORS = re.compile(r"[\W_]+")
PathTuple = tuple[str | int, ...]


class RepairedArguments(msgspec.Struct, frozen=True):
    """Arguments that fit, and notes on what was changed; no notes if nothing was."""

    value: dict[str, Any]
    notes: tuple[str, ...] = ()


def repair_arguments(input: Any, schema: Mapping[str, Any]) -> RepairedArguments | None:
    """Return the arguments corrected to fit the schema, or None if that takes guessing.

    Changes only what does not fit: text that is JSON, a number or a boolean, and the reverse; a single
    value for a list; null for an optional field; an option or a field name in another spelling; an object
    wrapped into another. Adds nothing, and drops nothing but nulls.
    """
    arguments = repair_json(input) if isinstance(input, str) else input
    notes = [] if arguments is input else ["the arguments were text; taken as the object in it"]
    if (
        not isinstance(arguments, dict)
        or is_too_deep(arguments)
        or estimate_cost(schema, arguments) != "light"
    ):
        return None
    try:
        fitter = ArgumentRepairer(dict(schema))
        return fitter.repair(arguments, notes)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, RecursionError):
        return None


class RepairAttempt(msgspec.Struct, frozen=True):
    """A changed value that may fit, and notes on the changes."""

    value: Any
    notes: tuple[str, ...] = ()


class ArgumentRepairer:
    """Repairs values against the parts of one schema."""

    def __init__(self, root_schema: dict[str, Any]) -> None:
        self._root_schema = root_schema
        self._registry = jsonschema_rs.Registry([(ROOT_URI, root_schema)])
        self._draft = {"$schema": root_schema["$schema"]} if "$schema" in root_schema else {}
        self._remaining_cost = MAX_REPAIR_COST
        self._root_cost = self._pay(root_schema)
        self._validator = self._compile(root_schema)
        self._remaining_visits = MAX_VISITED_VALUES
        self._validators: dict[int, tuple[Schema, jsonschema_rs.Validator]] = {}

    def repair(self, arguments: dict[str, Any], notes: Sequence[str]) -> RepairedArguments | None:
        """Return the object corrected to fit the whole schema, or None."""
        if self._validator.is_valid(arguments):
            return RepairedArguments(arguments, tuple(notes))
        for attempt in self._candidates(arguments):
            if isinstance(attempt.value, dict) and self._validator.is_valid(attempt.value):
                all_notes = [*notes, *attempt.notes]
                more = (
                    [f"and {len(all_notes) - MAX_NOTES} more changes"] if len(all_notes) > MAX_NOTES else []
                )
                return RepairedArguments(attempt.value, (*all_notes[:MAX_NOTES], *more))
        return None

    def _candidates(self, arguments: dict[str, Any]) -> list[RepairAttempt]:
        candidates = [self._repair_value(arguments, self._root_schema, path=())]
        properties = get_mapping(resolve_ref(self._root_schema, self._root_schema), "properties")
        (name, *more_fields) = arguments or ("",)
        if name in WRAPPERS and not more_fields and name not in properties:
            inner = arguments[name]
            wrapped = repair_json(inner) if isinstance(inner, str) else inner
            if isinstance(wrapped, dict):
                attempt = self._repair_value(wrapped, self._root_schema, path=())
                note = f"the arguments were wrapped in `{name}`; taken out of it"
                candidates.append(RepairAttempt(attempt.value, (note, *attempt.notes)))
        return candidates

    def _repair_value(self, value: Any, schema: Any, *, path: PathTuple) -> RepairAttempt:
        """Return the value corrected as far as a part of the schema determines it."""
        self._visit(len(value) if isinstance(value, dict) else 1)
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

    def _visit(self, count: int) -> None:
        self._remaining_visits -= count
        if self._remaining_visits < 0:
            raise ValueError("the value is too large to repair")

    def _repair_all_of(self, before: RepairAttempt, schema: Schema, *, path: PathTuple) -> RepairAttempt:
        after = self._repair_value(before.value, schema, path=path)
        return RepairAttempt(after.value, before.notes + after.notes)

    def _repair_any_of(
        self, before: RepairAttempt, branches: Sequence[Schema], *, path: PathTuple
    ) -> RepairAttempt:
        """Return the value corrected to fit one alternative; unchanged if it can fit in several ways."""
        if any(self._is_valid(before.value, branch) for branch in branches):
            return before
        attempts = [(branch, self._repair_value(before.value, branch, path=path)) for branch in branches]
        fitting = [attempt for branch, attempt in attempts if self._is_valid(attempt.value, branch)]
        results = {
            msgspec.json.encode(attempt.value, order="sorted"): attempt for attempt in reversed(fitting)
        }
        if len(results) != 1:
            return before
        (after,) = results.values()
        return RepairAttempt(after.value, before.notes + after.notes)

    def _coerce(self, value: Any, rules: Schema, *, path: PathTuple) -> RepairAttempt:
        """Return the value as one of the options or types of the schema."""
        options = [rules["const"]] if "const" in rules else get_list(rules, "enum")
        types = schema_types(rules)
        change = match_option(value, options) if options else None
        if change is None and not options and types and not has_type(value, types):
            change = coerce(value, types)
        return (
            RepairAttempt(value)
            if change is None
            else RepairAttempt(change[0], (f"{quote_path(path)} {change[1]}",))
        )

    def _repair_children(self, attempt: RepairAttempt, rules: Schema, *, path: PathTuple) -> RepairAttempt:
        """Return the value with everything in it corrected."""
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
                child = self._repair_value(value[step], part, path=(*path, step))
                value[step] = child.value
                notes += child.notes
        return RepairAttempt(value, tuple(notes))

    def _rename_fields(
        self, value: dict[str, Any], rules: Schema, *, path: PathTuple, notes: list[str]
    ) -> dict[str, Any]:
        """Return the object with field names in the schema's spelling, where they are unambiguous."""
        properties = get_mapping(rules, "properties")
        unknown = [name for name in value if not child_schemas({**rules, **CLOSED_OBJECT}, name)]
        missing = [name for name in properties if name not in value and self._accepts_rename(name, rules)]
        by_normalised_name = {normalise_name(name): name for name in missing}
        ambiguous = [key for key, count in Counter(map(normalise_name, [*missing])).items() if count > 1]
        ambiguous += [key for key, count in Counter(map(normalise_name, unknown)).items() if count > 1]
        renamed = {
            name: by_normalised_name[normalise_name(name)]
            for name in unknown
            if normalise_name(name) in by_normalised_name and normalise_name(name) not in ambiguous
        }
        notes += [
            f"{quote_path((*path, old))} was taken as `{new}`, its name" for old, new in renamed.items()
        ]
        return {renamed.get(name, name): field_value for name, field_value in value.items()}

    def _accepts_rename(self, name: str, rules: Schema) -> bool:
        """Return whether a field is required, or no unknown field is allowed beside it."""
        is_closed = rules.get("additionalProperties") is False or rules.get("unevaluatedProperties") is False
        return is_closed or name in get_list(rules, "required")

    def _drop_nulls(
        self, value: dict[str, Any], rules: Schema, *, path: PathTuple, notes: list[str]
    ) -> dict[str, Any]:
        """Return the object without nulls in optional fields that do not accept null."""
        properties, required = get_mapping(rules, "properties"), get_list(rules, "required")
        null_fields = [
            name
            for name, field_value in value.items()
            if field_value is None
            and name in properties
            and name not in required
            and not self._is_valid(None, properties[name])
        ]
        notes += [f"{quote_path((*path, name))} was null; left out" for name in null_fields]
        return {name: field_value for name, field_value in value.items() if name not in null_fields}

    def _is_valid(self, value: Any, schema: Any) -> bool:
        """Return whether a value is valid against a part of the schema."""
        if not isinstance(schema, Mapping):
            return schema is not False
        cached = self._validators.get(id(schema))
        if cached is None:
            cached = self._validators[id(schema)] = (
                schema,
                self._compile_part(schema),
            )
        return cached[1].is_valid(value)

    def _compile_part(self, schema: Mapping[str, Any]) -> jsonschema_rs.Validator:
        part = absolute_refs(schema)
        self._pay(schema)
        if part != schema:  # it refers to the whole schema, which is compiled with it
            self._remaining_cost -= self._root_cost
        return self._compile({**self._draft, **part})

    def _pay(self, schema: Mapping[str, Any]) -> float:
        """Return the cost of compiling a schema. Raises ValueError if all schemas together cost too much."""
        cost = compile_cost(schema, self._remaining_cost, root=self._root_schema)
        if cost is None:
            raise ValueError("the schema costs too much to compile")
        self._remaining_cost -= cost.total
        return cost.total

    def _compile(self, schema: Any) -> jsonschema_rs.Validator:
        return jsonschema_rs.validator_for(
            schema,
            registry=self._registry,
            validate_formats=False,
            offline=True,
            pattern_options=regex_options(),
        )


CLOSED_OBJECT: Schema = {"additionalProperties": None, "unevaluatedProperties": None}


def child_rules(rules: Schema, step: str | int) -> list[Schema]:
    """Return the schemas for a key or index, except those that only some items have to match."""
    return child_schemas({name: rule for name, rule in rules.items() if name != "contains"}, step)


def absolute_refs(schema: Any) -> Any:
    """Return a part of the schema with references into the whole one."""
    if isinstance(schema, list):
        return [absolute_refs(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: f"{ROOT_URI}{value}"
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else absolute_refs(value)
        for key, value in schema.items()
        if key not in ("$id", "$anchor", "$dynamicAnchor")
    }


def schema_types(rules: Schema) -> frozenset[str]:
    """Return the types that a schema names or implies."""
    kinds = rules.get("type")
    if kinds is not None:
        return frozenset([kinds] if isinstance(kinds, str) else kinds)
    if any(name in rules for name in ("properties", "required")):
        return frozenset(["object"])
    return frozenset(["array"]) if "items" in rules or "prefixItems" in rules else frozenset()


def has_type(value: Any, types: Collection[str]) -> bool:
    """Return whether a value has one of these types."""
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
    """Return a name in lower case without word separators; a name of only separators is unchanged."""
    composed = unicodedata.normalize("NFKC", name)
    return SEPARATORS.sub("", composed.casefold()) or name


def quote_path(path: PathTuple) -> str:
    return f"`{dotted_path(path)}`" if path else "the input"
