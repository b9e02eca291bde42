"""OpenTelemetry spans of requests, model calls, runs and operations, by the GenAI conventions.

Only spans of model requests have token counts, so that a sum over all spans counts each token once. Messages,
arguments and results are recorded only when `content` is on. No attribute contains a key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dragoman import identity
from dragoman.errors import DragomanError
from dragoman.events import Event, FinishStep, Usage
from dragoman.model_request import ModelRequest
from dragoman.operations.ledger import CallRecord
from dragoman.operations.outcome import CallFailure
from dragoman.providers.provider import Provider
from dragoman.redaction import safe_line
from dragoman.tracing.interface import Kind
from dragoman.tracing.message_attributes import TracedOutput, encode_attribute, input_messages, instructions
from dragoman.tracing.model_endpoint import endpoint_of

Attributes = dict[str, Any]
T = TypeVar("T")
CANCELLATIONS = (asyncio.CancelledError, GeneratorExit)
USAGE_ATTRIBUTES = {
    "gen_ai.usage.input_tokens": "input_tokens",
    "gen_ai.usage.output_tokens": "output_tokens",
    "gen_ai.usage.reasoning.output_tokens": "reasoning_tokens",
    "gen_ai.usage.cache_read.input_tokens": "cached_input_tokens",
    "gen_ai.usage.cache_creation.input_tokens": "cache_write_tokens",
}
OPTION_ATTRIBUTES = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}


async def no_op() -> None:
    """Default for `close` when the caller owns the tracer's provider."""


class OpenTelemetryTracing:
    """Tracing with an OpenTelemetry tracer. `secrets` is read at each use, so it may change."""

    def __init__(
        self,
        tracer: trace.Tracer,
        *,
        content: bool = False,
        secrets: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
        close: Callable[[], Awaitable[None]] = no_op,
    ) -> None:
        self._tracer = tracer
        self._content = content
        self._secrets = secrets
        self._clock = clock
        self._close = close
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, method: str, route: str, *, headers: Mapping[str, str]) -> Iterator[OtelRequestSpan]:
        """See `Tracing.request`."""
        parent = self._propagator.extract(headers)
        attributes: Attributes = {"http.request.method": method, "http.route": route}
        span = self._start(f"{method} {route}", SpanKind.SERVER, attributes=attributes, parent=parent)
        with self._current(span):
            yield OtelRequestSpan(span)

    def model_call(
        self, request: ModelRequest | str, provider: Provider, *, kind: Kind = "chat"
    ) -> OtelModelSpan:
        """See `Tracing.model_call`."""
        endpoint = endpoint_of(provider)
        name = request if isinstance(request, str) else request.model
        attributes: Attributes = {
            "gen_ai.operation.name": kind,
            "gen_ai.provider.name": endpoint.family,
            "gen_ai.request.model": name,
            "dragoman.provider": endpoint.provider,
        }
        if endpoint.host:
            attributes["server.address"] = endpoint.host
        if endpoint.port:
            attributes["server.port"] = endpoint.port
        if not isinstance(request, str):
            attributes |= request_attributes(request)
        span = self._start(f"{kind} {name}", SpanKind.CLIENT, attributes=attributes)
        if self._content and not isinstance(request, str) and span.is_recording():
            self._record_input(span, request)
        return OtelModelSpan(span, self._clock, secrets=self._secrets, content=self._content)

    @contextmanager
    def run(
        self, name: str, *, run_id: str, session_id: str, model: str | None = None
    ) -> Iterator[OtelRunSpan]:
        """See `Tracing.run`."""
        attributes: Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": name,
            "gen_ai.conversation.id": session_id,
            "dragoman.run_id": run_id,
        }
        if model:
            attributes["gen_ai.request.model"] = model
        span = self._start(f"invoke_agent {name}", SpanKind.INTERNAL, attributes=attributes)
        with self._current(span):
            yield OtelRunSpan(span, self._secrets)

    @contextmanager
    def call(self, record: CallRecord) -> Iterator[OtelCallSpan]:
        """See `Tracing.call`."""
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": record.operation,
            "gen_ai.tool.type": "function",
            "dragoman.call_id": record.id,
        }
        if record.tool_call_id and record.parent_id is None:
            attributes["gen_ai.tool.call.id"] = record.tool_call_id
        span = self._start(f"execute_tool {record.operation}", SpanKind.INTERNAL, attributes=attributes)
        call_span = OtelCallSpan(span, self._secrets, content=self._content)
        call_span.record_input(record.input)
        with self._current(span):
            yield call_span

    async def close(self) -> None:
        """See `Tracing.close`."""
        await self._close()

    def _start(
        self, name: str, kind: SpanKind, *, attributes: Attributes, parent: Context | None = None
    ) -> Span:
        if (request_id := identity.request_id.get()) is not None:
            attributes["dragoman.request_id"] = request_id
        return self._tracer.start_span(name, parent, kind, attributes=attributes)

    @contextmanager
    def _current(self, span: Span) -> Iterator[None]:
        """Make the span the parent of spans opened inside. An exception is recorded as its failure."""
        token = contexts.attach(trace.set_span_in_context(span))
        try:
            yield
        except BaseException as error:
            record_failure(span, error, secrets=self._secrets)
            raise
        finally:
            contexts.detach(token)
            span.end()

    def _record_input(self, span: Span, request: ModelRequest) -> None:
        secrets = self._secrets
        if request.instructions:
            text = encode_attribute(instructions(request.instructions), secrets)
            span.set_attribute("gen_ai.system_instructions", text)
        span.set_attribute(
            "gen_ai.input.messages", encode_attribute(input_messages(request.messages), secrets)
        )


class OtelRequestSpan:
    """See `RequestSpan`."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def set_status(self, status: int) -> None:
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._span.set_attribute("error.type", str(status))
            self._span.set_status(StatusCode.ERROR)


class OtelRunSpan:
    """See `RunSpan`."""

    def __init__(self, span: Span, secrets: Collection[str]) -> None:
        self._span = span
        self._secrets = secrets

    def set_error(self, code: str, message: str) -> None:
        set_error(self._span, code, message=message, secrets=self._secrets)


class OtelCallSpan:
    """See `operations.ledger.CallSpan`."""

    def __init__(self, span: Span, secrets: Collection[str], *, content: bool) -> None:
        self._span = span
        self._secrets = secrets
        self._content = content and span.is_recording()

    def record_input(self, input: Any) -> None:
        """Record the arguments of the call."""
        if self._content:
            arguments = encode_attribute(input, self._secrets)
            self._span.set_attribute("gen_ai.tool.call.arguments", arguments)

    def set_outcome(self, result: Any, error: CallFailure | None) -> None:
        if error is not None:
            set_error(self._span, error.code, message=error.message, secrets=self._secrets)
        elif self._content:
            self._span.set_attribute("gen_ai.tool.call.result", encode_attribute(result, self._secrets))


class OtelModelSpan:
    """See `ModelSpan`."""

    def __init__(
        self, span: Span, clock: Callable[[], float], *, secrets: Collection[str], content: bool
    ) -> None:
        self.headers: Mapping[str, str] = {"traceparent": traceparent(span)}
        self._span = span
        self._clock = clock
        self._started_at = clock()
        self._secrets = secrets
        self._output = TracedOutput() if content and span.is_recording() else None
        self.is_recording = True
        self.records_content = self._output is not None
        self._first_byte_seen = False
        self._ended = False

    async def propagate(self, awaitable: Awaitable[T]) -> T:
        token = identity.traceparent.set(self.headers["traceparent"])
        try:
            return await awaitable
        finally:
            identity.traceparent.reset(token)

    def first_byte(self) -> None:
        if not self._first_byte_seen:
            self._first_byte_seen = True
            elapsed = self._clock() - self._started_at
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", elapsed)
            self._span.add_event("gen_ai.first_chunk")

    def add(self, batch: Sequence[Event]) -> None:
        """Record the content of the next batch of events."""
        if self._output is not None:
            self._output.add(batch)

    def finish(self, step: FinishStep) -> None:
        if self._span.is_recording():
            self._span.set_attributes(response_attributes(step))
            if self._output is not None:
                messages = encode_attribute(self._output.message(), self._secrets)
                self._span.set_attribute("gen_ai.output.messages", messages)
        self._end()

    def fail(self, error: BaseException) -> None:
        if not self._ended:
            record_failure(self._span, error, secrets=self._secrets)
            self._end()

    def __enter__(self) -> OtelModelSpan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            self.fail(error or asyncio.CancelledError())

    def _end(self) -> None:
        self._ended = True
        self._span.end()


def record_failure(span: Span, error: BaseException, *, secrets: Collection[str]) -> None:
    """Record why the span failed. A client that disconnected is a cancellation, not an error."""
    if isinstance(error, CANCELLATIONS):
        span.set_attribute("dragoman.cancelled", True)
    elif isinstance(error, DragomanError):
        set_error(span, error.code, message=error.message, secrets=secrets)
    else:
        set_error(span, type(error).__name__, message="", secrets=secrets)


def set_error(span: Span, code: str, *, message: str, secrets: Collection[str]) -> None:
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, safe_line(message, secrets) or None))


def traceparent(span: Span) -> str:
    """Format the span's context as a W3C `traceparent`."""
    ids = span.get_span_context()
    return f"00-{ids.trace_id:032x}-{ids.span_id:016x}-{ids.trace_flags:02x}"


def request_attributes(request: ModelRequest) -> Attributes:
    """Return the options of a request that the conventions define attributes for."""
    options = request.options
    attributes: Attributes = {"gen_ai.request.stream": True}
    for option, name in OPTION_ATTRIBUTES.items():
        value = options.get(option)
        if isinstance(value, int | float):
            attributes[name] = value
    if isinstance(options.get("n"), int) and options["n"] != 1:
        attributes["gen_ai.request.choice.count"] = options["n"]
    stop = options.get("stop")
    if isinstance(stop, str | list) and stop:
        attributes["gen_ai.request.stop_sequences"] = (
            [stop] if isinstance(stop, str) else [str(sequence) for sequence in stop]
        )
    return attributes


def response_attributes(step: FinishStep) -> Attributes:
    """Return the finish reason, model, id and token counts of an answer."""
    attributes: Attributes = {}
    if step.finish_reason:
        attributes["gen_ai.response.finish_reasons"] = [step.finish_reason.replace("-", "_")]
    if step.model:
        attributes["gen_ai.response.model"] = step.model
    for metadata in (step.provider_metadata or {}).values():
        if isinstance(metadata.get("id"), str):
            attributes["gen_ai.response.id"] = metadata["id"]
    return attributes | usage_attributes(step.usage or Usage())


def usage_attributes(usage: Usage) -> Attributes:
    counts = {name: getattr(usage, field) for name, field in USAGE_ATTRIBUTES.items()}
    attributes: Attributes = {name: count for name, count in counts.items() if count is not None}
    if usage.estimated:
        attributes["dragoman.usage.estimated"] = True
    return attributes
