"""The exposition of metrics: readings in the format that a Prometheus scraper accepts.

Imported at the first scrape: the Prometheus client imports an HTTP server, and takes 5 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from typing_extensions import override

from dragoman.server.metrics.series import MetricReading


def expose(readings: Sequence[MetricReading], accept: str, *, host: str | None = None) -> tuple[bytes, str]:
    """Return readings and process metrics, with the content type. Reads /proc: not for the event loop.

    `host` becomes a label of each sample: behind a load balancer, each scrape may reach another host.
    """
    registry = CollectorRegistry()
    for each in (ReadingCollector(readings), ProcessCollector(registry=None)):
        registry.register(each if host is None else LabelledCollector(each, host=host))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class LabelledCollector(Collector):
    """The metrics of another collector, each sample with the label `host`."""

    def __init__(self, collector: Collector, *, host: str) -> None:
        self._collector = collector
        self._host = host

    @override
    def collect(self) -> Iterator[Metric]:
        """Yield the metric families of the other collector."""
        for family in self._collector.collect():
            family.samples = [
                each._replace(labels={"host": self._host, **each.labels}) for each in family.samples
            ]
            yield family


class ReadingCollector(Collector):
    """Readings as the Prometheus client collects them."""

    def __init__(self, readings: Sequence[MetricReading]) -> None:
        self._readings = readings

    @override
    def collect(self) -> Iterator[Metric]:
        """Yield a metric family for each reading."""
        return (metric_family(reading) for reading in self._readings)


def metric_family(reading: MetricReading) -> Metric:
    match reading.kind:
        case "counter":
            return counter_family(reading)
        case "gauge":
            return gauge_family(reading)
        case "histogram":
            return histogram_family(reading)


def counter_family(reading: MetricReading) -> Metric:
    made = CounterMetricFamily(reading.name, reading.text, labels=reading.labels)
    for labels, value in reading.rows.items():
        made.add_metric(labels, value)
    return made


def gauge_family(reading: MetricReading) -> Metric:
    made = GaugeMetricFamily(reading.name, reading.text, labels=reading.labels)
    for labels, value in reading.rows.items():
        made.add_metric(labels, value)
    return made


def histogram_family(reading: MetricReading) -> Metric:
    made = HistogramMetricFamily(reading.name, reading.text, labels=reading.labels)
    ends = [*(repr(bound) for bound in reading.bounds), "+Inf"]
    for labels, row in reading.rows.items():
        *counts, total = row
        made.add_metric(labels, list(zip(ends, accumulate(counts), strict=True)), total)
    return made
