"""Exposition: readings in the format that a Prometheus scraper accepts. Loaded by the first scrape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from typing_extensions import override

from dragoman.server.series import Reading


def expose(readings: Sequence[Reading], accept: str) -> tuple[bytes, str]:
    """The readings and what this process uses, with the content type. Reads /proc: not for the event loop."""
    registry = CollectorRegistry()
    registry.register(Held(readings))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class Held(Collector):
    """Readings as Prometheus' client collects them."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._readings = readings

    @override
    def collect(self) -> Iterator[Metric]:
        """A family for each reading."""
        return (family(reading) for reading in self._readings)


def family(reading: Reading) -> Metric:
    match reading.kind:
        case "counter":
            return counter(reading)
        case "gauge":
            return gauge(reading)
        case "histogram":
            return histogram(reading)


def counter(reading: Reading) -> Metric:
    made = CounterMetricFamily(reading.name, reading.text, labels=reading.labels)
    for labels, value in reading.rows.items():
        made.add_metric(labels, value)
    return made


def gauge(reading: Reading) -> Metric:
    made = GaugeMetricFamily(reading.name, reading.text, labels=reading.labels)
    for labels, value in reading.rows.items():
        made.add_metric(labels, value)
    return made


def histogram(reading: Reading) -> Metric:
    made = HistogramMetricFamily(reading.name, reading.text, labels=reading.labels)
    ends = [*(repr(bound) for bound in reading.bounds), "+Inf"]
    for labels, row in reading.rows.items():
        *counts, total = row
        made.add_metric(labels, list(zip(ends, accumulate(counts), strict=True)), total)
    return made
