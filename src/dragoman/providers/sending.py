"""Sending spans: OpenTelemetry's SDK, set up for one hub. Loaded only where telemetry is configured."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from dragoman.providers.spans import Spans
from dragoman.providers.tracing import Telemetry


def open_spans(settings: Telemetry, processor: SpanProcessor, *, secrets: Collection[str] = ()) -> Spans:
    """Tracing whose spans go to the processor; closing it sends what waits."""
    named = Resource.create({"service.name": settings.service, "service.version": settings.version})
    kept = TracerProvider(sampler=ParentBased(TraceIdRatioBased(settings.sample)), resource=named)
    kept.add_span_processor(processor)

    async def close() -> None:
        await asyncio.to_thread(kept.shutdown)

    tracer = kept.get_tracer("dragoman", settings.version or None)
    return Spans(tracer, content=settings.content, secrets=secrets, close=close)
