"""Telemetry: tracing as it is configured: off, or sent to a collector by OTLP."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from importlib import import_module

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from dragoman.errors import ConfigError
from dragoman.tracing.interface import NO_TRACING, TelemetrySettings, Tracing
from dragoman.tracing.spans import OpenTelemetryTracing

# ---- Sending spans: OpenTelemetry's SDK, set up for one hub. Loaded only where telemetry is configured.


def open_spans(
    settings: TelemetrySettings, processor: SpanProcessor, *, secrets: Collection[str] = ()
) -> OpenTelemetryTracing:
    """Tracing whose spans go to the processor; closing it sends what waits."""
    named = Resource.create({"service.name": settings.service, "service.version": settings.version})
    kept = TracerProvider(sampler=ParentBased(TraceIdRatioBased(settings.sample)), resource=named)
    kept.add_span_processor(processor)

    async def close() -> None:
        await asyncio.to_thread(kept.shutdown)

    tracer = kept.get_tracer("dragoman", settings.version or None)
    return OpenTelemetryTracing(tracer, content=settings.content, secrets=secrets, close=close)


TRACES_PATH = "/v1/traces"


def open_tracing(settings: TelemetrySettings, *, secrets: Collection[str] = ()) -> Tracing:
    """The tracing that is configured; close() it. ConfigError where its packages are not installed."""
    if settings.endpoint is None:
        return NO_TRACING
    try:
        exporters = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        processors = import_module("opentelemetry.sdk.trace.export")
        # late: OpenTelemetry is an extra, and its API alone costs every start 50 ms
    except ImportError as error:
        raise ConfigError(
            f"telemetry.otlp_endpoint is set, but {error.name or 'OpenTelemetry'} is not installed",
            hint="pip install 'dragoman[otel]'",
        ) from None
    exporter = exporters.OTLPSpanExporter(endpoint=traces_url(settings.endpoint))
    return open_spans(settings, processors.BatchSpanProcessor(exporter), secrets=secrets)


def traces_url(endpoint: str) -> str:
    """A collector's URL for traces, as OTLP over HTTP has it."""
    base = endpoint.rstrip("/")
    return base if base.endswith(TRACES_PATH) else base + TRACES_PATH
