"""The shape of a configuration: whether decoded values fit the sections, every fault told at once."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from dragoman.config.document import Unusable, read_text
from dragoman.config.faults import Fault, Path, listed, looks_secret, meant, shown

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}
FEW = 12  # fields that are named when one is unknown
_LITELLM = "it is LiteLLM's; docs/gateway.md shows what becomes of it here"
_ADVICE = {
    "api_key": "a key stays out of this file: name its variable in api_key_env, or its file in api_key_file",
    "api_base": "it is base_url here",
    **dict.fromkeys(
        ("model_list", "litellm_settings", "router_settings", "general_settings", "environment_variables"),
        _LITELLM,
    ),
}


def fit(value: Any, kind: Any, *, texts: Mapping[Path, str]) -> tuple[Any, list[Fault]]:
    """The value as its fields want it (a variable's text where text is wanted), and what does not fit."""
    fitting = Fitting(texts)
    return fitting.look(value, kind, path=()), fitting.faults


class Fitting:
    """One look at a value."""

    def __init__(self, texts: Mapping[Path, str]) -> None:
        self.faults: list[Fault] = []
        self._texts = texts

    def look(self, value: Any, kind: Any, *, path: Path) -> Any:
        """The value as `kind` wants it."""
        chosen = _choose(value, kind)
        if isinstance(chosen, type) and issubclass(chosen, msgspec.Struct) and isinstance(value, dict):
            return dict(self._section(value, chosen, path=path))
        match get_origin(chosen), value:
            case origin, dict() if origin is dict:
                return dict(self._named(value, get_args(chosen)[1], path=path))
            case (origin, list() | tuple()) if origin in (list, tuple):
                inner = get_args(chosen)[0]
                items = [self.look(held, inner, path=(*path, at)) for at, held in enumerate(value)]
                return items or self._leaf(items, kind, path=path)
            case _:
                return self._leaf(value, kind, path=path)

    def _section(
        self, value: Mapping[Any, Any], kind: type[msgspec.Struct], *, path: Path
    ) -> Iterator[tuple[str, Any]]:
        hints = _hints(kind)
        for name, held in value.items():
            below = (*path, name)
            if held is None and _is_collection(hints.get(name)):
                continue  # a section of which everything is commented out
            if name in hints:
                yield name, self.look(held, hints[name], path=below)
            else:
                self.faults.append(Fault(below, _unknown(str(name), hints)))
        for field in msgspec.structs.fields(kind):
            if field.required and field.name not in value:
                self.faults.append(Fault((*path, field.name), "is missing"))

    def _named(self, value: Mapping[Any, Any], kind: Any, *, path: Path) -> Iterator[tuple[str, Any]]:
        for name, held in value.items():
            if isinstance(name, str):
                yield name, self.look(held, kind, path=(*path, name))
            else:
                self.faults.append(Fault(path, f"expected text as a name, got {shown(name, path)}"))

    def _leaf(self, value: Any, kind: Any, *, path: Path) -> Any:
        try:
            msgspec.convert(value, kind)
        except (msgspec.ValidationError, OverflowError) as error:
            for other in self._others(path):
                if _fits(other, kind):
                    return other
            self.faults.append(Fault(path, _wrong(str(error), value, kind=kind, path=path)))
        return value

    def _others(self, path: Path) -> Iterator[Any]:
        """What a variable's text could mean besides."""
        text = self._texts.get(path)
        if text is not None:
            yield text
            with suppress(Unusable):
                yield read_text(text)


@cache
def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _choose(value: Any, kind: Any) -> Any:
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


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    if name in _ADVICE:
        return f"there is no such field: {_ADVICE[name]}"
    few = f"; there are {listed(known)}" if len(known) <= FEW else ""
    return f"there is no such field{meant(name, known) or few}"


def _wrong(said: str, value: Any, *, kind: Any, path: Path) -> str:
    """What msgspec says of a value, in the user's words."""
    words = list(_literals(kind))
    plain = said.partition(" - at ")[0]
    if plain.startswith("Invalid enum value") and isinstance(value, str):
        near = "" if looks_secret(value) else meant(value, words)
        return f"expected {listed([*_numbers(kind), *words])}, got {shown(value, path)}{near}"
    wanted, backtick, rest = plain.removeprefix("Expected `").partition("`")
    if not backtick:
        return f"{plain.lower()}: {shown(value, path)}"
    names = [_WORDS.get(word, word) for word in wanted.split(" | ")]
    if words:
        names = [*(name for name in names if name != "text"), *words]
    return f"expected {listed(names)}{_bound(rest.partition(', got')[0])}, got {shown(value, path)}"


def _numbers(kind: Any) -> list[str]:
    """What a union takes beside words."""
    members = [
        get_args(member)[0] if get_origin(member) is Annotated else member for member in get_args(kind)
    ]
    return [_WORDS[member.__name__] for member in members if member in (int, float, bool)]


def _bound(said: str) -> str:
    """` >= 0` and ` of length >= 1` as msgspec has them, a bit plainer."""
    match said:
        case " of length >= 1":
            return " that is not empty"
        case _:
            return said.replace(".0", "")


def _literals(kind: Any) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield from (word for word in get_args(kind) if isinstance(word, str))
    for inner in get_args(kind):
        if get_origin(inner) is not None:
            yield from _literals(inner)
