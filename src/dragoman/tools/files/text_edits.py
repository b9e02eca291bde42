"""Edits of a text: exact replacements, and what they changed as a diff."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import msgspec

from dragoman.errors import BadRequest

MAX_DIFF = 20_000  # characters of a difference that are shown
MAX_COMPARED_LINES = 20_000  # difflib takes seconds for more


class TextEdit(msgspec.Struct, frozen=True):
    """Replace `old` by `new`. `old` occurs once, unless the edit is for `everywhere`."""

    old: str
    new: str
    everywhere: bool = False


def apply_edits(text: str, edits: Sequence[TextEdit], *, path: str) -> str:
    """Return the text after all edits, one after the other. Raises BadRequest if one cannot be made."""
    for number, edit in enumerate(edits):
        count = text.count(edit.old)
        field = f"edits[{number}].old"
        if not edit.old or edit.old == edit.new:
            raise BadRequest(f"{field} is empty, or the same as `new`.", field=field)
        if count == 0:
            raise BadRequest(
                f"{path!r} does not contain {edit.old[:200]!r}.",
                field=field,
                hint="Copy it from files.read with its spaces and line ends; no edit was made.",
            )
        if count > 1 and not edit.everywhere:
            raise BadRequest(
                f"{path!r} contains {edit.old[:200]!r} {count} times.",
                field=field,
                hint="Add lines around it until it is unique, or set `everywhere`; no edit was made.",
            )
        text = text.replace(edit.old, edit.new)
    return text


def unified_diff(old: str, new: str, *, path: str, limit: int | None = MAX_DIFF) -> str:
    """Return the difference of two texts in unified format, cut after `limit` characters."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    before, after, offset = strip_common_ends(before, after)
    if len(before) + len(after) > MAX_COMPARED_LINES:
        return f"--- {path}\n+++ {path}\n@@ {len(before)} lines became {len(after)} @@\n"
    lines = difflib.unified_diff(before, after, fromfile=path, tofile=path, n=3)
    shown = "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
    note = f"(line numbers start after line {offset})\n" if offset and shown else ""
    whole = note + shown
    is_whole = limit is None or len(whole) <= limit
    return whole if is_whole else whole[:limit] + "\n(the rest is not shown)\n"


def strip_common_ends(old: list[str], new: list[str]) -> tuple[list[str], list[str], int]:
    """Return both lists without their common first and last lines, except three of context at each end.

    The number is how many lines were removed at the start.
    """
    shorter = min(len(old), len(new))
    start = next((index for index in range(shorter) if old[index] != new[index]), shorter)
    stop = next(
        (index for index in range(shorter - start) if old[-1 - index] != new[-1 - index]), shorter - start
    )
    start, stop = max(0, start - 3), max(0, stop - 3)
    return old[start : len(old) - stop], new[start : len(new) - stop], start
