"""Problems of a configuration with their paths, described without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec

from dragoman.errors import ConfigError, Conflict

FieldPath: TypeAlias = tuple[str | int, ...]

_PLAIN = re.compile(r"[\w/*:@-]+")
_SECRET_FIELD = re.compile(r"key|token|secret|password|auth|cookie|headers", re.IGNORECASE)
_KEY_LIKE = re.compile(r"(?=.*[a-z])(?=.*\d)[\w.~+/=-]{24,}")
_LONG_WORD = re.compile(r"[\w.~+/=-]{24,}")
MAX_TEXT = 60  # characters of a quoted text
MAX_INTEGER = 10**300  # larger numbers cannot be formatted as a float


class ConfigProblem(msgspec.Struct, frozen=True):
    """A problem at the path of a field."""

    path: FieldPath
    message: str


def format_path(path: FieldPath) -> str:
    """Format a path: `providers.up.keys[0].api_key_env`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{_format_step(step)}"
    return text.removeprefix(".")


def _format_step(name: str) -> str:
    if looks_secret(name) and "/" not in name:
        return "…"
    return name if _PLAIN.fullmatch(name) else quote(name)


@contextmanager
def blame_field(path: str) -> Iterator[None]:
    """Raise a ConfigError or Conflict of the block as a ConfigError whose message begins with `path`."""
    try:
        yield
    except (ConfigError, Conflict) as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from None


def looks_secret(text: str) -> bool:
    """Whether a text looks like a pasted key rather than a name."""
    return _KEY_LIKE.fullmatch(text) is not None


def mask_secrets(text: str) -> str:
    """Replace each word that looks like a key by an ellipsis."""
    return _LONG_WORD.sub(lambda word: "…" if looks_secret(word[0]) else word[0], text)


def quote(text: str) -> str:
    """Return a text in quotes, shortened if it is long."""
    return repr(text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…")


def describe_value(value: Any, path: FieldPath) -> str:
    """Describe an invalid value for a message, without anything that may be a secret."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() if abs(value) > MAX_INTEGER:
            return "a very long number"
        case int() | float():
            return f"{value:.6g}" if isinstance(value, float) or abs(value) > 10**15 else str(value)
        case str():
            hidden = looks_secret(value) or any(_SECRET_FIELD.search(str(step)) for step in path)
            return "text" if hidden else quote(value)
        case list() | tuple():
            return "a list" if value else "an empty list"
        case dict():
            return "a mapping"
        case _:
            return f"a {type(value).__name__}"


def join_names(names: Iterable[str]) -> str:
    """Join names: `a, b or c`."""
    *others, last = list(names)
    return f"{', '.join(others)} or {last}" if others else last
