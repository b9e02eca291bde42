"""Prometheus metrics of one hub, served at `/metrics`."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from dragoman.http.asgi_exchange import Exchange
from dragoman.server.metrics.series import Counter, Gauge, Histogram, Labels, MetricReading
from dragoman.usage_record import UsageRecord
from dragoman.version import version

MAX_MODELS = 500  # names of models that get series of their own
OTHER_MODEL = "other"
FINISHED = "finished"  # the status of a request that a model has answered to its end
MAX_LABEL_LENGTH = 120  # characters of a model's name
DURATION_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
TOKEN_KINDS = ("input", "output", "reasoning", "cache_read", "cache_write")
read_token_counts = attrgetter(
    "input_tokens", "output_tokens", "reasoning_tokens", "cached_input_tokens", "cache_write_tokens"
)


class MetricSources(msgspec.Struct, frozen=True, kw_only=True):
    """Sources that a scrape reads. Each is called in the event loop and must not block.

    `host` is the id of this process among the hosts that share a database.
    """

    host: str | None = None
    cooldowns: Callable[[], Mapping[str, int]] | None = None
    runs: Callable[[], int] | None = None
    spool: Callable[[], int] | None = None
    database: Callable[[], bool] | None = None


NO_SOURCES = MetricSources()


class Metrics:
    """The metrics of a hub. The models in `known` have series before their first answer."""

    def __init__(
        self, sources: MetricSources = NO_SOURCES, *, models: Collection[str] = (), limit: int = MAX_MODELS
    ) -> None:
        self.sources = sources
        self._model_labels = ModelLabels(models, limit)
        self._labels: dict[Labels, RequestLabels] = {}  # by the label values of `_requests`
        placed = ("provider", "model")
        self._requests = Counter(
            "dragoman_requests_total", "Model requests that have ended.", labels=("door", *placed, "status")
        )
        self._duration = Histogram(
            "dragoman_request_duration_seconds",
            "From a request to the end of its answer.",
            labels=("door", "provider"),
            bounds=DURATION_BUCKETS,
        )
        self._first_byte = Histogram(
            "dragoman_time_to_first_byte_seconds",
            "From a request to the first bytes of its answer.",
            labels=("door", "provider"),
            bounds=DURATION_BUCKETS,
        )
        self._tokens = Counter("dragoman_tokens_total", "Tokens, where known.", labels=(*placed, "kind"))
        self._cost = Counter("dragoman_cost_usd_total", "US dollars, where known.", labels=placed)
        self._open = Gauge("dragoman_requests_in_progress", "Requests in progress.", labels=("door",))
        self._errors = Counter(
            "dragoman_provider_errors_total",
            "Failed attempts at a provider, including those that were retried.",
            labels=("provider", "category"),
        )
        self._retries = Counter(
            "dragoman_provider_retries_total", "Retries at the same provider.", labels=("provider",)
        )
        self._fallbacks = Counter(
            "dragoman_fallbacks_total", "Requests passed on to another provider.", labels=("from", "to")
        )
        self._deleted_rows = Counter(
            "dragoman_retention_deleted_rows_total", "Rows that retention deleted.", labels=("table",)
        )
        self._stalled_tasks = Counter(
            "dragoman_stalled_tasks_total",
            "Notices of tasks that have waited for a long time.",
            labels=("level",),
        )
        self._build = Gauge("dragoman_build_info", "What runs here.", labels=("version", "python"))
        self._build.set({(version(), platform.python_version()): 1.0})

    def count_request(self, record: UsageRecord) -> None:
        """Count a model request that has ended."""
        request = (
            record.door or "run",
            record.provider or "",
            self._model_labels.label(record),
            record.status,
        )
        labels = self._labels.get(request)
        if labels is None:
            labels = self._labels[request] = RequestLabels.of(request)
        self._requests.increase(request, 1.0)
        if record.duration is not None:
            self._duration.observe(record.duration, labels.door)
        if record.first_byte is not None:
            self._first_byte.observe(record.first_byte, labels.door)
        for kind, count in zip(labels.tokens, read_token_counts(record.tokens), strict=True):
            if count:
                self._tokens.increase(kind, count)
        if record.cost:
            self._cost.increase(labels.model, record.cost)

    def request_started(self, door: str) -> None:
        """Count a request that has started at `door`; call `request_ended` when it ends."""
        self._open.add(door)

    def request_ended(self, door: str) -> None:
        """Count a request as ended."""
        self._open.add(door, by=-1.0)

    def attempt_failed(self, provider: str, category: str) -> None:
        """Count a failed attempt at a provider."""
        self._errors.add(provider, category)

    def attempt_retried(self, provider: str) -> None:
        """Count a further attempt at the same provider."""
        self._retries.add(provider)

    def provider_fell_back(self, source: str, target: str) -> None:
        """Count a request that falls back to the next provider."""
        self._fallbacks.add(source, target)

    def rows_deleted(self, table: str, count: int) -> None:
        """Count rows that retention deleted."""
        self._deleted_rows.add(table, by=count)

    def task_stalled(self, level: str) -> None:
        """Count a notice of a task that waits for long."""
        self._stalled_tasks.add(level)

    async def get(self, exchange: Exchange) -> None:
        """Respond with all metrics in the format that the scraper accepts."""
        accept = exchange.headers.get("accept", "")
        body, content_type = await asyncio.to_thread(_expose, self.read(), accept, host=self.sources.host)
        headers = {"content-type": content_type, "cache-control": "no-store"}
        await exchange.respond(200, body, headers=headers)

    def read(self) -> list[MetricReading]:
        """Return all readings."""
        counted = (
            self._requests,
            self._duration,
            self._first_byte,
            self._tokens,
            self._cost,
            self._open,
            self._errors,
            self._retries,
            self._fallbacks,
            self._deleted_rows,
            self._stalled_tasks,
            self._build,
        )
        return [*(series.read() for series in counted), *_readings(self.sources)]


class RequestLabels(NamedTuple):
    """The label values of the other series for a request, made once per combination of its own."""

    door: Labels
    model: Labels
    tokens: Sequence[Labels]

    @classmethod
    def of(cls, request: Labels) -> RequestLabels:
        """Return them for the label values of a request: door, provider, model, status."""
        door, provider, model, _ = request
        return cls((door, provider), (provider, model), [(provider, model, kind) for kind in TOKEN_KINDS])


class ModelLabels:
    """The model names used as labels: a bounded number, and no name that only a client made up.

    The label is the name of the model that served the request. A failed request counts for the model that
    last served the requested name, else for the requested name if the configuration has it, else for
    "other".
    """

    def __init__(self, configured: Collection[str], limit: int) -> None:
        self._configured = frozenset(configured)
        self._limit = limit
        self._names: set[str] = set()
        self._served: dict[tuple[str | None, str | None], str] = {}

    def label(self, record: UsageRecord) -> str:
        """Return the label of the record's model."""
        wish, served = (record.provider, record.model_asked), record.model_served
        if record.status != FINISHED or not served:
            return self._served.get(wish) or self._unserved_label(record.model_asked)
        if self._served.get(wish) == served:
            return served
        label = self._bounded_label(served)
        if self._served.get(wish) != label and len(self._served) < 4 * self._limit:
            self._served[wish] = label
        return label

    def _unserved_label(self, requested: str | None) -> str:
        if not requested:
            return ""
        return self._bounded_label(requested) if requested in self._configured else OTHER_MODEL

    def _bounded_label(self, name: str) -> str:
        label = name[:MAX_LABEL_LENGTH]
        if label not in self._names:
            if len(self._names) >= self._limit:
                return OTHER_MODEL
            self._names.add(label)
        return label


def _readings(sources: MetricSources) -> list[MetricReading]:
    made: list[MetricReading] = []
    if sources.cooldowns is not None:
        resting = Gauge(
            "dragoman_cooldowns", "Keys of a provider that are cooling down.", labels=("provider",)
        )
        resting.set({(provider,): float(count) for provider, count in sources.cooldowns().items()})
        made.append(resting.read())
    single = (
        ("dragoman_runs_active", "Runs under way.", sources.runs),
        ("dragoman_spool_rows", "Usage rows on disk that wait for the database.", sources.spool),
        ("dragoman_database_up", "1 while the database answers.", sources.database),
    )
    for name, text, ask in single:
        if ask is not None:
            gauge = Gauge(name, text)
            gauge.set({(): float(ask())})
            made.append(gauge.read())
    return made


def _expose(readings: list[MetricReading], accept: str, *, host: str | None) -> tuple[bytes, str]:
    # late: Prometheus' client costs every start 0.1 s and 5 MB, and only a scrape needs it
    from dragoman.server.metrics.exposition import expose  # late: as above

    return expose(readings, accept, host=host)
