"""Errors of the JSON Schema validator as problems of arguments, in words that help to correct the input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jsonschema_rs
import msgspec
from jsonschema_rs import ValidationErrorKind as Kind

from dragoman.operations.arguments.argument_problems import ABSENT, ArgumentProblem, ValuePath, dotted_path
from dragoman.operations.arguments.subschemas import Schema, get_mapping, resolve_ref, schema_at
from dragoman.suggestions import find_similar_name

SchemaError: TypeAlias = jsonschema_rs.ValidationError

MAX_NAMES = 10  # names of fields that are listed
MAX_SUGGESTIONS = 5  # unexpected names for which a similar one is suggested
MAX_UNEXPECTED = 25  # unexpected names that are reported
MAX_BRANCHES = 5  # alternatives that are described
MAX_OPTIONS = 200  # values of an enum that are listed
MAX_FRAGMENT_LENGTH = 120  # characters of a schema or value that are quoted
DEPENDENT_KEYWORDS = ("dependentRequired", "dependentSchemas", "dependencies")
LIMIT_TEXTS: Mapping[type, str] = {
    Kind.Minimum: "at least {}",
    Kind.Maximum: "at most {}",
    Kind.ExclusiveMinimum: "more than {}",
    Kind.ExclusiveMaximum: "less than {}",
    Kind.MinLength: "at least {} characters",
    Kind.MaxLength: "at most {} characters",
    Kind.MinItems: "at least {} items",
    Kind.MaxItems: "at most {} items",
    Kind.AdditionalItems: "at most {} items",
    Kind.MinProperties: "at least {} fields",
    Kind.MaxProperties: "at most {} fields",
}
REGEX_FAILURES = (Kind.BacktrackLimitExceeded, Kind.RegexEngineFailure)


def explain_error(error: SchemaError, root: Schema) -> Iterator[ArgumentProblem]:
    """Yield the problems of one validator error; `root` is the whole schema."""
    here = tuple(error.instance_path)
    match error.kind:
        case Kind.Required(property=name):
            words = f"a value (required{dependency_reason(error, root)})"
            yield ArgumentProblem(
                (*here, name), words + expected_type(name, parent_schema(error, root), root=root)
            )
        case Kind.AdditionalProperties(unexpected=names) | Kind.UnevaluatedProperties(unexpected=names):
            properties = get_mapping(parent_schema(error, root), "properties")
            for number, name in enumerate(names[:MAX_UNEXPECTED]):
                got = error.instance.get(name, ABSENT) if isinstance(error.instance, dict) else ABSENT
                suggestion = suggest_name(name, properties) if number < MAX_SUGGESTIONS else ""
                yield ArgumentProblem((*here, name), f"no field of this name{suggestion}", got)
        case Kind.AnyOf(context=branches) | Kind.OneOfNotValid(context=branches):
            yield from explain_alternatives(error, branches, root=root)
        case _:
            yield ArgumentProblem(here, describe_rule(error, root), error.instance)


def describe_rule(error: SchemaError, root: Schema) -> str:
    """Describe what a rule requires of one value."""
    match error.kind:
        case Kind.Type(types=types):
            return " or ".join(sorted(types))
        case Kind.Enum(options=options):
            more = [] if len(options) <= MAX_OPTIONS else ["…"]
            return "one of " + ", ".join([*map(quote_json, options[:MAX_OPTIONS]), *more])
        case Kind.Constant(expected_value=value):
            return quote_json(value)
        case Kind.Pattern(pattern=pattern):
            return f"text that matches {pattern}"
        case Kind.Format(format=format):
            return f"text that is a {format}"
        case Kind.MultipleOf(multiple_of=step):
            return f"a multiple of {step}"
        case Kind.FalseSchema():
            return "nothing here"
        case _:
            return describe_limit(error) or describe_collection_rule(error, root)


def describe_limit(error: SchemaError) -> str | None:
    words = LIMIT_TEXTS.get(type(error.kind))
    return words.format(error.kind.limit) if words is not None else None  # type: ignore[attr-defined]  # by table


def describe_collection_rule(error: SchemaError, root: Schema) -> str:
    """Describe what a rule over a list or an object requires."""
    match error.kind:
        case Kind.UniqueItems():
            return f"items that all differ{duplicate_items(error.instance)}"
        case Kind.Contains():
            return describe_contains(error, root)
        case Kind.PropertyNames(error=inner):
            return f"field names that are {describe_rule(inner, root)}; {quote_json(inner.instance)} is not"
        case Kind.OneOfMultipleValid(context=branches):
            fitting = [number for number, branch in enumerate(branches, 1) if not branch]
            return f"exactly one of its {len(branches)} forms; it fits {ordinals(fitting)} of them"
        case Kind.Not(schema=schema):
            return f"anything but {quote_json(schema)}"
        case Kind.UnevaluatedItems():
            return "no items beyond those that its schema names"
        case kind if isinstance(kind, REGEX_FAILURES):
            return "text whose pattern can be checked; this one takes too long"
        case _:
            return f"a value that matches its schema ({error.message[:MAX_FRAGMENT_LENGTH]})"


def describe_contains(error: SchemaError, root: Schema) -> str:
    schema = parent_schema(error, root)
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    bound = f"at most {most}" if list(error.schema_path)[-1] == "maxContains" else f"at least {least}"
    return f"{bound} of its items to fit {quote_json(schema.get('contains', {}))}"


def explain_alternatives(
    error: SchemaError, branches: Sequence[Sequence[SchemaError]], *, root: Schema
) -> Iterator[ArgumentProblem]:
    """Yield the problems of the alternative that was probably meant.

    If none is closest, yield one problem with the requirements of each.
    """
    here = tuple(error.instance_path)
    failing = [branch for branch in branches if branch]
    same_type = [branch for branch in failing if not any(is_type_mismatch(each, here) for each in branch)]
    if not same_type:
        words = [
            describe_rule(each, root) for branch in failing for each in branch if is_type_mismatch(each, here)
        ]
        yield ArgumentProblem(here, " or ".join(dict.fromkeys(words)) or "one of its forms", error.instance)
        return
    discriminators = [[each for each in branch if is_discriminator(each, here)] for branch in same_type]
    if (
        all(discriminators)
        and len({tuple(discriminator[0].instance_path) for discriminator in discriminators}) == 1
    ):
        words = [
            describe_rule(discriminator[0], root).removeprefix("one of ") for discriminator in discriminators
        ]
        yield ArgumentProblem(
            tuple(discriminators[0][0].instance_path),
            " or ".join(dict.fromkeys(words)),
            discriminators[0][0].instance,
        )
        return
    undetermined = [
        branch for branch in same_type if not any(is_discriminator(each, here) for each in branch)
    ]
    remaining = undetermined or same_type
    fewest = min(map(len, remaining))
    closest = [branch for branch in remaining if len(branch) == fewest]
    if len(closest) == 1:
        for each in closest[0]:
            yield from explain_error(each, root)
        return
    words = [describe_branch(branch, here, root=root) for branch in closest]
    yield ArgumentProblem(here, " or ".join(dict.fromkeys(words[:MAX_BRANCHES])), error.instance)


def is_type_mismatch(error: SchemaError, path: ValuePath) -> bool:
    """Return whether the value has another type than the alternative."""
    return isinstance(error.kind, Kind.Type) and tuple(error.instance_path) == tuple(path)


def is_discriminator(error: SchemaError, path: ValuePath) -> bool:
    """Return whether a field selects another alternative (`kind: "circle"`)."""
    direct = len(error.instance_path) == len(path) + 1
    return direct and isinstance(error.kind, Kind.Constant | Kind.Enum)


def describe_branch(branch: Sequence[SchemaError], base_path: tuple[str | int, ...], *, root: Schema) -> str:
    """Describe what one alternative requires, in short."""
    problems = [each for error in branch[:MAX_NAMES] for each in explain_error(error, root)]
    described = [(dotted_path(each.path[len(base_path) :]), each.expected) for each in problems]
    return " and ".join(f"`{path}`: {words}" if path else words for path, words in described[:MAX_BRANCHES])


def dependency_reason(error: SchemaError, root: Schema) -> str:
    """Return why a rule applies if that depends on other fields."""
    path = list(error.schema_path)
    for number, step in enumerate(path):
        if step in DEPENDENT_KEYWORDS:
            names = (
                [path[number + 1]]
                if len(path) > number + 2
                else dependency_triggers(error, root, path=path[: number + 1])
            )
            return f", because of {', '.join(f'`{name}`' for name in names)}" if names else ""
        if step in ("then", "else") and (number == 0 or path[number - 1] != "properties"):
            names = list(get_mapping(schema_at(root, [*path[:number], "if"]) or {}, "properties"))[:MAX_NAMES]
            return f", because of {', '.join(f'`{name}`' for name in names)}" if names else ""
    return ""


def dependency_triggers(error: SchemaError, root: Schema, *, path: ValuePath) -> list[str]:
    """Return the fields whose presence requires the missing one."""
    rules, name = schema_at(root, path), error.kind.property  # type: ignore[attr-defined]  # a Required
    present = error.instance if isinstance(error.instance, Mapping) else {}
    return [
        key for key, required in get_mapping({"r": rules}, "r").items() if key in present and name in required
    ]


def expected_type(name: str, schema: Schema, *, root: Schema) -> str:
    """Return what a missing field should be, in a word."""
    rules = resolve_ref(root, get_mapping(schema, "properties").get(name, {}))
    kinds = rules.get("type")
    if "enum" in rules:
        return ": one of " + ", ".join(quote_json(option) for option in list(rules["enum"])[:MAX_NAMES])
    return f": {kinds}" if isinstance(kinds, str) else f": {' or '.join(kinds)}" if kinds else ""


def suggest_name(name: str, known_names: Schema) -> str:
    """Suggest the similar field name, or list the existing ones."""
    similar = find_similar_name(name, known_names)
    if similar is not None:
        return f"; did you mean `{similar}`?"
    names = ", ".join(f"`{each}`" for each in list(known_names)[:MAX_NAMES])
    more = ", …" if len(known_names) > MAX_NAMES else ""
    return f"; there are {names}{more}" if names else ""


def parent_schema(error: SchemaError, root: Schema) -> Schema:
    """Return the schema whose keyword failed; for a dependency, the schema that it is part of."""
    path = list(error.schema_path)[:-1]
    schema = schema_at(root, path)
    return schema if isinstance(schema, Mapping) else {}


def duplicate_items(items: Any) -> str:
    """Return which two items are equal."""
    seen: dict[bytes, int] = {}
    for index, item in enumerate(items if isinstance(items, list) else ()):
        key = msgspec.json.encode(item, order="sorted")
        if key in seen:
            return f"; items {seen[key]} and {index} are the same"
        seen[key] = index
    return ""


def ordinals(numbers: Sequence[int]) -> str:
    """Return the numbers of alternatives as `the 1st and 3rd`."""
    names = [
        f"{n}{'th' if 10 < n % 100 < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}" for n in numbers
    ]
    return f"the {' and '.join(names)}" if names else "several"


def quote_json(value: Any) -> str:
    """Return a schema value as JSON, shortened."""
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= MAX_FRAGMENT_LENGTH else text[: MAX_FRAGMENT_LENGTH - 1] + "…"
