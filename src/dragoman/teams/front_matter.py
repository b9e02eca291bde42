"""Front matter of Markdown files: the YAML between two lines of `---` at their beginning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from dragoman.errors import ConfigError

FENCE = "---"
MAX_FRONT_MATTER = 16_000  # characters
MAX_VALUES = 200_000  # of one document


def parse_front_matter(text: str, *, source: str) -> tuple[Mapping[str, Any], str]:
    """Return the fields and the rest of a text; no fields for a text without front matter. ConfigError."""
    first, _, rest = text.partition("\n")
    if first.rstrip() != FENCE:
        return {}, text.strip()
    lines = rest.splitlines()
    end = next((number for number, line in enumerate(lines) if line.rstrip() == FENCE), None)
    if end is None:
        raise ConfigError(f"{source}:1: the front matter that begins here has no end; write a line `---`")
    head = "\n".join(lines[:end])
    if len(head) > MAX_FRONT_MATTER:
        raise ConfigError(f"{source}: the front matter is longer than {MAX_FRONT_MATTER} characters")
    fields = parse_yaml(head, source=source, first_line=2)
    if not isinstance(fields, dict | None):
        raise ConfigError(f"{source}:2: the front matter must be fields, like `description: …`")
    return {str(name): value for name, value in (fields or {}).items()}, "\n".join(lines[end + 1 :]).strip()


def parse_yaml(text: str, *, source: str, first_line: int = 1) -> Any:
    """Return the value of a YAML text that begins at a line of its file. Raises ConfigError."""
    try:
        value = yaml.safe_load(text)
        is_small = count_values(value, {}) <= MAX_VALUES
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = first_line + (mark.line if mark is not None else 0)
        what = "the file is" if first_line == 1 else "the front matter is"
        raise ConfigError(f"{source}:{line}: {what} not valid YAML") from None
    if not is_small:
        raise ConfigError(f"{source}: aliases make more than {MAX_VALUES} values of it")
    return value


def count_values(value: Any, counts: dict[int, int]) -> int:
    """Return how many values a value has, written out: aliases of aliases can stand for billions.

    `counts` are those that were counted before. Raises RecursionError for a value that contains itself.
    """
    if not isinstance(value, dict | list | set | tuple):
        return 1
    if id(value) not in counts:
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        counts[id(value)] = 1 + sum(count_values(each, counts) for each in parts)
    return counts[id(value)]
