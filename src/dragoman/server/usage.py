"""The usage door: who used what, and what it cost, summed up or record by record, as JSON or CSV."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from msgspec.structs import replace

from dragoman.errors import BadRequest, Forbidden
from dragoman.operations.identity import Identity
from dragoman.server.exchange import Exchange
from dragoman.server.export import Question, answer, export, read_question
from dragoman.server.streaming import Presence
from dragoman.store.store import Store

HEADERS = {
    "content-type": "text/csv; charset=utf-8",
    "content-disposition": 'attachment; filename="usage.csv"',
}


class Usage:
    """`GET /api/usage`. A key sees its owner's usage; with the scope "admin" it sees everybody's."""

    def __init__(
        self,
        store: Store,
        *,
        catch_up: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`catch_up` has what was consumed until now written, so that it is seen."""
        self._store = store
        self._catch_up = catch_up
        self._clock = clock

    async def show(self, exchange: Exchange) -> None:
        """The sums of each group, or the records themselves where `?group_by` is missing."""
        query = exchange.query
        question = within(read_question(query, self._clock()), exchange.identity)
        if self._catch_up is not None and self._store.database.up:
            await self._catch_up()
        match query.get("format") or accepted(exchange):
            case "csv":
                await self._export(exchange, question)
            case "json":
                await exchange.answer(200, await answer(self._store.usage, question))
            case other:
                raise BadRequest(
                    f"there is no format {other!r}", field="format", hint="there are json and csv"
                )

    async def _export(self, exchange: Exchange, question: Question) -> None:
        """Send page by page, for as long as somebody is there."""
        async with Presence(exchange) as presence, aclosing(export(self._store.usage, question)) as pages:
            async for page in pages:
                if not exchange.begun:  # an error of the first page has its own status
                    await exchange.begin(200, HEADERS)
                body = page.encode("utf-8", "replace")
                await exchange.send({"type": "http.response.body", "body": body, "more_body": True})
            presence.over = True
            await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})


def within(question: Question, identity: Identity) -> Question:
    """The question, about the caller's own usage unless more is open to it. Forbidden."""
    owner = question.filters.get("owner", identity.owner)
    if identity.may("admin"):
        return question
    if owner != identity.owner:
        raise Forbidden(
            f"the usage of {owner!r} is not yours to see", hint="it needs a key with the scope admin"
        )
    return replace(question, filters={**question.filters, "owner": identity.owner})


def accepted(exchange: Exchange) -> str:
    return "csv" if "text/csv" in exchange.headers.get("accept", "").lower() else "json"
