"""Validation of operation input against JSON Schemas, with problems that a model can correct.

The validator `jsonschema_rs` takes 7 MB: it is imported with the first schema that is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pydantic

from dragoman.errors import ConfigError, InvalidInput
from dragoman.operations.arguments.argument_problems import ABSENT, ArgumentProblem, ValuePath, dotted_path
from dragoman.operations.arguments.schema_cost import (
    CheckCost,
    compile_cost,
    has_wide_integers,
    outline,
    wide_integers_limit,
)
from dragoman.operations.arguments.subschemas import child_values, estimate_cost

if TYPE_CHECKING:
    import jsonschema_rs

InputParser: TypeAlias = Callable[[Mapping[str, Any]], Any]

MAX_SHOWN_LENGTH = 80  # characters of a value
MAX_LISTED_PROBLEMS = 3  # in the error's message
MAX_PROBLEMS = 20  # in the error's `problems`
MAX_PYDANTIC_ERRORS = 200
MAX_DEPTH = 100  # levels of a value
MAX_SHOWN_ITEMS, MAX_SHOWN_DEPTH = 12, 4
SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)|secret|token|api_?key|authori[sz]ation|credential|cookie|private_?key",
    re.IGNORECASE,
)
TOKEN_COUNT_NAME = re.compile(
    r"max_?\w*tokens|token_?(count|limit|budget)|(in|out)put_?tokens|total_?tokens|^tokens$", re.IGNORECASE
)
MAX_COUNT_NAME = 100  # characters; searching takes time in proportion to their square
SCHEMA_MAPS = ("properties", "$defs", "patternProperties")


def make_parser(schema: Mapping[str, Any], label: str = "input schema") -> InputParser:
    """Return a function that checks input against a JSON Schema and returns it (draft 2020-12 by default).

    Raises ConfigError if the schema is invalid or refers to another document.
    """
    parse, wide_limit = _make_parser(schema, label), wide_integers_limit(schema)
    if wide_limit is None:
        return parse

    def check(input: Mapping[str, Any]) -> Any:
        if has_wide_integers(input, wide_limit):
            raise invalid_input([make_problem((), "fewer integers of more than 64 bits", got=input)])
        return parse(input)

    return check


def make_late_parser(schema: Mapping[str, Any]) -> InputParser:
    """Return the same for a schema of the hub itself. It is compiled when the first input is parsed."""

    @cache
    def compiled() -> InputParser:
        return make_parser(schema)

    def parse(arguments: Mapping[str, Any]) -> Any:
        return compiled()(arguments)

    return parse


def _make_parser(schema: Mapping[str, Any], label: str = "input schema") -> InputParser:
    import jsonschema_rs  # late: see above

    rules = dict(schema)
    try:
        validator = compile_schema(rules)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"The {label} is not a valid JSON Schema: {reason:.300}") from None

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


def make_bounded_parser(schema: Mapping[str, Any]) -> InputParser:
    """Return such a function for a schema of another program, which checks its input itself.

    The hub checks only what takes a few milliseconds: if the schema costs more to compile, the names of the
    fields; if a value costs more to check, its depth. Raises ConfigError if the schema is invalid.
    """
    cost = compile_cost(schema)
    if cost is None:
        return make_parser(outline(schema))
    parse, check_cost = _make_parser(schema), CheckCost(cost)

    def check(input: Mapping[str, Any]) -> Any:
        count = count_values(input)
        if count is not None and check_cost.is_too_high(input, count=count):
            return input
        return parse(input)

    return check


def compile_schema(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    """Compile a schema.

    `format` is not validated, but left to the operation. Patterns run without backtracking where possible,
    else within a limit.
    """
    from jsonschema_rs import validator_for  # late: see above

    return validator_for(schema, offline=True, validate_formats=False, pattern_options=regex_options())


@cache
def regex_options() -> jsonschema_rs.FancyRegexOptions:
    """Return how patterns of schemas run."""
    from jsonschema_rs import FancyRegexOptions  # late: see above

    return FancyRegexOptions(backtrack_limit=10_000)


def find_problems(
    validator: jsonschema_rs.Validator, schema: Mapping[str, Any], *, input: Mapping[str, Any]
) -> list[ArgumentProblem]:
    """Return the problems of an input: all, or only the first if all would cost too much."""
    from dragoman.operations.arguments.schema_errors import explain_error  # late: see above

    weight = estimate_cost(schema, input)
    if weight == "tangled":
        return [
            ArgumentProblem((), "a value that matches its schema, which is too complex to say more", input)
        ]
    if weight == "heavy":
        return find_first_problem(validator, schema, input=input)
    unique: dict[tuple[Any, ...], ArgumentProblem] = {}
    for error in validator.iter_errors(input):
        for each in explain_error(error, schema):
            unique[each.path, each.expected] = each
        if len(unique) > MAX_PROBLEMS:
            break
    return list(unique.values())


def find_first_problem(
    validator: jsonschema_rs.Validator, schema: Mapping[str, Any], *, input: Mapping[str, Any]
) -> list[ArgumentProblem]:
    import jsonschema_rs  # late: see above

    from dragoman.operations.arguments.schema_errors import explain_error  # late: see above

    try:
        validator.validate(input)
    except jsonschema_rs.ValidationError as error:
        return list(explain_error(error, schema))
    return []


def is_too_deep(value: Any) -> bool:
    """Return whether a value is nested deeper than the validator can handle."""
    return count_values(value) is None


def count_values(value: Any) -> int | None:
    """Return how many values are in a value; None if it is nested deeper than the validator can handle."""
    level = [value] if isinstance(value, Mapping | list | tuple) else []
    count = 1
    for _ in range(MAX_DEPTH):
        count += sum(map(len, level))
        level = [
            child
            for each in level
            for _, child in child_values(each)
            if isinstance(child, dict | list | tuple)
        ]
        if not level:
            return count
    return None


def pydantic_problems(
    error: pydantic.ValidationError, input: Mapping[str, Any], *, schema: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return pydantic's errors as problems, one for each field; branches of a union are joined.

    pydantic can only list all errors, which takes long if there are many. In that case the JSON Schema finds
    the first ones.
    """
    if error.error_count() > MAX_PYDANTIC_ERRORS:
        return first_problems(dict(schema), input, count=error.error_count())
    problems: dict[str, dict[str, Any]] = {}
    for detail in error.errors(include_url=False, include_context=False):
        missing, extra = detail["type"] == "missing", detail["type"] == "extra_forbidden"
        path = input_path(detail["loc"], input, missing=missing)
        expected = (
            "a value (required)"
            if missing
            else "no field of this name"
            if extra
            else expectation(detail["msg"])
        )
        field_problem = (
            make_problem(path, expected) if missing else make_problem(path, expected, got=detail["input"])
        )
        existing = problems.setdefault(field_problem["path"], field_problem)
        if existing is not field_problem and expected not in existing["expected"]:
            existing["expected"] += f" or {expected}"
    return list(problems.values())


def first_problems(schema: dict[str, Any], input: Mapping[str, Any], *, count: int) -> list[dict[str, Any]]:
    """Return some problems of an input that has many."""
    problems = [
        make_problem(problem.path, problem.expected, got=problem.got)
        for problem in find_problems(compile_schema(schema), schema, input=input)
    ]
    return problems or [make_problem((), f"other values in {count} places", got=input)]


def input_path(location: ValuePath, input: Any, *, missing: bool) -> list[str | int]:
    """Return the steps of a location that exist in the input; the others name branches of unions."""
    path: list[str | int] = []
    current = input
    for step in location:
        keys = (
            range(len(current))
            if isinstance(current, list)
            else current
            if isinstance(current, Mapping)
            else ()
        )
        if step in keys:
            current = current[step]
            path.append(step)
    return [*path, location[-1]] if missing else path


def expectation(message: str) -> str:
    """Return what a pydantic message requires."""
    text = message.removeprefix("Input should be ").removeprefix("Value error, ")
    return text.split(", unable to parse")[0]


def make_problem(path: ValuePath, expected: str, *, got: Any = ABSENT) -> dict[str, Any]:
    """Return one problem as JSON. Of a value that may be a secret, only the type or length is shown."""
    if got is not ABSENT and path and is_secret_name(path[-1]):
        shown = describe_secret(got)
    else:
        shown = "nothing" if got is ABSENT else show_value(got)
    return {"path": dotted_path(path), "expected": expected, "got": shown}


def show_value(value: Any) -> str:
    """Return a value as JSON, shortened, without what may be a secret."""
    try:
        text = msgspec.json.encode(excerpt_value(value), enc_hook=str).decode()
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN_LENGTH else text[: MAX_SHOWN_LENGTH - 1] + "…"


def excerpt_value(value: Any, depth: int = MAX_SHOWN_DEPTH) -> Any:
    """Return as much of a value as can be shown."""
    if isinstance(value, str):
        return value[: 2 * MAX_SHOWN_LENGTH]
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        shown = list(value.items())[:MAX_SHOWN_ITEMS]
        return {
            key: describe_secret(item) if is_secret_name(key) else excerpt_value(item, depth - 1)
            for key, item in shown
        }
    return [excerpt_value(item, depth - 1) for item in value[:MAX_SHOWN_ITEMS]]


def is_secret_name(name: str | int) -> bool:
    """Return whether a field of this name may contain a secret."""
    if not isinstance(name, str) or not SECRET_NAME.search(name):
        return False
    return len(name) > MAX_COUNT_NAME or not TOKEN_COUNT_NAME.search(name)


def describe_secret(value: Any) -> str:
    """Return a secret's type or length."""
    return f"text of {len(value)} characters" if isinstance(value, str) else f"a {type(value).__name__}"


def invalid_input(problems: Sequence[dict[str, Any]]) -> InvalidInput:
    """Return the error with these problems; its message shows the first."""
    texts = [
        f"{each['path'] or 'input'}: expected {each['expected']}, got {each['got']}" for each in problems
    ]
    if len(texts) > MAX_LISTED_PROBLEMS:
        texts[MAX_LISTED_PROBLEMS:] = [f"and {len(texts) - MAX_LISTED_PROBLEMS} more"]
    return InvalidInput("; ".join(texts), problems=list(problems[:MAX_PROBLEMS]))


def strip_titles(schema: Any) -> Any:
    """Return the schema without the titles that pydantic derives from names."""
    if isinstance(schema, list):
        return [strip_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    stripped = {key: value for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    for key, value in stripped.items():
        if key in SCHEMA_MAPS:
            stripped[key] = {name: strip_titles(item) for name, item in value.items()}
        elif key not in ("default", "const", "enum", "examples"):
            stripped[key] = strip_titles(value)
    return stripped


def _with_file_results(schema: Any) -> Any:
    """Return the schema with bytes described as in results: a content block, or base64 text."""
    if isinstance(schema, list):
        return [_with_file_results(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "string" and schema.get("format") == "binary":
        rest = {key: value for key, value in schema.items() if key not in ("type", "format")}
        return {"description": "A content block of an image, sound or PDF; base64 of other bytes.", **rest}
    return {key: _with_file_results(value) for key, value in schema.items()}


def result_schema(hint: Any) -> dict[str, Any] | None:
    """Return the JSON Schema of a type as a result; None if it has none."""
    try:
        schema = strip_titles(pydantic.TypeAdapter(hint).json_schema(mode="serialization"))
        return dict(_with_file_results(schema))
    except (pydantic.errors.PydanticUserError, TypeError):
        return None
