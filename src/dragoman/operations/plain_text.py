"""What a part says in words: as it is searched, and as it is told to whoever reads it again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import UNSET

from dragoman.messages import FINAL_STATES, FilePart, Part, TextPart, ToolPart

MAX_TEXT_LENGTH = 1_000_000  # characters of a text
MAX_INPUT_LENGTH = 8_000
MAX_OUTPUT_LENGTH = 32_000
MAX_VALUES = 10_000  # in what a call took, and in what it gave
BLOB = re.compile(r"[A-Za-z0-9+/=_-]{256,}")  # base64 and the like: nobody looks for it
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")
HISTORY_PREFIXES = ("history.", "history_")
BATCH_TOOL = "hub_call"


def part_text(part: Part) -> str:
    """The words of a part that is complete; none for one that has none, or is still growing.

    Calls that looked into the history say nothing: else they would find themselves.
    """
    match part:
        case TextPart() if part.state != "streaming":
            return clean_text(part.text, MAX_TEXT_LENGTH)
        case FilePart():
            return clean_text(part.filename or "", MAX_INPUT_LENGTH)
        case ToolPart() if part.state in FINAL_STATES and not part.name.startswith(HISTORY_PREFIXES):
            return _tool_call_text(part)
        case _:
            return ""


def clean_text(text: str, max_length: int) -> str:
    """The text without control characters and without what is no words, at most so many characters of it."""
    return CONTROL.sub(" ", BLOB.sub("…", text[:max_length])).encode(errors="replace").decode().strip()


def _tool_call_text(part: ToolPart) -> str:
    taken, given = part.input, part.output
    if part.name == BATCH_TOOL:
        taken, given = _without_history_calls(taken, given)
        if taken == []:
            return ""
    told = (
        part.name,
        _value_text(taken, MAX_INPUT_LENGTH),
        _value_text(given, MAX_OUTPUT_LENGTH),
        part.error_text or "",
    )
    return clean_text("\n".join(word for word in told if word), MAX_INPUT_LENGTH + MAX_OUTPUT_LENGTH)


def _without_history_calls(input: Any, output: Any) -> tuple[Any, Any]:
    """The calls of a batch, and what each gave, but for those that looked into the history."""
    calls = input.get("calls") if isinstance(input, Mapping) else None
    if not isinstance(calls, list):
        return input, output
    kept = [at for at, call in enumerate(calls) if not _is_history_call(call)]
    if len(kept) == len(calls):
        return input, output
    results = output if isinstance(output, list) and len(output) == len(calls) else [None] * len(calls)
    return [calls[at] for at in kept], [results[at] for at in kept]


def _is_history_call(call: Any) -> bool:
    return isinstance(call, Mapping) and str(call.get("tool", "")).startswith(HISTORY_PREFIXES)


def _value_text(value: Any, max_length: int) -> str:
    """The words in a JSON value. Its text would not do: there `\\n` and `\\u00fc` are letters."""
    if value is UNSET:
        return ""
    lines: list[str] = []
    for said in islice(_leaf_texts(value), MAX_VALUES):
        max_length -= len(said)
        lines.append(said if max_length >= 0 else said[:max_length])
        if max_length <= 0:
            break
    return "\n".join(lines)


def _leaf_texts(value: Any) -> Iterator[str]:
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
