"""Patterns: which operations, agents and owners a rule means, and how closely it names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias

import msgspec

from dragoman.errors import ConfigError

PATTERN_SYNTAX = re.compile(r"[a-z0-9_*?-](?:[a-z0-9_*?./-]*[a-z0-9_*?/-])?")
NAMESPACE_GLOB = re.compile(r"[^.]*\.\*|[^.*]+\*")  # `team_*.*`, `team_*`: says nothing of names
PATTERN_HINT = "one reads like mail.send, mail.*, *.delete_*, mail or *"
KEY_PREFIX = "key:"
CACHE_SIZE = 1_024

Matcher: TypeAlias = Callable[[str], object]


class PatternKind(IntEnum):
    """How closely a pattern names operations: a higher kind is closer than any pattern of a lower one."""

    EVERYTHING = 0  # `*`
    NAMESPACES = 1  # `team_*.*`, `team_*`
    NAMESPACE = 2  # `mail`, `mail.*`
    NAMES = 3  # `mail.send_*`, `*.delete_*`, `*secret*`
    EXACT = 4  # `mail.send`


class OperationPattern(msgspec.Struct, frozen=True):
    """A pattern of ids in small letters; `literals` are its characters that are no wildcards."""

    text: str
    kind: PatternKind
    literals: int

    @property
    def namespace(self) -> str:
        """What stands before the first dot."""
        return self.text.partition(".")[0]


def parse_pattern(text: str) -> OperationPattern:
    """The pattern of operations in a rule. ConfigError when no id could fit it."""
    said = re.sub(r"\*+", "*", text.strip().lower())
    if not PATTERN_SYNTAX.fullmatch(said):
        raise ConfigError(f"{text!r} is no pattern of operations", hint=PATTERN_HINT)
    if "." not in said and not has_wildcards(said):
        said = f"{said}.*"
    if not said.strip("*?."):
        return OperationPattern(said, PatternKind.EVERYTHING, 0)
    return OperationPattern(said, pattern_kind(said), len(said) - said.count("*") - said.count("?"))


def pattern_kind(pattern: str) -> PatternKind:
    if not has_wildcards(pattern):
        return PatternKind.EXACT
    space, _, name = pattern.partition(".")
    if name == "*" and not has_wildcards(space):
        return PatternKind.NAMESPACE
    return PatternKind.NAMESPACES if NAMESPACE_GLOB.fullmatch(pattern) else PatternKind.NAMES


def has_wildcards(text: str) -> bool:
    """Whether there are wildcards in it."""
    return "*" in text or "?" in text


@lru_cache(CACHE_SIZE)
def compile_glob(glob: str) -> Matcher:
    """Whether a text fits: `*` stands for any characters, `?` for one; letter case counts."""
    pieces = {"*": ".*", "?": "."}
    return re.compile("".join(pieces.get(each) or re.escape(each) for each in glob), re.DOTALL).fullmatch


def specificity(patterns: Sequence[str], value: str | None) -> int | None:
    """How closely one of the patterns names the value: 2 by its name, 1 by a glob, 0 by `*`, which anything
    fits, also what has no value. None when none does; 0 without any.
    """
    if not patterns:
        return 0
    return max(
        (found for each in patterns if (found := pattern_specificity(each, value)) is not None), default=None
    )


def pattern_specificity(pattern: str, value: str | None) -> int | None:
    if pattern == "*":
        return 0
    if value is None:
        return None
    if pattern == value:
        return 2
    return 1 if has_wildcards(pattern) and compile_glob(pattern)(value) else None


def identity_specificity(patterns: Sequence[str], owner: str, *, key_id: str | None) -> int | None:
    """As `specificity`, for an owner or, in patterns that begin with `key:`, a key: its id counts 3."""
    if not patterns:
        return 0
    owners = [each for each in patterns if not each.startswith(KEY_PREFIX)]
    keys = [each.removeprefix(KEY_PREFIX) for each in patterns if each.startswith(KEY_PREFIX)]
    found = [specificity(owners, owner)] if owners else []
    if keys and key_id is not None:
        by_key = specificity(keys, key_id)
        found.append(None if by_key is None else 3 if by_key == 2 else 1)
    return max((each for each in found if each is not None), default=None)
