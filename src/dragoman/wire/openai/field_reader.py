"""Read fields of a client's JSON body by type; BadRequest names the invalid field."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.json_decoding import decode_json, is_deeper_than
from dragoman.messages import ProviderMetadata
from dragoman.wire.client_request import MAX_ITEMS, MAX_TOOLS, check_count

MAX_DEPTH = 256  # more than any schema needs, and far below the interpreter's recursion limit
TOOL_FIELDS = ("tools", "functions")
_CACHE_TTLS = ("5m", "1h")


def decode_body(raw: bytes) -> Any:
    """Decode JSON; ValueError tells why it is invalid, also if it is nested too deeply."""
    try:
        value = decode_json(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ValueError(str(error)) from None
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and is_deeper_than(value, MAX_DEPTH):
        raise ValueError("it is nested too deeply")
    return value


def read_string(value: Any, field: str) -> str:
    """Return a required string."""
    if not isinstance(value, str):
        raise invalid_field(value, field, expected="a string")
    return value


def read_nonempty_string(value: Any, field: str) -> str:
    """Return a required string that is not empty."""
    if not isinstance(value, str) or not value:
        raise invalid_field(value, field, expected="a non-empty string")
    return value


def read_optional_string(value: Any, field: str) -> str:
    """Return an optional string; absent and null count as empty."""
    return "" if value is None else read_string(value, field)


def read_object(value: Any, field: str) -> dict[str, Any]:
    """Return a required object."""
    if not isinstance(value, dict):
        raise invalid_field(value, field, expected="an object")
    return value


def read_list(value: Any, field: str) -> list[Any]:
    """Return an optional list; absent and null count as empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid_field(value, field, expected="a list")
    check_count(len(value), field, limit=MAX_TOOLS if field in TOOL_FIELDS else MAX_ITEMS)
    return value


def read_boolean(value: Any, field: str) -> bool:
    """Return an optional boolean; absent and null count as false."""
    if value is not None and not isinstance(value, bool):
        raise invalid_field(value, field, expected="true or false")
    return bool(value)


def invalid_field(value: Any, field: str, *, expected: str) -> BadRequest:
    """Create the error for a value that is not of the expected type."""
    if value is None:
        return BadRequest(f"{field} is missing: it must be {expected}", field=field)
    return BadRequest(f"{field} must be {expected}, got {describe_value(value)}", field=field)


def describe_value(value: Any) -> str:
    """Describe a value briefly, for error messages."""
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
    """Read the prompt cache breakpoint: Anthropic's `cache_control`, or OpenAI's `prompt_cache_breakpoint`.

    Anthropic caches for five minutes or an hour: an OpenAI breakpoint with a longer time gets an hour.
    """
    control = value.get("cache_control")
    if control is not None:
        return {"anthropic": {"cacheControl": read_object(control, f"{field}.cache_control")}}
    openai_breakpoint = value.get("prompt_cache_breakpoint")
    if openai_breakpoint is None:
        return None
    field = f"{field}.prompt_cache_breakpoint"
    ttl = read_optional_string(read_object(openai_breakpoint, field).get("ttl"), f"{field}.ttl")
    cache_control: dict[str, Any] = {"type": "ephemeral"}
    if ttl:
        cache_control["ttl"] = ttl if ttl in _CACHE_TTLS else "1h"
    return {"anthropic": {"cacheControl": cache_control}}


class IgnoredFields:
    """Collects the fields that are dropped, each once: `messages[].name`."""

    def __init__(self) -> None:
        self._fields: dict[str, None] = {}

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields in the order in which they occurred."""
        return tuple(self._fields)

    def add_unknown(self, value: Mapping[str, Any], supported: Collection[str], *, field: str) -> None:
        """Add each field of the object that is not supported and not empty."""
        for key, field_value in value.items():
            if key not in supported and not (
                field_value is None or field_value == [] or field_value == {} or field_value == ""
            ):
                self._fields[f"{field}.{key}" if field else key] = None


def with_cache_control(parts: Sequence[Any], cache_metadata: ProviderMetadata | None) -> list[Any]:
    """Add a message's cache breakpoint to the last of its parts, unless that has one."""
    if cache_metadata is None or not parts:
        return list(parts)
    metadata = {**cache_metadata, **(parts[-1].provider_metadata or {})}
    return [*parts[:-1], msgspec.structs.replace(parts[-1], provider_metadata=metadata)]
