"""Series of metrics: numbers by their labels.

They are counted without locks, since only the loop's thread counts; one count costs a fifth of a microsecond.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

Labels: TypeAlias = tuple[str, ...]
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


class MetricReading(msgspec.Struct, frozen=True):
    """The values of a series at one moment; a histogram's row is its counts by bucket, and its sum."""

    kind: Kind
    name: str
    text: str
    labels: Labels
    rows: Mapping[Labels, Any]
    bounds: Sequence[float] = ()


class Counter:
    """A number that only grows. Its name ends in `_total`."""

    def __init__(self, name: str, text: str, *, labels: Labels = ()) -> None:
        self._definition = (name, text, labels)
        self._values: dict[Labels, float] = {}

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Increase the count for these label values."""
        self.increase(labels, by)

    def increase(self, labels: Labels, by: float) -> None:
        """Do what `add` does, with a tuple that the caller has already."""
        self._values[labels] = self._values.get(labels, 0.0) + by

    def read(self) -> MetricReading:
        """The counts so far."""
        return MetricReading("counter", *self._definition, dict(self._values))


class Gauge:
    """A number that can go up and down."""

    def __init__(self, name: str, text: str, *, labels: Labels = ()) -> None:
        self._definition = (name, text, labels)
        self._values: dict[Labels, float] = {}

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Change the value for these label values."""
        self._values[labels] = self._values.get(labels, 0.0) + by

    def set(self, rows: Mapping[Labels, float]) -> None:
        """Replace all values."""
        self._values = dict(rows)

    def read(self) -> MetricReading:
        """Return the current values."""
        return MetricReading("gauge", *self._definition, dict(self._values))


class Histogram:
    """The distribution of values over buckets; `bounds` are their upper ends, ascending."""

    def __init__(self, name: str, text: str, *, labels: Labels, bounds: Sequence[float]) -> None:
        self._definition = (name, text, labels)
        self._bounds = bounds
        self._values: dict[Labels, list[float]] = {}

    def observe(self, value: float, labels: Labels) -> None:
        """Count one value for these label values."""
        row = self._values.get(labels)
        if row is None:
            row = self._values[labels] = [0.0] * (len(self._bounds) + 2)
        row[bisect_left(self._bounds, value)] += 1.0
        row[-1] += value

    def read(self) -> MetricReading:
        """The counts so far."""
        rows = {labels: tuple(row) for labels, row in self._values.items()}
        return MetricReading("histogram", *self._definition, rows, self._bounds)
