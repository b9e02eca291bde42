"""Telemetry: tracing as it is configured: off, or sent to a collector by OTLP."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module

from dragoman.errors import ConfigError
from dragoman.providers.tracing import OFF, Telemetry, Tracing

TRACES = "/v1/traces"


def open_tracing(settings: Telemetry, *, secrets: Collection[str] = ()) -> Tracing:
    """The tracing that is configured; close() it. ConfigError where its packages are not installed."""
    if settings.endpoint is None:
        return OFF
    try:
        exporters = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        processors = import_module("opentelemetry.sdk.trace.export")
        # late: OpenTelemetry is an extra, and its API alone costs every start 50 ms
        from dragoman.providers.sending import open_spans
    except ImportError as error:
        raise ConfigError(
            f"telemetry.otlp_endpoint is set, but {error.name or 'OpenTelemetry'} is not installed",
            hint="pip install 'dragoman[otel]'",
        ) from None
    exporter = exporters.OTLPSpanExporter(endpoint=traces_at(settings.endpoint))
    return open_spans(settings, processors.BatchSpanProcessor(exporter), secrets=secrets)


def traces_at(endpoint: str) -> str:
    """A collector's URL for traces, as OTLP over HTTP has it."""
    base = endpoint.rstrip("/")
    return base if base.endswith(TRACES) else base + TRACES
