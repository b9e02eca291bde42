"""The tracing interface, and the implementation that does nothing.

The hub, runs and the library call `Tracing` at a few points. `spans.py` implements it with OpenTelemetry and
is imported only when `telemetry` is configured: OpenTelemetry is an optional dependency, and importing its
API alone adds 50 ms to each start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from dragoman.events import Event, FinishStep
from dragoman.model_request import ModelRequest
from dragoman.operations.ledger import CallRecord, CallSpan
from dragoman.operations.outcome import CallFailure
from dragoman.providers.provider import Provider

Kind: TypeAlias = Literal["chat", "embeddings"]
T = TypeVar("T")


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where spans are sent: `endpoint` is the base URL of an OTLP collector; None turns tracing off.

    `sample` is the share of traces to keep when the caller has not decided; `content` adds messages,
    arguments and results to the spans.
    """

    endpoint: str | None = None
    service: str = "dragoman"
    version: str = ""
    content: bool = False
    sample: float = 1.0


class ModelSpan(Protocol):
    """The span of a model request. Closed without `finish` or `fail`, it is recorded as cancelled."""

    headers: Mapping[str, str]  # for a request that is sent outside `propagate`
    is_recording: bool  # False for a span that records nothing and need not be ended
    records_content: bool  # whether `add` records anything; if not, callers need not call it

    def propagate(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        """Await with this span as the parent: requests sent meanwhile carry its `traceparent`."""
        ...

    def first_byte(self) -> None:
        """Record the time to the first bytes of the answer; later calls do nothing."""
        ...

    def add(self, batch: Sequence[Event]) -> None:
        """Record the content of the next events, where content is recorded."""
        ...

    def finish(self, step: FinishStep) -> None:
        """Record the complete answer and end the span."""
        ...

    def fail(self, error: BaseException) -> None:
        """Record a failure, before or during the answer, and end the span."""
        ...

    def __enter__(self) -> ModelSpan: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the span; an exception is recorded as its failure."""
        ...


class RequestSpan(Protocol):
    """The span of an HTTP request to the hub."""

    def set_status(self, status: int) -> None:
        """Record the HTTP status of the response."""
        ...


class RunSpan(Protocol):
    """The span of an agent run."""

    def set_error(self, code: str, message: str) -> None: ...


class Tracing(Protocol):
    """Creates the spans of requests, model calls, runs and operation calls."""

    def request(
        self, method: str, route: str, *, headers: Mapping[str, str]
    ) -> AbstractContextManager[RequestSpan]:
        """Open the span of a request to the hub, below the client's `traceparent`. `route` is a template."""
        ...

    def model_call(
        self, request: ModelRequest | str, provider: Provider, *, kind: Kind = "chat"
    ) -> ModelSpan:
        """Open the span of a model request that the caller sends itself.

        Pass the model's name instead of a request when its content is not decoded.
        """
        ...

    def run(
        self, name: str, *, run_id: str, session_id: str, model: str | None = None
    ) -> AbstractContextManager[RunSpan]:
        """Open the span of a run; spans of the same task become its children."""
        ...

    def call(self, record: CallRecord) -> AbstractContextManager[CallSpan]:
        """Open the span of an operation call; see `operations.ledger.CallSpan`."""
        ...

    async def close(self) -> None:
        """Send the spans that are still buffered."""
        ...


class NullSpan:
    """A span that records nothing."""

    headers: Mapping[str, str] = {}
    is_recording = False
    records_content = False

    def propagate(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        return awaitable

    def first_byte(self) -> None: ...

    def add(self, batch: Sequence[Event]) -> None: ...

    def finish(self, step: FinishStep) -> None: ...

    def fail(self, error: BaseException) -> None: ...

    def set_status(self, status: int) -> None: ...

    def set_error(self, code: str, message: str) -> None: ...

    def set_outcome(self, result: Any, error: CallFailure | None) -> None: ...

    def __enter__(self) -> NullSpan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


NULL_SPAN = NullSpan()


class NoTracing:
    """Tracing turned off: no spans, no overhead."""

    def request(self, method: str, route: str, *, headers: Mapping[str, str]) -> NullSpan:
        return NULL_SPAN

    def model_call(self, request: ModelRequest | str, provider: Provider, *, kind: Kind = "chat") -> NullSpan:
        return NULL_SPAN

    def run(self, name: str, *, run_id: str, session_id: str, model: str | None = None) -> NullSpan:
        return NULL_SPAN

    def call(self, record: CallRecord) -> NullSpan:
        return NULL_SPAN

    async def close(self) -> None: ...


NO_TRACING = NoTracing()
