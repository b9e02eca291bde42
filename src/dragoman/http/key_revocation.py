"""End a request whose key is revoked or expires while the request is handled."""

from __future__ import annotations

import asyncio
from types import TracebackType

from dragoman.errors import KeyEnded
from dragoman.http.asgi_exchange import Exchange
from dragoman.revocable_work import ActiveWork


class KeyValidity:
    """`with KeyValidity(exchange, work)`: run the block while the caller's key is valid.

    When the key is revoked or expires, the block is cancelled and raises KeyEnded. A handler that can report
    this to its client itself sets `exchange.on_key_ended`, and is not cancelled. This is a class instead of a
    generator, because every request enters it.
    """

    __slots__ = ("_error", "_exchange", "_remove", "_task", "_work")

    def __init__(self, exchange: Exchange, work: ActiveWork) -> None:
        self._exchange = exchange
        self._work = work
        self._error: KeyEnded | None = None

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._remove = self._work.add(self._exchange.identity, self._stop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
        if self._error is None or self._task is None or not isinstance(error, asyncio.CancelledError):
            return
        if self._task.uncancel() <= 0:
            raise self._error from None

    def _stop(self, error: KeyEnded) -> None:
        if self._exchange.on_key_ended is not None:
            self._exchange.on_key_ended(error)
        elif self._task is not None:
            self._error = error
            self._task.cancel()
