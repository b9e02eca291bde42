"""Values that fit hardly anywhere: for tests that put them where others write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ODD_NUMBERS: tuple[Any, ...] = (0, -1, 0.1, 1e308, 2**63, -(2**63) - 1, 2**64, 10**400)
ODD_DIGITS = ("²", "٣", "1e9999999999999999999", "0x10", "NaN", "9" * 50, "9" * 5_000)
ODD_TEXTS = ("", "a" * 300, "\ud800", "\0", "\N{GRINNING FACE}", "../../etc/passwd", "%00", "' OR 1=1 --")
ODD_CONTAINERS: tuple[Any, ...] = (
    *([], {}, [[]], [None], ["x"], [{}] * 3, [1] * 50),
    *({"a": None}, {"": {}}, {"__proto__": {}}, {"type": "x"}),
)
ODD_VALUES: tuple[Any, ...] = (None, True, *ODD_NUMBERS, *ODD_DIGITS, *ODD_TEXTS, *ODD_CONTAINERS)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values within a JSON value, its own among them."""
    yield path
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield from places(child, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a JSON value with another one at a path."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy
