"""End a request whose key is revoked or expires while the request is handled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.active_work import ActiveWork
from dragoman.errors import KeyEnded
from dragoman.http.exchange import Exchange


@contextmanager
def end_with_key(exchange: Exchange, work: ActiveWork) -> Iterator[None]:
    """Run the block while the caller's key is valid; then cancel it and raise KeyEnded.

    A handler that can tell its client itself sets `exchange.on_key_ended`, and is not cancelled.
    """
    task, ending = asyncio.current_task(), _Ending()

    def stop(error: KeyEnded) -> None:
        if exchange.on_key_ended is not None:
            exchange.on_key_ended(error)
        elif task is not None:
            ending.error = error
            task.cancel()

    remove = work.add(exchange.identity, stop)
    try:
        yield
    except asyncio.CancelledError:
        if ending.error is None or task is None or task.uncancel() > 0:
            raise
        raise ending.error from None
    finally:
        remove()


class _Ending:
    """Why a block was cancelled; None while it was not."""

    error: KeyEnded | None = None
