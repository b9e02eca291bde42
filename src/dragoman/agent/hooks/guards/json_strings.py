"""The strings in a JSON value: find and replace them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec


class JsonString(msgspec.Struct, frozen=True):
    """A string in a JSON value and the field that it is in; `is_key`: it is a field name itself."""

    text: str
    field: str = ""
    is_key: bool = False


def strings_in(value: Any, field: str = "") -> Iterator[JsonString]:
    """Yield all strings in a value, field names too, in order."""
    stack: list[tuple[Any, str]] = [(value, field)]
    while stack:
        value, field = stack.pop()
        if isinstance(value, str):
            yield JsonString(value, field)
        elif isinstance(value, Mapping):
            yield from (JsonString(str(name), field, is_key=True) for name in value)
            stack.extend((item, str(name)) for name, item in reversed(list(value.items())))
        elif isinstance(value, list | tuple):
            stack.extend((item, field) for item in reversed(value))


def replace_strings(value: Any, change: Callable[[str, str], str], *, field: str = "") -> Any:
    """Return the value with `change(text, field)` in place of each string, field names too."""
    if isinstance(value, str):
        return change(value, field)
    if isinstance(value, Mapping):
        return {
            change(str(name), ""): replace_strings(item, change, field=str(name))
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [replace_strings(item, change, field=field) for item in value]
    return value
