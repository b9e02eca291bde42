"""Schemas: what an operation takes and gives as JSON Schema, and the check of an input against it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jsonschema_rs
import msgspec
import pydantic

from dragoman.errors import ConfigError, InvalidInput
from dragoman.operations.arguments.argument_problems import (
    ABSENT,
    ArgumentProblem,
    ValuePath,
    dotted_path,
    explain_error,
)
from dragoman.operations.arguments.subschemas import child_values, estimate_cost

InputParser: TypeAlias = Callable[[Mapping[str, Any]], Any]

MAX_SHOWN_LENGTH = 80
MAX_LISTED_PROBLEMS = 3
MAX_PROBLEMS = 20
MAX_DEPTH = 100
MAX_SHOWN_ITEMS, MAX_SHOWN_DEPTH = 12, 4
SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)|secret|token|api_?key|authori[sz]ation|credential|cookie|private_?key",
    re.IGNORECASE,
)
TOKEN_COUNT_NAME = re.compile(
    r"max_?\w*tokens|token_?(count|limit|budget)|(in|out)put_?tokens|total_?tokens|^tokens$", re.IGNORECASE
)
REGEX_OPTIONS = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000)
SCHEMA_MAPS = ("properties", "$defs", "patternProperties")


def make_parser(schema: Mapping[str, Any], label: str = "input schema") -> InputParser:
    """A check of input against a JSON Schema (draft 2020-12 unless it says otherwise); gives the input back.

    Raises ConfigError when the schema is none, or refers to another document.
    """
    rules = dict(schema)
    try:
        validator = compile_schema(rules)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise ConfigError(f"the {label} is no usable JSON Schema: {str(error).splitlines()[0]}") from None

    def check(input: Mapping[str, Any]) -> Mapping[str, Any]:
        if is_too_deep(input):
            raise invalid_input([make_problem((), f"values nested at most {MAX_DEPTH} deep", got=input)])
        if not validator.is_valid(input):
            raise invalid_input(
                [
                    make_problem(each.path, each.expected, got=each.got)
                    for each in find_problems(validator, rules, input=input)
                ]
            )
        return input

    return check


def compile_schema(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    """The validator of a schema. `format` is a hint and not checked: whoever runs the call knows best.

    Patterns run without backtracking where they can, else within a bound.
    """
    return jsonschema_rs.validator_for(
        schema, offline=True, validate_formats=False, pattern_options=REGEX_OPTIONS
    )


def find_problems(
    validator: jsonschema_rs.Validator, schema: Mapping[str, Any], *, input: Mapping[str, Any]
) -> list[ArgumentProblem]:
    """What is wrong with an input: all of it, or only the first where all would cost too much."""
    weight = estimate_cost(schema, input)
    if weight == "tangled":
        return [ArgumentProblem((), "what its schema says (it is too tangled to say where)", input)]
    if weight == "heavy":
        return find_first_problem(validator, schema, input=input)
    found = [each for error in validator.iter_errors(input) for each in explain_error(error, schema)]
    known = {(each.path, each.expected): each for each in found}
    return list(known.values())


def find_first_problem(
    validator: jsonschema_rs.Validator, schema: Mapping[str, Any], *, input: Mapping[str, Any]
) -> list[ArgumentProblem]:
    try:
        validator.validate(input)
    except jsonschema_rs.ValidationError as error:
        return list(explain_error(error, schema))
    return []


def is_too_deep(value: Any) -> bool:
    """Whether a value is nested deeper than anything that has a meaning; the validator cannot stand that."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for each in level
            for _, child in child_values(each)
            if isinstance(child, dict | list | tuple)
        ]
        if not level:
            return False
    return True


def pydantic_problems(error: pydantic.ValidationError, input: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What pydantic found wrong, one problem a field; the branches of a union are joined."""
    found: dict[str, dict[str, Any]] = {}
    for each in error.errors(include_url=False, include_context=False):
        missing, extra = each["type"] == "missing", each["type"] == "extra_forbidden"
        path = input_path(each["loc"], input, missing=missing)
        wanted = (
            "a value (required)"
            if missing
            else "no field of this name"
            if extra
            else expectation(each["msg"])
        )
        here = make_problem(path, wanted) if missing else make_problem(path, wanted, got=each["input"])
        known = found.setdefault(here["path"], here)
        if known is not here and wanted not in known["expected"]:
            known["expected"] += f" or {wanted}"
    return list(found.values())


def input_path(location: ValuePath, input: Any, *, missing: bool) -> list[str | int]:
    """The steps of a location that lead through the input; the others name branches of unions."""
    path: list[str | int] = []
    here = input
    for step in location:
        inside = range(len(here)) if isinstance(here, list) else here if isinstance(here, Mapping) else ()
        if step in inside:
            here = here[step]
            path.append(step)
    return [*path, location[-1]] if missing else path


def expectation(message: str) -> str:
    """What a message of pydantic's asks for."""
    wanted = message.removeprefix("Input should be ").removeprefix("Value error, ")
    return wanted.split(", unable to parse")[0]


def make_problem(path: ValuePath, expected: str, *, got: Any = ABSENT) -> dict[str, Any]:
    """What is wrong in one place; of what may be a secret it says only the size."""
    if got is not ABSENT and path and is_secret_name(path[-1]):
        said = describe_secret(got)
    else:
        said = "nothing" if got is ABSENT else show_value(got)
    return {"path": dotted_path(path), "expected": expected, "got": said}


def show_value(value: Any) -> str:
    """A value as JSON, cut short, without what may be a secret."""
    try:
        text = msgspec.json.encode(excerpt_value(value), enc_hook=str).decode()
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN_LENGTH else text[: MAX_SHOWN_LENGTH - 1] + "…"


def excerpt_value(value: Any, depth: int = MAX_SHOWN_DEPTH) -> Any:
    """As much of a value as can be shown."""
    if isinstance(value, str):
        return value[: 2 * MAX_SHOWN_LENGTH]
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        first = list(value.items())[:MAX_SHOWN_ITEMS]
        return {
            key: describe_secret(held) if is_secret_name(key) else excerpt_value(held, depth - 1)
            for key, held in first
        }
    return [excerpt_value(held, depth - 1) for held in value[:MAX_SHOWN_ITEMS]]


def is_secret_name(name: str | int) -> bool:
    """Whether a field of this name may hold a secret."""
    return isinstance(name, str) and bool(SECRET_NAME.search(name)) and not TOKEN_COUNT_NAME.search(name)


def describe_secret(value: Any) -> str:
    """What can be said of a secret."""
    return f"text of {len(value)} characters" if isinstance(value, str) else f"a {type(value).__name__}"


def invalid_input(problems: Sequence[dict[str, Any]]) -> InvalidInput:
    """The error that says these problems, the first of them in its message."""
    said = [f"{each['path'] or 'input'}: expected {each['expected']}, got {each['got']}" for each in problems]
    if len(said) > MAX_LISTED_PROBLEMS:
        said[MAX_LISTED_PROBLEMS:] = [f"and {len(said) - MAX_LISTED_PROBLEMS} more"]
    return InvalidInput("; ".join(said), problems=list(problems[:MAX_PROBLEMS]))


def strip_titles(schema: Any) -> Any:
    """The schema without the titles that pydantic makes up from names."""
    if isinstance(schema, list):
        return [strip_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    for key, value in kept.items():
        if key in SCHEMA_MAPS:
            kept[key] = {name: strip_titles(item) for name, item in value.items()}
        elif key not in ("default", "const", "enum", "examples"):
            kept[key] = strip_titles(value)
    return kept


def result_schema(hint: Any) -> dict[str, Any] | None:
    """The JSON Schema of what a type looks like as a result; None when it has none."""
    try:
        return dict(strip_titles(pydantic.TypeAdapter(hint).json_schema(mode="serialization")))
    except (pydantic.errors.PydanticUserError, TypeError):
        return None
