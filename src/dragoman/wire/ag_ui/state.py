"""The state that an agent shares with its front end: `data-state` events as snapshots and deltas of AG-UI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET

_encoder = msgspec.json.Encoder(order="deterministic")


def state_events(before: Any, after: Any) -> Iterator[dict[str, Any]]:
    """Yield the event that brings a client from one state to the next; UNSET before the first.

    Of two objects, a delta with the fields that differ; otherwise a snapshot.
    """
    if before is UNSET or not isinstance(before, dict) or not isinstance(after, dict):
        yield {"type": "STATE_SNAPSHOT", "snapshot": after}
        return
    removed = [{"op": "remove", "path": _pointer(key)} for key in before if key not in after]
    changed = [
        {"op": "replace" if key in before else "add", "path": _pointer(key), "value": value}
        for key, value in after.items()
        if key not in before or not is_same(before[key], value)
    ]
    if removed or changed:
        yield {"type": "STATE_DELTA", "delta": [*removed, *changed]}


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON: for Python, `True` equals 1, and 1 equals 1.0."""
    return one == other and _encoder.encode(one) == _encoder.encode(other)


def _pointer(key: str) -> str:
    """Return the JSON Pointer (RFC 6901) of a field."""
    return "/" + key.replace("~", "~0").replace("/", "~1")
