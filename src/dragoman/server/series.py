"""Series: numbers by their labels, counted in the event loop and written for Prometheus.

They are counted without locks, since only the loop's thread counts; one count costs a fifth of a microsecond.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

Labels: TypeAlias = tuple[str, ...]
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


class Reading(msgspec.Struct, frozen=True):
    """What a series holds at one moment; a histogram's row is its counts by bucket, and its sum."""

    kind: Kind
    name: str
    text: str
    labels: Labels
    rows: Mapping[Labels, Any]
    bounds: Sequence[float] = ()


class Counter:
    """What only grows. Its name ends in `_total`."""

    def __init__(self, name: str, text: str, *, labels: Labels = ()) -> None:
        self._said = (name, text, labels)
        self._held: dict[Labels, float] = {}

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Count for these values of its labels."""
        self._held[labels] = self._held.get(labels, 0.0) + by

    def read(self) -> Reading:
        """The counts so far."""
        return Reading("counter", *self._said, dict(self._held))


class Gauge:
    """What goes up and down."""

    def __init__(self, name: str, text: str, *, labels: Labels = ()) -> None:
        self._said = (name, text, labels)
        self._held: dict[Labels, float] = {}

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Move it for these values of its labels."""
        self._held[labels] = self._held.get(labels, 0.0) + by

    def set(self, rows: Mapping[Labels, float]) -> None:
        """What it is now, in place of all that it was."""
        self._held = dict(rows)

    def read(self) -> Reading:
        """The values now."""
        return Reading("gauge", *self._said, dict(self._held))


class Histogram:
    """How values are spread over buckets; `bounds` are their upper ends, growing."""

    def __init__(self, name: str, text: str, *, labels: Labels, bounds: Sequence[float]) -> None:
        self._said = (name, text, labels)
        self._bounds = bounds
        self._held: dict[Labels, list[float]] = {}

    def observe(self, value: float, *labels: str) -> None:
        """One value, for these values of its labels."""
        row = self._held.get(labels)
        if row is None:
            row = self._held[labels] = [0.0] * (len(self._bounds) + 2)
        row[bisect_left(self._bounds, value)] += 1.0
        row[-1] += value

    def read(self) -> Reading:
        """The counts so far."""
        rows = {labels: tuple(row) for labels, row in self._held.items()}
        return Reading("histogram", *self._said, rows, self._bounds)
