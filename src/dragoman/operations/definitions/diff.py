"""The diff of an operation's definition and the approved one, for the person who approves it again."""

from __future__ import annotations

import difflib
import json
from typing import Any

DIFF_LIMIT = 20_000  # characters


def definition_diff(old: Any, new: Any) -> str:
    """Return a unified diff of two definitions."""
    before = [] if old is None else json_lines(old)
    text = "\n".join(difflib.unified_diff(before, json_lines(new), "approved", "offered", lineterm=""))
    return text if len(text) <= DIFF_LIMIT else text[:DIFF_LIMIT] + "\n… (cut)"


def json_lines(value: Any) -> list[str]:
    """Return the lines of the value as indented JSON; line breaks in strings are line breaks here, too."""
    return json.dumps(value, indent=2, sort_keys=True).replace("\\n", "\\n\n    ").splitlines()
