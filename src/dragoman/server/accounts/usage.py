"""HTTP handler of usage: totals by group, or single records, as JSON or CSV."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.disconnect import DisconnectWatch
from dragoman.identity import Identity
from dragoman.operations.authorization import restrict_owner, visible_owner
from dragoman.server.accounts.usage_report import UsageQuery, build_report, export_csv, parse_usage_query
from dragoman.server.accounts.usage_series import build_series, parse_series_query
from dragoman.server.sessions.session_lookup import resolve_session_filter
from dragoman.store.store import Store

CSV_HEADERS = {
    "content-type": "text/csv; charset=utf-8",
    "content-disposition": 'attachment; filename="usage.csv"',
    "cache-control": "no-store",
}


class UsageHandlers:
    """Handler of `/api/usage`. A key sees its owner's usage; with the scope "admin", all usage."""

    def __init__(
        self,
        store: Store,
        *,
        flush_usage: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`flush_usage` writes pending usage records, so that the report includes them."""
        self._store = store
        self._flush_usage = flush_usage
        self._clock = clock

    async def get(self, exchange: Exchange) -> None:
        """Return the sums of each group, or single records without `?group_by`; with `?bucket`, over time."""
        query = exchange.query
        now = self._clock()
        question = await self._restrict(parse_usage_query(query, now), exchange.identity)
        chart = parse_series_query(query, question, now=now) if "bucket" in query else None
        if self._flush_usage is not None and self._store.database.is_up:
            await self._flush_usage()
        match query.get("format") or accepted_format(exchange):
            case "csv":
                await self._export(exchange, question if chart is None else chart.as_report())
            case "json" if chart is not None:
                await exchange.respond(200, await build_series(self._store.usage_series, chart))
            case "json":
                await exchange.respond(200, await build_report(self._store.usage, question))
            case other:
                raise BadRequest(f"{other!r} is not a valid format", field="format", hint="use json or csv")

    async def _restrict(self, query: UsageQuery, caller: Identity) -> UsageQuery:
        """Return the query restricted to usage that the caller may see. Raises Forbidden, BadRequest."""
        filters = restrict_owner(query.filters, visible_owner(caller))
        filters = await resolve_session_filter(self._store.sessions, filters, caller=caller)
        return replace(query, filters=filters, caller=caller.owner)

    async def _export(self, exchange: Exchange, query: UsageQuery) -> None:
        """Send CSV page by page until the client disconnects."""
        with DisconnectWatch(exchange) as watch:
            await self._send_pages(exchange, query)
            watch.response_complete = True
            await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_pages(self, exchange: Exchange, query: UsageQuery) -> None:
        async with aclosing(export_csv(self._store.usage, query)) as pages:
            async for page in pages:
                if not exchange.response_started:  # an error of the first page has its own status
                    await exchange.start_response(200, CSV_HEADERS)
                body = page.encode("utf-8", "replace")
                await exchange.send({"type": "http.response.body", "body": body, "more_body": True})


def accepted_format(exchange: Exchange) -> str:
    return "csv" if "text/csv" in exchange.headers.get("accept", "").lower() else "json"
