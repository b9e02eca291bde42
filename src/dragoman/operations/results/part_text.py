"""Message parts as plain text, for the search index and for reading messages again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import UNSET

from dragoman.messages import FINAL_STATES, FilePart, Part, TextPart, ToolPart

MAX_TEXT_LENGTH = 1_000_000  # characters of a text part
MAX_INPUT_LENGTH = 8_000
MAX_OUTPUT_LENGTH = 32_000
MAX_VALUES = 10_000  # in a call's input, and in its output
BLOB = re.compile(r"[A-Za-z0-9+/=_-]{256,}")  # base64 and similar data, which is not indexed
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")
HISTORY_PREFIXES = ("history.", "history_")
BATCH_TOOL = "hub_call"


def part_text(part: Part) -> str:
    """Return the text of a complete part; empty if it has none or is still streaming.

    Calls that searched the history are left out: they would find themselves.
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
    """Return at most `max_length` characters of the text, without control characters and blobs."""
    return CONTROL.sub(" ", BLOB.sub("…", text[:max_length])).encode(errors="replace").decode().strip()


def _tool_call_text(part: ToolPart) -> str:
    input, output = part.input, part.output
    if part.name == BATCH_TOOL:
        input, output = _without_history_calls(input, output)
        if input == []:
            return ""
    texts = (
        part.name,
        _value_text(input, MAX_INPUT_LENGTH),
        _value_text(output, MAX_OUTPUT_LENGTH),
        part.error_text or "",
    )
    return clean_text("\n".join(text for text in texts if text), MAX_INPUT_LENGTH + MAX_OUTPUT_LENGTH)


def _without_history_calls(input: Any, output: Any) -> tuple[Any, Any]:
    """Return a batch's calls and their results, except those that searched the history."""
    calls = input.get("calls") if isinstance(input, Mapping) else None
    if not isinstance(calls, list):
        return input, output
    indexes = [index for index, call in enumerate(calls) if not _is_history_call(call)]
    if len(indexes) == len(calls):
        return input, output
    results = output if isinstance(output, list) and len(output) == len(calls) else [None] * len(calls)
    return [calls[index] for index in indexes], [results[index] for index in indexes]


def _is_history_call(call: Any) -> bool:
    return isinstance(call, Mapping) and str(call.get("tool", "")).startswith(HISTORY_PREFIXES)


def _value_text(value: Any, max_length: int) -> str:
    r"""Return the texts in a JSON value. In its encoded form, `\n` and `\u00fc` would be read as letters."""
    if value is UNSET:
        return ""
    lines: list[str] = []
    for text in islice(_leaf_texts(value), MAX_VALUES):
        max_length -= len(text)
        lines.append(text if max_length >= 0 else text[:max_length])
        if max_length <= 0:
            break
    return "\n".join(lines)


def _leaf_texts(value: Any) -> Iterator[str]:
    """Return the texts and numbers in a JSON value, with their names."""
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        name, item = pending.pop()
        if isinstance(item, Mapping):
            pending += reversed([(str(key), child) for key, child in item.items()])
        elif isinstance(item, Sequence) and not isinstance(item, str | bytes):
            pending += [(name, child) for child in reversed(item)]
        elif item is not None and not isinstance(item, bool):
            yield f"{name}: {item}" if name else str(item)
