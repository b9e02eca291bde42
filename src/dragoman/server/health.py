"""Health doors: alive, and ready to take work."""

from __future__ import annotations

from dragoman.errors import DragomanError
from dragoman.server.exchange import Exchange
from dragoman.store.store import Store


class Health:
    """`/healthz` says that the process answers, `/readyz` that its store does too."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def live(self, exchange: Exchange) -> None:
        """200 as long as the process answers."""
        await exchange.answer(200, {"status": "ok"})

    async def ready(self, exchange: Exchange) -> None:
        """200 when the store answers, 503 with the reason when it does not."""
        try:
            await self._store.runs.unfinished()
        except DragomanError as error:
            await exchange.answer(503, {"status": "unavailable", "store": error.message})
            return
        await exchange.answer(200, {"status": "ready", "store": "ok"})
