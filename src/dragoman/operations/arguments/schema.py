"""Schemas: what an operation takes and gives as JSON Schema, and the check of an input against it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jsonschema_rs
import msgspec
import pydantic

from dragoman.errors import ConfigError, InvalidInput
from dragoman.operations.arguments.findings import ABSENT, Finding, Path, dotted, find
from dragoman.operations.arguments.subschemas import children, weigh

Parse: TypeAlias = Callable[[Mapping[str, Any]], Any]

GOT_LIMIT = 80
NAMED = 3
PROBLEMS = 20
DEEPEST = 100
SHOWN_ITEMS, SHOWN_DEPTH = 12, 4
SECRET = re.compile(
    r"pass(word|wd|phrase)|secret|token|api_?key|authori[sz]ation|credential|cookie|private_?key",
    re.IGNORECASE,
)
COUNTED = re.compile(
    r"max_?\w*tokens|token_?(count|limit|budget)|(in|out)put_?tokens|total_?tokens|^tokens$", re.IGNORECASE
)
BACKTRACKS = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000)
NAMED_SCHEMAS = ("properties", "$defs", "patternProperties")


def checker(schema: Mapping[str, Any], what: str = "input schema") -> Parse:
    """A check of input against a JSON Schema (draft 2020-12 unless it says otherwise); gives the input back.

    Raises ConfigError when the schema is none, or refers to another document.
    """
    rules = dict(schema)
    try:
        validator = compiled(rules)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise ConfigError(f"the {what} is no usable JSON Schema: {str(error).splitlines()[0]}") from None

    def check(input: Mapping[str, Any]) -> Mapping[str, Any]:
        if is_deep(input):
            raise invalid([problem((), f"values nested at most {DEEPEST} deep", got=input)])
        if not validator.is_valid(input):
            raise invalid(
                [
                    problem(each.path, each.expected, got=each.got)
                    for each in all_wrong(validator, rules, input=input)
                ]
            )
        return input

    return check


def compiled(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    """The validator of a schema. `format` is a hint and not checked: whoever runs the call knows best.

    Patterns run without backtracking where they can, else within a bound.
    """
    return jsonschema_rs.validator_for(
        schema, offline=True, validate_formats=False, pattern_options=BACKTRACKS
    )


def all_wrong(
    validator: jsonschema_rs.Validator, schema: Mapping[str, Any], *, input: Mapping[str, Any]
) -> list[Finding]:
    """What is wrong with an input: all of it, or only the first where all would cost too much."""
    weight = weigh(schema, input)
    if weight == "tangled":
        return [Finding((), "what its schema says (it is too tangled to say where)", input)]
    if weight == "heavy":
        return first_wrong(validator, schema, input=input)
    found = [each for error in validator.iter_errors(input) for each in find(error, schema)]
    known = {(each.path, each.expected): each for each in found}
    return list(known.values())


def first_wrong(
    validator: jsonschema_rs.Validator, schema: Mapping[str, Any], *, input: Mapping[str, Any]
) -> list[Finding]:
    try:
        validator.validate(input)
    except jsonschema_rs.ValidationError as error:
        return list(find(error, schema))
    return []


def is_deep(value: Any) -> bool:
    """Whether a value is nested deeper than anything that has a meaning; the validator cannot stand that."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            child for each in level for _, child in children(each) if isinstance(child, dict | list | tuple)
        ]
        if not level:
            return False
    return True


def model_problems(error: pydantic.ValidationError, input: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What pydantic found wrong, one problem a field; the branches of a union are joined."""
    found: dict[str, dict[str, Any]] = {}
    for each in error.errors(include_url=False, include_context=False):
        missing, extra = each["type"] == "missing", each["type"] == "extra_forbidden"
        path = real_path(each["loc"], input, missing=missing)
        wanted = "a value (required)" if missing else "no field of this name" if extra else wish(each["msg"])
        here = problem(path, wanted) if missing else problem(path, wanted, got=each["input"])
        known = found.setdefault(here["path"], here)
        if known is not here and wanted not in known["expected"]:
            known["expected"] += f" or {wanted}"
    return list(found.values())


def real_path(location: Path, input: Any, *, missing: bool) -> list[str | int]:
    """The steps of a location that lead through the input; the others name branches of unions."""
    path: list[str | int] = []
    here = input
    for step in location:
        inside = range(len(here)) if isinstance(here, list) else here if isinstance(here, Mapping) else ()
        if step in inside:
            here = here[step]
            path.append(step)
    return [*path, location[-1]] if missing else path


def wish(message: str) -> str:
    """What a message of pydantic's asks for."""
    wanted = message.removeprefix("Input should be ").removeprefix("Value error, ")
    return wanted.split(", unable to parse")[0]


def problem(path: Path, expected: str, *, got: Any = ABSENT) -> dict[str, Any]:
    """What is wrong in one place; of what may be a secret it says only the size."""
    if got is not ABSENT and path and is_secret(path[-1]):
        said = veil(got)
    else:
        said = "nothing" if got is ABSENT else spell(got)
    return {"path": dotted(path), "expected": expected, "got": said}


def spell(value: Any) -> str:
    """A value as JSON, cut short, without what may be a secret."""
    try:
        text = msgspec.json.encode(excerpt(value), enc_hook=str).decode()
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= GOT_LIMIT else text[: GOT_LIMIT - 1] + "…"


def excerpt(value: Any, depth: int = SHOWN_DEPTH) -> Any:
    """As much of a value as can be shown."""
    if isinstance(value, str):
        return value[: 2 * GOT_LIMIT]
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        first = list(value.items())[:SHOWN_ITEMS]
        return {key: veil(held) if is_secret(key) else excerpt(held, depth - 1) for key, held in first}
    return [excerpt(held, depth - 1) for held in value[:SHOWN_ITEMS]]


def is_secret(name: str | int) -> bool:
    """Whether a field of this name may hold a secret."""
    return isinstance(name, str) and bool(SECRET.search(name)) and not COUNTED.search(name)


def veil(value: Any) -> str:
    """What can be said of a secret."""
    return f"text of {len(value)} characters" if isinstance(value, str) else f"a {type(value).__name__}"


def invalid(problems: Sequence[dict[str, Any]]) -> InvalidInput:
    """The error that says these problems, the first of them in its message."""
    said = [f"{each['path'] or 'input'}: expected {each['expected']}, got {each['got']}" for each in problems]
    if len(said) > NAMED:
        said[NAMED:] = [f"and {len(said) - NAMED} more"]
    return InvalidInput("; ".join(said), problems=list(problems[:PROBLEMS]))


def tidy(schema: Any) -> Any:
    """The schema without the titles that pydantic makes up from names."""
    if isinstance(schema, list):
        return [tidy(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    for key, value in kept.items():
        if key in NAMED_SCHEMAS:
            kept[key] = {name: tidy(item) for name, item in value.items()}
        elif key not in ("default", "const", "enum", "examples"):
            kept[key] = tidy(value)
    return kept


def of_type(hint: Any) -> dict[str, Any] | None:
    """The JSON Schema of what a type looks like as a result; None when it has none."""
    try:
        return dict(tidy(pydantic.TypeAdapter(hint).json_schema(mode="serialization")))
    except (pydantic.errors.PydanticUserError, TypeError):
        return None
