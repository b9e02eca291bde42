"""What a part says in words: as it is searched, and as it is told to whoever reads it again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import UNSET

from dragoman.messages import FINAL_STATES, FilePart, Part, TextPart, ToolPart

LONGEST_TEXT = 1_000_000  # characters of a text
LONGEST_INPUT = 8_000
LONGEST_OUTPUT = 32_000
MOST_VALUES = 10_000  # in what a call took, and in what it gave
BLOB = re.compile(r"[A-Za-z0-9+/=_-]{256,}")  # base64 and the like: nobody looks for it
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")
RECALLS = ("history.", "history_")
BATCH = "hub_call"


def spoken(part: Part) -> str:
    """The words of a part that is complete; none for one that has none, or is still growing.

    Calls that looked into the history say nothing: else they would find themselves.
    """
    match part:
        case TextPart() if part.state != "streaming":
            return clean(part.text, LONGEST_TEXT)
        case FilePart():
            return clean(part.filename or "", LONGEST_INPUT)
        case ToolPart() if part.state in FINAL_STATES and not part.name.startswith(RECALLS):
            return _called(part)
        case _:
            return ""


def clean(text: str, longest: int) -> str:
    """The text without control characters and without what is no words, at most so many characters of it."""
    return CONTROL.sub(" ", BLOB.sub("…", text[:longest])).encode(errors="replace").decode().strip()


def _called(part: ToolPart) -> str:
    taken, given = part.input, part.output
    if part.name == BATCH:
        taken, given = _without_recalls(taken, given)
        if taken == []:
            return ""
    told = (part.name, _words(taken, LONGEST_INPUT), _words(given, LONGEST_OUTPUT), part.error_text or "")
    return clean("\n".join(word for word in told if word), LONGEST_INPUT + LONGEST_OUTPUT)


def _without_recalls(taken: Any, given: Any) -> tuple[Any, Any]:
    """The calls of a batch, and what each gave, but for those that looked into the history."""
    calls = taken.get("calls") if isinstance(taken, Mapping) else None
    if not isinstance(calls, list):
        return taken, given
    kept = [at for at, call in enumerate(calls) if not _recalls(call)]
    if len(kept) == len(calls):
        return taken, given
    results = given if isinstance(given, list) and len(given) == len(calls) else [None] * len(calls)
    return [calls[at] for at in kept], [results[at] for at in kept]


def _recalls(call: Any) -> bool:
    return isinstance(call, Mapping) and str(call.get("tool", "")).startswith(RECALLS)


def _words(value: Any, longest: int) -> str:
    """The words in a JSON value. Its text would not do: there `\\n` and `\\u00fc` are letters."""
    if value is UNSET:
        return ""
    lines: list[str] = []
    for said in islice(_values(value), MOST_VALUES):
        longest -= len(said)
        lines.append(said if longest >= 0 else said[:longest])
        if longest <= 0:
            break
    return "\n".join(lines)


def _values(value: Any) -> Iterator[str]:
    """Texts and numbers in a JSON value, with the names that they go by."""
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        name, said = left.pop()
        if isinstance(said, Mapping):
            left += reversed([(str(key), each) for key, each in said.items()])
        elif isinstance(said, Sequence) and not isinstance(said, str | bytes):
            left += [(name, each) for each in reversed(said)]
        elif said is not None and not isinstance(said, bool):
            yield f"{name}: {said}" if name else str(said)
