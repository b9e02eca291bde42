"""Tracing: what is seen of requests, model calls, runs and operations. Nothing, unless it is configured.

Here are the protocols and the tracing that is off; `spans.py` speaks OpenTelemetry, and is loaded only
when `telemetry` is configured.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from dragoman.events import Event, FinishStep
from dragoman.model_request import ModelRequest
from dragoman.operations.ledger import CallRecord, CallSpan
from dragoman.operations.outcome import CallFailure
from dragoman.providers.provider import Provider

BatchStream: TypeAlias = AsyncGenerator[Sequence[Event], None]
Kind: TypeAlias = Literal["chat", "embeddings"]
T = TypeVar("T")


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where spans go: `endpoint` is an OTLP collector's base URL, None for nowhere.

    `sample` is the share of traces that is kept where no caller has decided; `content`: with what was said.
    """

    endpoint: str | None = None
    service: str = "dragoman"
    version: str = ""
    content: bool = False
    sample: float = 1.0


class ModelSpan(Protocol):
    """One model request. Left without a finish or a failure it counts as cancelled."""

    headers: Mapping[str, str]  # may go along to the provider by hand

    def propagate(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        """The step, which sends the request: what it sends carries this span's `traceparent`."""
        ...

    def first_byte(self) -> None:
        """The first bytes of the answer are here; only the first time counts."""
        ...

    def finish(self, step: FinishStep) -> None:
        """The answer is complete."""
        ...

    def fail(self, error: BaseException) -> None:
        """There is no answer, or it broke off."""
        ...

    def __enter__(self) -> ModelSpan: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it; an exception is its failure."""
        ...


class RequestSpan(Protocol):
    """One request to the hub."""

    def set_status(self, status: int) -> None:
        """The HTTP status that the client got."""
        ...


class RunSpan(Protocol):
    """One run of an agent."""

    def set_error(self, code: str, message: str) -> None: ...


class Tracing(Protocol):
    """Sees what the hub does."""

    def request(
        self, method: str, route: str, *, headers: Mapping[str, str]
    ) -> AbstractContextManager[RequestSpan]:
        """A request to the hub while it lasts, below the client's `traceparent`. `route` has no ids in it."""
        ...

    def model_call(
        self, request: ModelRequest | str, provider: Provider, *, kind: Kind = "chat"
    ) -> ModelSpan:
        """A model request that somebody sends and reads by hand; a bare name when its content is not read."""
        ...

    def stream(self, request: ModelRequest, provider: Provider) -> BatchStream:
        """The provider's stream for the request."""
        ...

    def run(
        self, name: str, *, run_id: str, session_id: str, model: str | None = None
    ) -> AbstractContextManager[RunSpan]:
        """A run while it lasts; the model requests and calls in its task stand below it."""
        ...

    def call(self, record: CallRecord) -> AbstractContextManager[CallSpan]:
        """A call while it lasts; see `operations.tracer`."""
        ...

    async def close(self) -> None:
        """Send what waits to be sent."""
        ...


class NullSpan:
    """The span of everything when tracing is off."""

    headers: Mapping[str, str] = {}

    def propagate(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        return awaitable

    def first_byte(self) -> None: ...

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
    """Tracing that is off: nothing is seen, and nothing costs."""

    def request(self, method: str, route: str, *, headers: Mapping[str, str]) -> NullSpan:
        return NULL_SPAN

    def model_call(self, request: ModelRequest | str, provider: Provider, *, kind: Kind = "chat") -> NullSpan:
        return NULL_SPAN

    def stream(self, request: ModelRequest, provider: Provider) -> BatchStream:
        return provider.stream(request)

    def run(self, name: str, *, run_id: str, session_id: str, model: str | None = None) -> NullSpan:
        return NULL_SPAN

    def call(self, record: CallRecord) -> NullSpan:
        return NULL_SPAN

    async def close(self) -> None: ...


NO_TRACING = NoTracing()
