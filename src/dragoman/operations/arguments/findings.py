"""Findings: what the validator found wrong, in words that a model can mend its arguments by."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jsonschema_rs
import msgspec
from jsonschema_rs import ValidationErrorKind as Kind

from dragoman.operations.arguments.subschemas import Rules, fragment, named, resolve

Path: TypeAlias = Sequence[str | int]
Error: TypeAlias = jsonschema_rs.ValidationError

ABSENT = object()
NAMES = 10
BRANCHES = 5
FRAGMENT = 120
DEPENDENT = ("dependentRequired", "dependentSchemas", "dependencies")
LIMITS: Mapping[type, str] = {
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
COSTLY = (Kind.BacktrackLimitExceeded, Kind.RegexEngineFailure)


class Finding(msgspec.Struct, frozen=True):
    """What is wrong in one place; `got` is the value there, or ABSENT."""

    path: tuple[str | int, ...]
    expected: str
    got: Any = ABSENT


def find(error: Error, root: Rules) -> Iterator[Finding]:
    """The findings that one error of the validator stands for; `root` is the whole schema."""
    here = tuple(error.instance_path)
    match error.kind:
        case Kind.Required(property=name):
            words = f"a value (required{because(error, root)})"
            yield Finding((*here, name), words + sort_of(name, parent(error, root), root=root))
        case Kind.AdditionalProperties(unexpected=names) | Kind.UnevaluatedProperties(unexpected=names):
            known = named(parent(error, root), "properties")
            for name in names:
                got = error.instance.get(name, ABSENT) if isinstance(error.instance, dict) else ABSENT
                yield Finding((*here, name), f"no field of this name{offer(name, known)}", got)
        case Kind.AnyOf(context=branches) | Kind.OneOfNotValid(context=branches):
            yield from nearest(error, branches, root=root)
        case _:
            yield Finding(here, wording(error, root), error.instance)


def wording(error: Error, root: Rules) -> str:
    """What a rule asks for, when it is of one place and no choice between others."""
    match error.kind:
        case Kind.Type(types=types):
            return " or ".join(sorted(types))
        case Kind.Enum(options=options):
            return "one of " + ", ".join(quote(option) for option in options)
        case Kind.Constant(expected_value=value):
            return quote(value)
        case Kind.Pattern(pattern=pattern):
            return f"text that matches {pattern}"
        case Kind.Format(format=format):
            return f"text that is a {format}"
        case Kind.MultipleOf(multiple_of=step):
            return f"a multiple of {step}"
        case Kind.FalseSchema():
            return "nothing here"
        case _:
            return limit_of(error) or whole(error, root)


def limit_of(error: Error) -> str | None:
    words = LIMITS.get(type(error.kind))
    return words.format(error.kind.limit) if words is not None else None  # type: ignore[attr-defined]  # by table


def whole(error: Error, root: Rules) -> str:
    """What a rule over the whole of a list or an object asks for."""
    match error.kind:
        case Kind.UniqueItems():
            return f"items that all differ{twins(error.instance)}"
        case Kind.Contains():
            return containing(error, root)
        case Kind.PropertyNames(error=inner):
            return f"field names that are {wording(inner, root)}; {quote(inner.instance)} is not"
        case Kind.OneOfMultipleValid(context=branches):
            fitting = [number for number, branch in enumerate(branches, 1) if not branch]
            return f"exactly one of its {len(branches)} forms; it fits {counted(fitting)} of them"
        case Kind.Not(schema=schema):
            return f"anything but {quote(schema)}"
        case Kind.UnevaluatedItems():
            return "no items beyond those that its schema names"
        case kind if isinstance(kind, COSTLY):
            return "text whose pattern can be checked; this one takes too long"
        case _:
            return f"what its schema says ({error.message[:FRAGMENT]})"


def containing(error: Error, root: Rules) -> str:
    around = parent(error, root)
    least, most = around.get("minContains", 1), around.get("maxContains")
    bound = f"at most {most}" if list(error.schema_path)[-1] == "maxContains" else f"at least {least}"
    return f"{bound} of its items to fit {quote(around.get('contains', {}))}"


def nearest(error: Error, branches: Sequence[Sequence[Error]], *, root: Rules) -> Iterator[Finding]:
    """What is wrong with the form that was probably meant; where none stands out, what each one wants."""
    here = tuple(error.instance_path)
    meant = [branch for branch in branches if branch]
    same_sort = [branch for branch in meant if not any(is_type(each, here) for each in branch)]
    if not same_sort:
        words = [wording(each, root) for branch in meant for each in branch if is_type(each, here)]
        yield Finding(here, " or ".join(dict.fromkeys(words)) or "one of its forms", error.instance)
        return
    marks = [[each for each in branch if is_mark(each, here)] for branch in same_sort]
    if all(marks) and len({tuple(mark[0].instance_path) for mark in marks}) == 1:
        words = [wording(mark[0], root).removeprefix("one of ") for mark in marks]
        yield Finding(
            tuple(marks[0][0].instance_path), " or ".join(dict.fromkeys(words)), marks[0][0].instance
        )
        return
    told_apart = [branch for branch in same_sort if not any(is_mark(each, here) for each in branch)]
    left = told_apart or same_sort
    fewest = min(map(len, left))
    close = [branch for branch in left if len(branch) == fewest]
    if len(close) == 1:
        for each in close[0]:
            yield from find(each, root)
        return
    words = [describe(branch, here, root=root) for branch in close]
    yield Finding(here, " or ".join(dict.fromkeys(words[:BRANCHES])), error.instance)


def is_type(error: Error, here: Path) -> bool:
    """Whether an error is that the value is of another type altogether."""
    return isinstance(error.kind, Kind.Type) and tuple(error.instance_path) == tuple(here)


def is_mark(error: Error, here: Path) -> bool:
    """Whether an error is that a field says that another form is meant (`kind: "circle"`)."""
    direct = len(error.instance_path) == len(here) + 1
    return direct and isinstance(error.kind, Kind.Constant | Kind.Enum)


def describe(branch: Sequence[Error], here: tuple[str | int, ...], *, root: Rules) -> str:
    """What one form wants, in short."""
    found = [each for error in branch[:NAMES] for each in find(error, root)]
    said = [(dotted(each.path[len(here) :]), each.expected) for each in found]
    return " and ".join(f"`{path}`: {words}" if path else words for path, words in said[:BRANCHES])


def because(error: Error, root: Rules) -> str:
    """Why a rule holds here, when that depends on other fields."""
    path = list(error.schema_path)
    for number, step in enumerate(path):
        if step in DEPENDENT:
            names = (
                [path[number + 1]]
                if len(path) > number + 2
                else triggers(error, root, path=path[: number + 1])
            )
            return f", because of {', '.join(f'`{name}`' for name in names)}" if names else ""
        if step in ("then", "else") and (number == 0 or path[number - 1] != "properties"):
            names = list(named(fragment(root, [*path[:number], "if"]) or {}, "properties"))[:NAMES]
            return f", because of {', '.join(f'`{name}`' for name in names)}" if names else ""
    return ""


def triggers(error: Error, root: Rules, *, path: Path) -> list[str]:
    """The fields whose presence asks for the one that lacks."""
    rules, name = fragment(root, path), error.kind.property  # type: ignore[attr-defined]  # a Required
    given = error.instance if isinstance(error.instance, Mapping) else {}
    return [key for key, wanted in named({"r": rules}, "r").items() if key in given and name in wanted]


def sort_of(name: str, around: Rules, *, root: Rules) -> str:
    """What a missing field should be, as far as one word can say it."""
    rules = resolve(root, named(around, "properties").get(name, {}))
    kinds = rules.get("type")
    if "enum" in rules:
        return ": one of " + ", ".join(quote(option) for option in list(rules["enum"])[:NAMES])
    return f": {kinds}" if isinstance(kinds, str) else f": {' or '.join(kinds)}" if kinds else ""


def offer(name: str, known: Rules) -> str:
    """The name that was probably meant, or those that there are."""
    close = difflib.get_close_matches(name[:FRAGMENT], known, n=1)
    if close:
        return f"; did you mean `{close[0]}`?"
    names = ", ".join(f"`{each}`" for each in list(known)[:NAMES])
    more = ", …" if len(known) > NAMES else ""
    return f"; there are {names}{more}" if names else ""


def parent(error: Error, root: Rules) -> Rules:
    """The schema whose keyword is broken; of a dependency, the one that it is part of."""
    path = list(error.schema_path)[:-1]
    found = fragment(root, path)
    return found if isinstance(found, Mapping) else {}


def twins(items: Any) -> str:
    """Which two items are the same."""
    seen: dict[bytes, int] = {}
    for index, item in enumerate(items if isinstance(items, list) else ()):
        key = msgspec.json.encode(item, order="sorted")
        if key in seen:
            return f"; items {seen[key]} and {index} are the same"
        seen[key] = index
    return ""


def counted(numbers: Sequence[int]) -> str:
    """The numbers of forms, as `the 1st and 3rd`."""
    names = [
        f"{n}{'th' if 10 < n % 100 < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}" for n in numbers
    ]
    return f"the {' and '.join(names)}" if names else "several"


def quote(value: Any) -> str:
    """A value of the schema as JSON, cut short."""
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= FRAGMENT else text[: FRAGMENT - 1] + "…"


def dotted(path: Path) -> str:
    """The path as `a.b[0].c`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")
