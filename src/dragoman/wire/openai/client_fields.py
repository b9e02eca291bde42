"""Fields of a client's JSON body, read by type; BadRequest names the field that has another one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.messages import ProviderMetadata

MAX_DEPTH = 256  # levels of nesting: far beyond any schema, far below what the interpreter's stack takes
_CACHE_TTLS = ("5m", "1h")


def decode_json(raw: bytes) -> Any:
    """The JSON value; ValueError says why there is none, also when it is nested too deeply."""
    try:
        value = msgspec.json.decode(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    return value


def _depth(value: Any) -> int:
    """The levels of nesting, counted no further than one past DEEPEST."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list)
        ]
        depth += 1
    return depth


def read_string(value: Any, field: str) -> str:
    """The string that must stand there."""
    if not isinstance(value, str):
        raise invalid_field(value, field, expected="a string")
    return value


def read_nonempty_string(value: Any, field: str) -> str:
    """The string that must stand there and say something."""
    if not isinstance(value, str) or not value:
        raise invalid_field(value, field, expected="a non-empty string")
    return value


def read_optional_string(value: Any, field: str) -> str:
    """The string that may stand there; nothing and null are an empty one."""
    return "" if value is None else read_string(value, field)


def read_object(value: Any, field: str) -> dict[str, Any]:
    """The object that must stand there."""
    if not isinstance(value, dict):
        raise invalid_field(value, field, expected="an object")
    return value


def read_list(value: Any, field: str) -> list[Any]:
    """The list that may stand there; nothing and null are an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid_field(value, field, expected="a list")
    return value


def read_boolean(value: Any, field: str) -> bool:
    """The true or false that may stand there; nothing and null are false."""
    if value is not None and not isinstance(value, bool):
        raise invalid_field(value, field, expected="true or false")
    return bool(value)


def invalid_field(value: Any, field: str, *, expected: str) -> BadRequest:
    """The error for a value that is not what is wanted."""
    if value is None:
        return BadRequest(f"{field} is missing: it must be {expected}", field=field)
    return BadRequest(f"{field} must be {expected}, got {describe_value(value)}", field=field)


def describe_value(value: Any) -> str:
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


def read_cache_control(value: Mapping[str, Any], field: str) -> ProviderMetadata | None:
    """The mark that a prompt is cached up to here: Anthropic's `cache_control`, or OpenAI's breakpoint.

    Anthropic keeps five minutes or an hour: a breakpoint that asks for more than the former gets the latter.
    """
    control = value.get("cache_control")
    if control is not None:
        return {"anthropic": {"cacheControl": read_object(control, f"{field}.cache_control")}}
    mark = value.get("prompt_cache_breakpoint")
    if mark is None:
        return None
    field = f"{field}.prompt_cache_breakpoint"
    ttl = read_optional_string(read_object(mark, field).get("ttl"), f"{field}.ttl")
    kept: dict[str, Any] = {"type": "ephemeral"}
    if ttl:
        kept["ttl"] = ttl if ttl in _CACHE_TTLS else "1h"
    return {"anthropic": {"cacheControl": kept}}


class IgnoredFields:
    """Notes the fields that are left out, each once: `messages[].name`."""

    def __init__(self) -> None:
        self._fields: dict[str, None] = {}

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields in the order in which they were met."""
        return tuple(self._fields)

    def add_unknown(self, value: Mapping[str, Any], supported: Collection[str], *, field: str) -> None:
        """Note each field of the object that is not known and holds something."""
        for key, held in value.items():
            if key not in supported and not (held is None or held == [] or held == {} or held == ""):
                self._fields[f"{field}.{key}" if field else key] = None


def with_cache_control(parts: Sequence[Any], cache_metadata: ProviderMetadata | None) -> list[Any]:
    """The parts with a message's own mark on the last of them; a mark that it has itself stays."""
    if cache_metadata is None or not parts:
        return list(parts)
    metadata = {**cache_metadata, **(parts[-1].provider_metadata or {})}
    return [*parts[:-1], msgspec.structs.replace(parts[-1], provider_metadata=metadata)]
