"""HTTP handlers of health checks: liveness and readiness."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.accounts.spool import Spool
from dragoman.errors import DragomanError
from dragoman.http.asgi_exchange import Exchange
from dragoman.store.store import Store


class HealthHandlers:
    """`/healthz` reports that the process answers, `/readyz` that its store does too."""

    def __init__(self, store: Store, *, spool: Spool, is_draining: Callable[[], bool]) -> None:
        self._store = store
        self._spool = spool
        self._is_draining = is_draining

    async def live(self, exchange: Exchange) -> None:
        """Respond 200 as long as the process answers."""
        await exchange.respond(200, {"status": "ok"})

    async def ready(self, exchange: Exchange) -> None:
        """Respond 200 when the store answers, 503 with the reason when it does not or the hub is stopping.

        A hub that is not ready still relays model requests for keys that it has seen.
        """
        if self._is_draining():
            await exchange.respond(503, {"status": "draining", "store": "ok"})
            return
        try:
            await self._store.runs.list_running()
            problem = self._store.database.problem
        except DragomanError as error:
            problem = error.message
        body = {"status": "ready", "store": "ok"}
        if problem is not None:
            body = {"status": "unavailable", "store": problem}
        if self._spool.row_count:
            body["spool"] = f"{self._spool.row_count} usage records wait for the database"
        if self._spool.dropped:
            body["lost"] = f"{self._spool.dropped} usage records found no room on the disk"
        await exchange.respond(200 if problem is None else 503, body)
