"""The shape of a configuration: whether decoded values fit the sections; all problems are reported."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from dragoman.config.fixes import type_fix
from dragoman.config.problems import (
    ConfigProblem,
    FieldPath,
    describe_value,
    join_names,
    looks_secret,
)
from dragoman.config.sections import Config
from dragoman.config.yaml_document import InvalidScalar, parse_text
from dragoman.suggestions import suggest

_TYPE_TEXTS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}
MAX_LISTED_FIELDS = 12  # fields that are named when one is unknown
_LITELLM = "it is LiteLLM's; docs/gateway.md shows what becomes of it here"
_FIELD_HINTS = {
    "api_key": "a key stays out of this file: name its variable in api_key_env, or its file in api_key_file",
    "api_base": "it is base_url here",
    **dict.fromkeys(
        ("model_list", "litellm_settings", "router_settings", "general_settings", "environment_variables"),
        _LITELLM,
    ),
}


def check_types(value: Any, kind: Any, *, texts: Mapping[FieldPath, str]) -> tuple[Any, list[ConfigProblem]]:
    """Return the value with each variable's text read as its field needs it, and what does not fit.

    `texts` are the unparsed values of variables (`ConfigDocument.variable_texts`).
    """
    checker = TypeChecker(texts)
    return checker.check(value, kind, path=()), checker.problems


class TypeChecker:
    """Checks a decoded value and collects its problems."""

    def __init__(self, texts: Mapping[FieldPath, str]) -> None:
        self.problems: list[ConfigProblem] = []
        self._texts = texts

    def check(self, value: Any, kind: Any, *, path: FieldPath) -> Any:
        """Return the value in the form that `kind` expects."""
        chosen = _choose_member(value, kind)
        if isinstance(chosen, type) and issubclass(chosen, msgspec.Struct) and isinstance(value, dict):
            return dict(self._check_section(value, chosen, path=path))
        match get_origin(chosen), value:
            case origin, dict() if origin is dict:
                return dict(self._check_mapping(value, chosen, path=path))
            case (origin, list() | tuple()) if origin in (list, tuple):
                inner = get_args(chosen)[0]
                items = [self.check(item, inner, path=(*path, at)) for at, item in enumerate(value)]
                return items or self._check_leaf(items, kind, path=path)
            case _:
                return self._check_leaf(value, kind, path=path)

    def _check_section(
        self, value: Mapping[Any, Any], kind: type[msgspec.Struct], *, path: FieldPath
    ) -> Iterator[tuple[str, Any]]:
        hints = _type_hints(kind)
        for name, item in value.items():
            below = (*path, name)
            if not isinstance(name, str):
                self._refuse_name(name, path)
                continue
            if item is None and _is_collection(hints.get(name)):
                continue  # a section whose fields are all commented out
            if name in hints:
                yield name, self.check(item, hints[name], path=below)
            else:
                self.problems.append(ConfigProblem(below, _unknown_field_text(str(name), kind, fields=hints)))
        for field in struct_fields(kind):
            if field.required and field.name not in value:
                words = list(_literal_values(hints[field.name]))
                message = f"is missing: {join_names(words)}" if words else "is missing"
                self.problems.append(ConfigProblem((*path, field.name), message))

    def _check_mapping(
        self, value: Mapping[Any, Any], mapping: Any, *, path: FieldPath
    ) -> Iterator[tuple[str, Any]]:
        name_kind, kind = get_args(mapping)
        for name, item in value.items():
            if not isinstance(name, str):
                self._refuse_name(name, path)
            elif _fits(name, name_kind):
                yield name, self.check(item, kind, path=(*path, name))
            else:
                self._check_leaf(name, name_kind, path=path)

    def _refuse_name(self, name: Any, path: FieldPath) -> None:
        self.problems.append(
            ConfigProblem(path, f"expected text as a name, got {describe_value(name, path)}")
        )

    def _check_leaf(self, value: Any, kind: Any, *, path: FieldPath) -> Any:
        try:
            if isinstance(value, str):
                value.encode()  # a YAML escape can be a lone surrogate, which cannot be written or sent
            msgspec.convert(value, kind)
        except UnicodeEncodeError:
            message = f"has half of a character: {describe_value(value, path)}"
            self.problems.append(ConfigProblem(path, message))
        except (msgspec.ValidationError, OverflowError) as error:
            for other in self._other_readings(path):
                if _fits(other, kind):
                    return other
            self.problems.append(ConfigProblem(path, _mismatch_text(str(error), value, kind=kind, path=path)))
        return value

    def _other_readings(self, path: FieldPath) -> Iterator[Any]:
        """Yield the other values that a variable's text can stand for."""
        text = self._texts.get(path)
        if text is not None:
            yield text
            with suppress(InvalidScalar):
                yield parse_text(text)


@cache
def _type_hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@cache
def struct_fields(kind: type[msgspec.Struct]) -> Sequence[msgspec.structs.FieldInfo]:
    """Return the fields of a section: msgspec evaluates all annotations for them."""
    return msgspec.structs.fields(kind)


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError, UnicodeEncodeError):
        return False
    return True


def _choose_member(value: Any, kind: Any) -> Any:
    """Of a union, the member that a collection could be; else the type itself, without its bounds."""
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    bare = [get_args(member)[0] if get_origin(member) is Annotated else member for member in members]
    for member in bare:
        origin = get_origin(member) or member
        if isinstance(value, dict) and (origin is dict or _is_section(origin)):
            return member
        if isinstance(value, list | tuple) and origin in (list, tuple):
            return member
    return bare[0] if len(bare) == 1 else kind


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _is_collection(kind: Any) -> bool:
    return (get_origin(kind) or kind) in (dict, list, tuple) or _is_section(kind)


def _unknown_field_text(name: str, kind: type[msgspec.Struct], *, fields: Mapping[str, Any]) -> str:
    if name in _FIELD_HINTS:
        return f"there is no such field: {_FIELD_HINTS[name]}"
    if kind is Config and (place := _place_of_field(name)):
        return f"there is no such field here; there is {place}"
    few = f"; there are {join_names(fields)}" if len(fields) <= MAX_LISTED_FIELDS else ""
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace("-", "_")
    return f"there is no such field{suggest(plain, fields) or few}"


@cache
def _place_of_field(name: str) -> str | None:
    """Return the path of a field of this name in a section of the configuration; None without one."""
    for section, kind in _type_hints(Config).items():
        below = f"{section}.NAME" if get_origin(kind) is dict else section
        for inner in (kind, *get_args(kind)):
            if _is_section(inner) and name in _type_hints(inner):
                return f"{below}.{name}"
    return None


def _mismatch_text(message: str, value: Any, *, kind: Any, path: FieldPath) -> str:
    """Return msgspec's message about a value in the words of the documentation."""
    words = list(_literal_values(kind))
    plain = message.partition(" - at ")[0]
    if plain.startswith("Invalid enum value") and isinstance(value, str):
        near = "" if looks_secret(value) else suggest(value, words)
        if not near and _number_types(kind):
            near = type_fix(value, ["float"], path=path)
        if not near and path[:1] == ("providers",) and path[-1] == "type":
            near = "; use openai for any OpenAI-compatible server"
        return (
            f"expected {join_names([*_number_types(kind), *words])}, got {describe_value(value, path)}{near}"
        )
    wanted, backtick, rest = plain.removeprefix("Expected `").partition("`")
    if not backtick:
        return f"{plain.lower()}: {describe_value(value, path)}"
    names = [_TYPE_TEXTS.get(word, word) for word in wanted.split(" | ")]
    if words:
        names = [*(name for name in names if name != "text"), *words]
    return (
        f"expected {join_names(names)}{_bound_text(rest.partition(', got')[0])}, "
        f"got {describe_value(value, path)}{type_fix(value, wanted.split(' | '), path=path)}"
    )


def _number_types(kind: Any) -> list[str]:
    """Return the texts of the types that a union accepts beside its literal words."""
    members = [
        get_args(member)[0] if get_origin(member) is Annotated else member for member in get_args(kind)
    ]
    return [_TYPE_TEXTS[member.__name__] for member in members if member in (int, float, bool)]


def _bound_text(bound: str) -> str:
    """Return a bound such as ` >= 0` or ` of length >= 1` from msgspec's message in plainer words."""
    match bound:
        case " of length >= 1":
            return " that is not empty"
        case _:
            return bound.replace(".0", "")


def _literal_values(kind: Any) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield from (word for word in get_args(kind) if isinstance(word, str))
    for inner in get_args(kind):
        if get_origin(inner) is not None:
            yield from _literal_values(inner)
