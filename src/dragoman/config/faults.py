"""Faults: what is wrong in a configuration, at which path; and how it is told without a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, TypeAlias

import msgspec

Path: TypeAlias = tuple[str | int, ...]

_PLAIN = re.compile(r"[\w/*:@-]+")
_SECRET = re.compile(r"key|token|secret|password|auth|cookie|headers", re.IGNORECASE)
_PASTED = re.compile(r"(?=.*[a-z])(?=.*\d)[\w.~+/=-]{24,}")
_WORD = re.compile(r"[\w.~+/=-]{24,}")
LONGEST = 60


class Fault(msgspec.Struct, frozen=True):
    """Something wrong, at the path of a field."""

    path: Path
    message: str


def dotted(path: Path) -> str:
    """A path as people write it: `providers.up.keys[0].api_key_env`."""
    said = ""
    for step in path:
        said += f"[{step}]" if isinstance(step, int) else f".{_step(step)}"
    return said.removeprefix(".")


def _step(name: str) -> str:
    if looks_secret(name) and "/" not in name:
        return "…"
    return name if _PLAIN.fullmatch(name) else shorten(name)


def looks_secret(text: str) -> bool:
    """Whether a text is more like a key that somebody pasted than like a name."""
    return _PASTED.fullmatch(text) is not None


def clean(text: str) -> str:
    """What somebody else says of the input, without what may be a secret in it."""
    return _WORD.sub(lambda word: "…" if looks_secret(word[0]) else word[0], text)


def shorten(text: str) -> str:
    """A text in quotes, cut when it is long."""
    return repr(text if len(text) <= LONGEST else text[:LONGEST] + "…")


def shown(value: Any, path: Path) -> str:
    """A value that is wrong, for a message: never one that may be a secret."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value:.6g}" if isinstance(value, float) or abs(value) > 10**15 else str(value)
        case str():
            hidden = looks_secret(value) or any(_SECRET.search(str(step)) for step in path)
            return "text" if hidden else shorten(value)
        case list() | tuple():
            return "a list" if value else "an empty list"
        case dict():
            return "a mapping"
        case _:
            return f"a {type(value).__name__}"


def meant(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where one of the known words is near, else nothing."""
    near = get_close_matches(name.lower(), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def listed(names: Iterable[str]) -> str:
    """Words in a row: `a, b or c`."""
    *others, last = list(names)
    return f"{', '.join(others)} or {last}" if others else last
