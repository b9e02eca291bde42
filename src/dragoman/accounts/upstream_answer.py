"""One provider's answer to a model call: what is known of it, and how it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from dragoman import events as e
from dragoman.tracing.interface import ModelSpan

Batch: TypeAlias = Sequence[e.Event]
T = TypeVar("T")


class AnswerProgress(msgspec.Struct):
    """What is known of an answer so far.

    `text_length` counts characters, `key` names the provider's key, `cost` is the cost in US dollars that the
    provider itself reports, `finish` the event that ended an answer read as events.
    """

    started: bool = False
    text_length: int = 0
    usage: e.Usage | None = None
    model: str | None = None
    finish_reason: str | None = None
    key: str | None = None
    cost: float | None = None
    finish: e.FinishStep | None = None


class UpstreamAnswer(Protocol[T]):
    """One provider's answer, as a model call reads it: batches of events, or bytes that are passed on."""

    @property
    def span(self) -> ModelSpan:
        """The span of the request to the provider."""

    @property
    def progress(self) -> AnswerProgress:
        """What is known of the answer so far."""

    async def start(self) -> UpstreamAnswer[T]:
        """Wait until there is something to read; return the answer to read on from.

        ProviderError or BadRequest: nothing was passed on, so another route may be tried.
        """

    async def receive(self) -> T | None:
        """Return the next item; None at the end. ProviderError when the answer failed."""

    async def close(self, *, abandoned: bool) -> None:
        """Close the upstream connection; an abandoned answer is not read to its end."""
