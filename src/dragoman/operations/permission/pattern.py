"""Patterns: which operations, agents and owners a rule means, and how closely it names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias

import msgspec

from dragoman.errors import ConfigError

USABLE = re.compile(r"[a-z0-9_*?-](?:[a-z0-9_*?./-]*[a-z0-9_*?/-])?")
SPACES = re.compile(r"[^.]*\.\*|[^.*]+\*")  # `team_*.*`, `team_*`: says nothing of names
HINT = "one reads like mail.send, mail.*, *.delete_*, mail or *"
KEY = "key:"
KEPT = 1_024

Matching: TypeAlias = Callable[[str], object]


class Kind(IntEnum):
    """How closely a pattern names operations: a higher kind is closer than any pattern of a lower one."""

    EVERYTHING = 0  # `*`
    NAMESPACES = 1  # `team_*.*`, `team_*`
    NAMESPACE = 2  # `mail`, `mail.*`
    NAMES = 3  # `mail.send_*`, `*.delete_*`, `*secret*`
    EXACT = 4  # `mail.send`


class Pattern(msgspec.Struct, frozen=True):
    """A pattern of ids in small letters; `literals` are its characters that are no wildcards."""

    text: str
    kind: Kind
    literals: int

    @property
    def namespace(self) -> str:
        """What stands before the first dot."""
        return self.text.partition(".")[0]


def read_pattern(text: str) -> Pattern:
    """The pattern of operations in a rule. ConfigError when no id could fit it."""
    said = re.sub(r"\*+", "*", text.strip().lower())
    if not USABLE.fullmatch(said):
        raise ConfigError(f"{text!r} is no pattern of operations", hint=HINT)
    if "." not in said and not is_wild(said):
        said = f"{said}.*"
    if not said.strip("*?."):
        return Pattern(said, Kind.EVERYTHING, 0)
    return Pattern(said, kind_of(said), len(said) - said.count("*") - said.count("?"))


def kind_of(said: str) -> Kind:
    if not is_wild(said):
        return Kind.EXACT
    space, _, name = said.partition(".")
    if name == "*" and not is_wild(space):
        return Kind.NAMESPACE
    return Kind.NAMESPACES if SPACES.fullmatch(said) else Kind.NAMES


def is_wild(text: str) -> bool:
    """Whether there are wildcards in it."""
    return "*" in text or "?" in text


@lru_cache(KEPT)
def matching(glob: str) -> Matching:
    """Whether a text fits: `*` stands for any characters, `?` for one; letter case counts."""
    pieces = {"*": ".*", "?": "."}
    return re.compile("".join(pieces.get(each) or re.escape(each) for each in glob), re.DOTALL).fullmatch


def closeness(patterns: Sequence[str], value: str | None) -> int | None:
    """How closely one of the patterns names the value: 2 by its name, 1 by a glob, 0 by `*`, which anything
    fits, also what has no value. None when none does; 0 without any.
    """
    if not patterns:
        return 0
    return max((found for each in patterns if (found := near(each, value)) is not None), default=None)


def near(pattern: str, value: str | None) -> int | None:
    if pattern == "*":
        return 0
    if value is None:
        return None
    if pattern == value:
        return 2
    return 1 if is_wild(pattern) and matching(pattern)(value) else None


def identity_closeness(patterns: Sequence[str], owner: str, *, key_id: str | None) -> int | None:
    """As `closeness`, for an owner or, in patterns that begin with `key:`, a key: its id counts 3."""
    if not patterns:
        return 0
    owners = [each for each in patterns if not each.startswith(KEY)]
    keys = [each.removeprefix(KEY) for each in patterns if each.startswith(KEY)]
    found = [closeness(owners, owner)] if owners else []
    if keys and key_id is not None:
        by_key = closeness(keys, key_id)
        found.append(None if by_key is None else 3 if by_key == 2 else 1)
    return max((each for each in found if each is not None), default=None)
