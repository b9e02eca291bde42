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
from dragoman.operations.ledger import CallRecord, Watch
from dragoman.operations.outcome import CallFailure
from dragoman.providers.provider import Provider
from dragoman.request import ModelRequest

Answer: TypeAlias = AsyncGenerator[Sequence[Event], None]
Kind: TypeAlias = Literal["chat", "embeddings"]
T = TypeVar("T")


class Telemetry(msgspec.Struct, frozen=True, kw_only=True):
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

    def during(self, step: Awaitable[T]) -> Awaitable[T]:
        """The step, which sends the request: what it sends carries this span's `traceparent`."""
        ...

    def first(self) -> None:
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


class DoorSpan(Protocol):
    """One request to the hub."""

    def answered(self, status: int) -> None:
        """The HTTP status that the client got."""
        ...


class RunSpan(Protocol):
    """One run of an agent."""

    def failed(self, code: str, message: str) -> None: ...


class Tracing(Protocol):
    """Sees what the hub does."""

    def door(
        self, method: str, route: str, *, headers: Mapping[str, str]
    ) -> AbstractContextManager[DoorSpan]:
        """A request to the hub while it lasts, below the client's `traceparent`. `route` has no ids in it."""
        ...

    def model(self, request: ModelRequest | str, provider: Provider, *, kind: Kind = "chat") -> ModelSpan:
        """A model request that somebody sends and reads by hand; a bare name when its content is not read."""
        ...

    def stream(self, request: ModelRequest, provider: Provider) -> Answer:
        """The provider's stream for the request."""
        ...

    def agent(
        self, name: str, *, run_id: str, session_id: str, model: str | None = None
    ) -> AbstractContextManager[RunSpan]:
        """A run while it lasts; the model requests and calls in its task stand below it."""
        ...

    def call(self, record: CallRecord) -> AbstractContextManager[Watch]:
        """A call while it lasts; see `operations.tracer`."""
        ...

    async def close(self) -> None:
        """Send what waits to be sent."""
        ...


class Unseen:
    """The span of everything when tracing is off."""

    headers: Mapping[str, str] = {}

    def during(self, step: Awaitable[T]) -> Awaitable[T]:
        return step

    def first(self) -> None: ...

    def finish(self, step: FinishStep) -> None: ...

    def fail(self, error: BaseException) -> None: ...

    def answered(self, status: int) -> None: ...

    def failed(self, code: str, message: str) -> None: ...

    def outcome(self, result: Any, error: CallFailure | None) -> None: ...

    def __enter__(self) -> Unseen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


UNSEEN = Unseen()


class Untraced:
    """Tracing that is off: nothing is seen, and nothing costs."""

    def door(self, method: str, route: str, *, headers: Mapping[str, str]) -> Unseen:
        return UNSEEN

    def model(self, request: ModelRequest | str, provider: Provider, *, kind: Kind = "chat") -> Unseen:
        return UNSEEN

    def stream(self, request: ModelRequest, provider: Provider) -> Answer:
        return provider.stream(request)

    def agent(self, name: str, *, run_id: str, session_id: str, model: str | None = None) -> Unseen:
        return UNSEEN

    def call(self, record: CallRecord) -> Unseen:
        return UNSEEN

    async def close(self) -> None: ...


OFF = Untraced()
