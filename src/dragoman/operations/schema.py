"""Schemas: what an operation takes and gives as JSON Schema, and the check of an input against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jsonschema_rs
import msgspec
import pydantic
from jsonschema_rs import ValidationErrorKind as Kind

from dragoman.errors import ConfigError, InvalidInput

Parse: TypeAlias = Callable[[Mapping[str, Any]], Any]
Path: TypeAlias = Sequence[str | int]

ABSENT = object()
GOT_LIMIT = 80
NAMED = 3
LIMITS: Mapping[type, str] = {
    Kind.Minimum: "at least {}",
    Kind.Maximum: "at most {}",
    Kind.ExclusiveMinimum: "more than {}",
    Kind.ExclusiveMaximum: "less than {}",
    Kind.MinLength: "at least {} characters",
    Kind.MaxLength: "at most {} characters",
    Kind.MinItems: "at least {} items",
    Kind.MaxItems: "at most {} items",
    Kind.MinProperties: "at least {} fields",
    Kind.MaxProperties: "at most {} fields",
}
NAMED_SCHEMAS = ("properties", "$defs", "patternProperties")


def checker(schema: Mapping[str, Any]) -> Parse:
    """A check of input against a JSON Schema (draft 2020-12 unless it says otherwise); gives the input back.

    Raises ConfigError when the schema is none, or refers to another document.
    """
    try:
        validator = jsonschema_rs.validator_for(dict(schema), offline=True)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise ConfigError(
            f"the input schema is no usable JSON Schema: {str(error).splitlines()[0]}"
        ) from None

    def check(input: Mapping[str, Any]) -> Mapping[str, Any]:
        if not validator.is_valid(input):
            raise invalid(
                [problem for error in validator.iter_errors(input) for problem in schema_problems(error)]
            )
        return input

    return check


def schema_problems(error: jsonschema_rs.ValidationError) -> Iterator[dict[str, Any]]:
    """The problems that one finding of the validator stands for."""
    match error.kind:
        case Kind.Required(property=name):
            yield problem([*error.instance_path, name], "a value (required)")
        case Kind.AdditionalProperties(unexpected=names) | Kind.UnevaluatedProperties(unexpected=names):
            for name in names:
                got = error.instance.get(name) if isinstance(error.instance, dict) else ABSENT
                yield problem([*error.instance_path, name], "no field of this name", got=got)
        case _:
            yield problem(error.instance_path, expected(error.kind, error.message), got=error.instance)


def expected(kind: Any, message: str) -> str:
    """What a rule of a schema asks for."""
    match kind:
        case Kind.Type(types=types):
            return " or ".join(sorted(types))
        case Kind.Enum(options=options):
            return "one of " + ", ".join(spell(option) for option in options)
        case Kind.Constant(expected_value=value):
            return spell(value)
        case Kind.AnyOf(context=branches) | Kind.OneOfNotValid(context=branches):
            first = [branch[0] for branch in branches if branch]
            return " or ".join(dict.fromkeys(expected(error.kind, error.message) for error in first))
        case Kind.Pattern(pattern=pattern):
            return f"text that matches {pattern}"
        case _:
            limit = LIMITS.get(type(kind))
            return limit.format(kind.limit) if limit else f"what its schema says ({message})"


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
    return {"path": dotted(path), "expected": expected, "got": "nothing" if got is ABSENT else spell(got)}


def dotted(path: Path) -> str:
    """The path as `a.b[0].c`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def spell(value: Any) -> str:
    """A value as JSON, cut short."""
    try:
        text = msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= GOT_LIMIT else text[: GOT_LIMIT - 1] + "…"


def invalid(problems: Sequence[dict[str, Any]]) -> InvalidInput:
    """The error that says these problems."""
    said = [f"{each['path'] or 'input'}: expected {each['expected']}, got {each['got']}" for each in problems]
    if len(said) > NAMED:
        said[NAMED:] = [f"and {len(said) - NAMED} more"]
    return InvalidInput("; ".join(said), problems=list(problems))


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
