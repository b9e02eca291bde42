"""The operations behind a tool call: what cards and prompts show instead of `hub_call`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.agent.context.truncation_markers import METADATA_KEY
from dragoman.errors import InvalidInput
from dragoman.messages import ProviderMetadata, ToolPart
from dragoman.operations.batch import BatchEntry, parse_batch
from dragoman.operations.meta_tools import meta_tool_id
from dragoman.operations.operation import Effect

MAX_TITLE = 160  # characters of a title
MAX_INPUT_BYTES = 4_000  # bytes of arguments in the metadata of one tool call; the part's input has them too


class InnerCall(msgspec.Struct, frozen=True):
    """One operation that a tool call runs; `effect` is None for an operation that is not there."""

    operation: str
    input: Mapping[str, Any]
    effect: Effect | None = None


def batch_entries(name: str, input: Any) -> Sequence[BatchEntry]:
    """Return the calls in the input of `hub_call`; none for any other tool, or invalid input."""
    if meta_tool_id(name) != "hub.call" or not isinstance(input, Mapping):
        return ()
    try:
        return parse_batch(input)
    except InvalidInput:
        return ()


def call_title(names: Sequence[str]) -> str | None:
    """Return the operations of a call as its title: `math.add, mail.send ×2`; None without any."""
    counted = [f"{name} ×{count}" if count > 1 else name for name, count in Counter(names).items()]
    title = ", ".join(counted)
    while len(title) > MAX_TITLE and len(counted) > 1:
        counted.pop()
        title = f"{', '.join(counted)} and {len(set(names)) - len(counted)} more"
    return title or None


def part_title(part: ToolPart) -> str:
    """Return the title of a part: what it runs, or the name of its tool."""
    names = [entry.tool for entry in batch_entries(part.name, part.input)]
    return part.title or call_title(names) or part.name


def calls_metadata(calls: Sequence[InnerCall]) -> ProviderMetadata:
    """Return the calls as metadata of their part, with their arguments as far as there is room."""
    shown, room = [], MAX_INPUT_BYTES
    for call in calls:
        entry: dict[str, Any] = {"operation": call.operation}
        if call.effect is not None:
            entry["effect"] = call.effect
        room -= len(msgspec.json.encode(call.input))
        if room >= 0:
            entry["input"] = call.input
        shown.append(entry)
    return {METADATA_KEY: {"calls": shown}}
