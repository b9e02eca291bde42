"""Fields of a client's JSON body, read by type; BadRequest names the field that has another one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.messages import ProviderMetadata

DEEPEST = 256  # levels of nesting: far beyond any schema, far below what the interpreter's stack takes
_TTLS = ("5m", "1h")


def decode(raw: bytes) -> Any:
    """The JSON value; ValueError says why there is none, also when it is nested too deeply."""
    try:
        value = msgspec.json.decode(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    if raw.count(b"{") + raw.count(b"[") > DEEPEST and _depth(value) > DEEPEST:
        raise ValueError("it is nested too deeply")
    return value


def _depth(value: Any) -> int:
    """The levels of nesting, counted no further than one past DEEPEST."""
    level, depth = [value], 0
    while level and depth <= DEEPEST:
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list)
        ]
        depth += 1
    return depth


def string(value: Any, field: str) -> str:
    """The string that must stand there."""
    if not isinstance(value, str):
        raise wrong(value, field, wanted="a string")
    return value


def name(value: Any, field: str) -> str:
    """The string that must stand there and say something."""
    if not isinstance(value, str) or not value:
        raise wrong(value, field, wanted="a non-empty string")
    return value


def text(value: Any, field: str) -> str:
    """The string that may stand there; nothing and null are an empty one."""
    return "" if value is None else string(value, field)


def mapping(value: Any, field: str) -> dict[str, Any]:
    """The object that must stand there."""
    if not isinstance(value, dict):
        raise wrong(value, field, wanted="an object")
    return value


def listing(value: Any, field: str) -> list[Any]:
    """The list that may stand there; nothing and null are an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong(value, field, wanted="a list")
    return value


def flag(value: Any, field: str) -> bool:
    """The true or false that may stand there; nothing and null are false."""
    if value is not None and not isinstance(value, bool):
        raise wrong(value, field, wanted="true or false")
    return bool(value)


def wrong(value: Any, field: str, *, wanted: str) -> BadRequest:
    """The error for a value that is not what is wanted."""
    if value is None:
        return BadRequest(f"{field} is missing: it must be {wanted}", field=field)
    return BadRequest(f"{field} must be {wanted}, got {show(value)}", field=field)


def show(value: Any) -> str:
    """A value in a few words, however long it is."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return repr(value[:60])
        case _:
            return f"{value!r:.60}"


def cache_mark(value: Mapping[str, Any], field: str) -> ProviderMetadata | None:
    """The mark that a prompt is cached up to here: Anthropic's `cache_control`, or OpenAI's breakpoint.

    Anthropic keeps five minutes or an hour: a breakpoint that asks for more than the former gets the latter.
    """
    control = value.get("cache_control")
    if control is not None:
        return {"anthropic": {"cacheControl": mapping(control, f"{field}.cache_control")}}
    mark = value.get("prompt_cache_breakpoint")
    if mark is None:
        return None
    field = f"{field}.prompt_cache_breakpoint"
    ttl = text(mapping(mark, field).get("ttl"), f"{field}.ttl")
    kept: dict[str, Any] = {"type": "ephemeral"}
    if ttl:
        kept["ttl"] = ttl if ttl in _TTLS else "1h"
    return {"anthropic": {"cacheControl": kept}}


class Ignored:
    """Notes the fields that are left out, each once: `messages[].name`."""

    def __init__(self) -> None:
        self._fields: dict[str, None] = {}

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields in the order in which they were met."""
        return tuple(self._fields)

    def rest(self, value: Mapping[str, Any], known: Collection[str], *, field: str) -> None:
        """Note each field of the object that is not known and holds something."""
        for key, held in value.items():
            if key not in known and not (held is None or held == [] or held == {} or held == ""):
                self._fields[f"{field}.{key}" if field else key] = None


def marked(parts: Sequence[Any], mark: ProviderMetadata | None) -> list[Any]:
    """The parts with a message's own mark on the last of them; a mark that it has itself stays."""
    if mark is None or not parts:
        return list(parts)
    metadata = {**mark, **(parts[-1].provider_metadata or {})}
    return [*parts[:-1], msgspec.structs.replace(parts[-1], provider_metadata=metadata)]
