"""Open the configured tracing: off, or OpenTelemetry's SDK with an OTLP exporter."""

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

TRACES_PATH = "/v1/traces"


def open_spans(
    settings: TelemetrySettings, processor: SpanProcessor, *, secrets: Collection[str] = ()
) -> OpenTelemetryTracing:
    """Return tracing that passes its spans to `processor`; closing it sends the buffered ones."""
    resource = Resource.create({"service.name": settings.service, "service.version": settings.version})
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(settings.sample)), resource=resource)
    provider.add_span_processor(processor)

    async def close() -> None:
        await asyncio.to_thread(provider.shutdown)

    tracer = provider.get_tracer("dragoman", settings.version or None)
    return OpenTelemetryTracing(tracer, content=settings.content, secrets=secrets, close=close)


def open_tracing(settings: TelemetrySettings, *, secrets: Collection[str] = ()) -> Tracing:
    """Open the configured tracing; call close() at shutdown.

    Raises ConfigError if the OpenTelemetry packages are not installed.
    """
    if settings.endpoint is None:
        return NO_TRACING
    try:
        exporters = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        processors = import_module("opentelemetry.sdk.trace.export")
        # imported late: OpenTelemetry is an optional dependency
    except ImportError as error:
        raise ConfigError(
            f"telemetry.otlp_endpoint is set, but {error.name or 'OpenTelemetry'} is not installed",
            hint="pip install 'dragoman[otel]'",
        ) from None
    exporter = exporters.OTLPSpanExporter(endpoint=traces_url(settings.endpoint))
    return open_spans(settings, processors.BatchSpanProcessor(exporter), secrets=secrets)


def traces_url(endpoint: str) -> str:
    """Return a collector's URL for traces (OTLP over HTTP)."""
    base = endpoint.rstrip("/")
    return base if base.endswith(TRACES_PATH) else base + TRACES_PATH
