"""Patterns of `allowed_tools`: which operations they match."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dragoman.errors import ConfigError
from dragoman.operations.permission.patterns import (
    OperationPattern,
    PatternKind,
    compile_glob,
    parse_pattern,
)
from dragoman.teams.openhive_tool_names import NAMES
from dragoman.teams.spec import TeamFile


def is_allowed(patterns: Iterable[str], id: str) -> bool:
    """Return whether one of the patterns matches an operation."""
    return any(matches(pattern, id.lower()) for pattern in parse_patterns(patterns))


def matches(pattern: OperationPattern, id: str) -> bool:
    """Return whether a pattern matches a lower-case id."""
    return pattern.kind is PatternKind.EVERYTHING or compile_glob(pattern.text)(id) is not None


def parse_patterns(patterns: Iterable[str]) -> Sequence[OperationPattern]:
    """Return parsed patterns; OpenHive's name of a tool stands for the operation.

    Raises ConfigError for one that no id can match.
    """
    return [parse_pattern(NAMES.get(pattern, pattern)) for pattern in patterns]


def exact_ids(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the ids that patterns name in full, sorted: a team's model is shown these as its tools."""
    found = {each.text for each in parse_patterns(patterns) if each.kind is PatternKind.EXACT}
    return tuple(sorted(found))


def check_patterns(file: TeamFile, path: Path) -> None:
    """Raise ConfigError for a pattern of `allowed_tools` or `needs_skill` that no id can match."""
    fields = {"allowed_tools": file.allowed_tools, "needs_skill": file.needs_skill}
    for field, number, pattern in (
        (field, number, pattern) for field, all in fields.items() for number, pattern in enumerate(all)
    ):
        try:
            parse_pattern(pattern)
        except ConfigError as error:
            raise ConfigError(f"{path}: {field}[{number}]: {error.message}", hint=error.hint) from None
