"""Patterns of policy rules: which operations, agents and owners they match, and how specifically."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias

import msgspec

from dragoman.errors import ConfigError

PATTERN_SYNTAX = re.compile(r"[a-z0-9*?](?:[a-z0-9_*?./-]*[a-z0-9_*?/-])?")
# A slash in the namespace, or a name that begins with a punctuation mark.
NEVER_AN_ID = re.compile(r"[^.*?]*(?:/|\.[^a-z0-9*?])")
NAMESPACE_GLOB = re.compile(r"[^.]*\.\*|[^.*]+\*")  # `team_*.*`, `team_*`: matches whole namespaces
PATTERN_HINT = "write it like mail.send, mail.*, *.delete_*, mail or *"
KEY_PREFIX = "key:"
CACHE_SIZE = 1_024

Matcher: TypeAlias = Callable[[str], object]


class PatternKind(IntEnum):
    """How specifically a pattern names operations; a higher kind is always more specific."""

    EVERYTHING = 0  # `*`
    NAMESPACES = 1  # `team_*.*`, `team_*`
    NAMESPACE = 2  # `mail`, `mail.*`
    NAMES = 3  # `mail.send_*`, `*.delete_*`, `*secret*`
    EXACT = 4  # `mail.send`


class OperationPattern(msgspec.Struct, frozen=True):
    """A pattern of lower-case ids; `literals` counts the characters that are not wildcards."""

    text: str
    kind: PatternKind
    literals: int

    @property
    def namespace(self) -> str:
        """The part before the first dot."""
        return self.text.partition(".")[0]


def parse_pattern(text: str) -> OperationPattern:
    """Parse a rule's pattern of operations. Raises ConfigError if no id can match it."""
    pattern = re.sub(r"\*+", "*", text.strip().lower())
    if not PATTERN_SYNTAX.fullmatch(pattern) or NEVER_AN_ID.match(pattern):
        raise ConfigError(f"{text!r} is not a valid pattern of operations", hint=PATTERN_HINT)
    if "." not in pattern and not has_wildcards(pattern):
        pattern = f"{pattern}.*"
    if not pattern.strip("*?."):
        return OperationPattern(pattern, PatternKind.EVERYTHING, 0)
    return OperationPattern(
        pattern, pattern_kind(pattern), len(pattern) - pattern.count("*") - pattern.count("?")
    )


def pattern_kind(pattern: str) -> PatternKind:
    if not has_wildcards(pattern):
        return PatternKind.EXACT
    namespace, _, name = pattern.partition(".")
    if name == "*" and not has_wildcards(namespace):
        return PatternKind.NAMESPACE
    return PatternKind.NAMESPACES if NAMESPACE_GLOB.fullmatch(pattern) else PatternKind.NAMES


def has_wildcards(text: str) -> bool:
    """Return whether the text has wildcards."""
    return "*" in text or "?" in text


@lru_cache(CACHE_SIZE)
def compile_glob(glob: str) -> Matcher:
    """Return a matcher: `*` matches any characters, `?` one; case-sensitive.

    The text between two stars matches at its first occurrence only: with backtracking, a hostile id could
    make a pattern of five stars take hours.
    """
    first, *others = [re.escape(piece).replace(r"\?", ".") for piece in glob.split("*")]
    between = "".join(f"(?>.*?{piece})" for piece in others[:-1] if piece)
    last = f".*{others[-1]}" if others else ""
    return re.compile(f"{first}{between}{last}", re.DOTALL).fullmatch


def specificity(patterns: Sequence[str], value: str | None) -> int | None:
    """Return how specifically the patterns match the value: 2 by name, 1 by a glob, 0 by `*`.

    `*` also matches a missing value. 0 without patterns; None if none matches.
    """
    if not patterns:
        return 0
    return max(
        (score for pattern in patterns if (score := pattern_specificity(pattern, value)) is not None),
        default=None,
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
    """Like specificity(), for an owner or, with the prefix `key:`, a key: its id counts 3."""
    if not patterns:
        return 0
    owners = [pattern for pattern in patterns if not pattern.startswith(KEY_PREFIX)]
    keys = [pattern.removeprefix(KEY_PREFIX) for pattern in patterns if pattern.startswith(KEY_PREFIX)]
    scores = [specificity(owners, owner)] if owners else []
    if keys and key_id is not None:
        by_key = specificity(keys, key_id)
        scores.append(None if by_key is None else 3 if by_key == 2 else 1)
    return max((pattern for pattern in scores if pattern is not None), default=None)
