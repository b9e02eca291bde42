"""HTTP handler of the statistics of operations: how their calls went, and the last ones."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from dragoman.errors import BadRequest
from dragoman.http.asgi_exchange import Exchange
from dragoman.operations.authorization import visible_owner
from dragoman.server.calls import CallReader
from dragoman.server.http.query_parameters import to_camel_case
from dragoman.server.http.time_expressions import parse_past
from dragoman.store.store import Store

DEFAULT_RANGE = "24h"
LAST_CALLS = "10"
MAX_ID = 500


class OperationStatisticsHandlers:
    """Handler of `/api/operations/{id}/stats`. A key sees its owner's calls; with "admin", all."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def get(self, exchange: Exchange) -> None:
        """Return the counts and percentiles of the calls since `?since`, and the last calls of all time."""
        id, now = exchange.path_params["id"], self._clock()
        if len(id) > MAX_ID:
            raise BadRequest(f"an operation has an id of at most {MAX_ID} characters", field="id")
        since = parse_past(exchange.query.get("since", DEFAULT_RANGE), now, field="since")
        owner = visible_owner(exchange.identity)
        found = await self._store.operation_statistics.read(id, since=since, owner=owner)
        reader = CallReader(self._store, caller=exchange.identity)
        last = await reader.list({"operation": id, "limit": LAST_CALLS})
        numbers = msgspec.structs.asdict(found).items()
        await exchange.respond(
            200,
            {
                "operation": id,
                "since": since,
                "asOf": now,
                **{to_camel_case(name): value for name, value in numbers},
                "lastCalls": last["calls"],
            },
        )
