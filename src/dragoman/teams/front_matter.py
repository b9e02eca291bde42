"""Front matter of Markdown files: the YAML between two lines of `---` at their beginning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from dragoman.errors import ConfigError

FENCE = "---"
MAX_FRONT_MATTER = 16_000  # characters


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
    try:
        fields = yaml.safe_load(head)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = 2 + (mark.line if mark is not None else 0)
        raise ConfigError(f"{source}:{line}: the front matter is not valid YAML") from None
    if not isinstance(fields, dict | None):
        raise ConfigError(f"{source}:2: the front matter must be fields, like `description: …`")
    return {str(name): value for name, value in (fields or {}).items()}, "\n".join(lines[end + 1 :]).strip()
