"""HTTP handlers of operations: list, search, schemas and calls."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.errors import BadRequest, DragomanError, Forbidden, Unavailable
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.disconnect import DisconnectWatch
from dragoman.http.in_flight import InFlightRequests
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import Context
from dragoman.operations.meta_tools import MetaTools, meta_tool_id
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallFailure, CallOutcome
from dragoman.operations.search.search import SearchScore
from dragoman.operations.search.summary import summarise
from dragoman.server.http.query_parameters import parse_limit

MAX_BODY = 4_000_000
MAX_PAGE = 500
SEARCH_ERRORS: Mapping[str, type[DragomanError]] = {
    "call_denied": Forbidden,
    "approval_needed": Forbidden,
    "unavailable": Unavailable,
}


class OperationHandlers:
    """Handlers of `/api/operations`."""

    def __init__(self, calls: Calls, *, meta: MetaTools) -> None:
        self._calls = calls
        self._meta = meta
        self._in_flight = InFlightRequests()

    async def drain(self, seconds: float) -> None:
        """Wait up to `seconds` for the calls made here, then abort the rest."""
        await self._in_flight.drain(seconds)

    async def list(self, exchange: Exchange) -> None:
        """List the operations that the caller may call, see `_list`; with `?q`, search them."""
        query, context = exchange.query, Context(identity=exchange.identity)
        if "q" not in query:
            await exchange.respond(200, await self._list(query, context))
            return
        input: dict[str, str] = {name: query[name] for name in ("q", "namespace") if name in query}
        found: Any = None if is_recorded(exchange) else await self._meta.find_operations(input, context)
        if found is None:
            outcome = await self._meta.run("hub.search", input, context=context)
            if outcome.error is not None:
                raise search_error(outcome.error)
            found = outcome.result
        await exchange.respond(200, self._with_scores(found, query, context=context))

    async def _list(self, query: Mapping[str, str], context: Context) -> dict[str, object]:
        """Return the operations of `?namespace` with `?text` in their ids, by id; with `?limit` a page.

        `?after` is `next` of the page before. The first page says how many each namespace has.
        """
        limit = parse_limit(query["limit"], maximum=MAX_PAGE) if "limit" in query else None
        after, text = query.get("after", ""), query.get("text", "").lower()
        visible = self._meta.visible_operations(context, query.get("namespace"), after=after)
        matching = (each for each in visible if text in each.id.lower())
        found = list(islice(matching, None if limit is None else limit + 1))
        page = found[:limit]
        body: dict[str, object] = {"operations": [operation_summary(operation) for operation in page]}
        if limit is not None:
            body["next"] = page[-1].id if len(found) > limit else None
        if not after:
            body["namespaces"] = await self._meta.count_namespaces(context)
        return body

    def _with_scores(self, found: Any, query: Mapping[str, str], *, context: Context) -> Any:
        """Return the result of a search, with `?scores` also why each operation is in it, and its effect."""
        if query.get("scores") not in ("1", "true"):
            return found
        ids = [each["tool"] for each in found["tools"]]
        scores = self._meta.search_scores(query["q"], ids, context=context)
        tools = []
        for each in found["tools"]:
            operation = self._calls.get_operation(each["tool"], context)
            more = {"effect": operation.effect, "source": operation.source}
            tools.append({**each, **more, "score": score_to_json(scores.get(operation.id))})
        return {**found, "tools": tools}

    async def get(self, exchange: Exchange) -> None:
        """Return one operation with its schemas."""
        context = Context(identity=exchange.identity)
        await self._calls.wait_for_operations([exchange.path_params["id"]], context)
        operation = self._calls.get_operation(exchange.path_params["id"], context)
        schemas = {"inputSchema": operation.input_schema, "outputSchema": operation.output_schema}
        await exchange.respond(
            200, {**operation_summary(operation), "description": operation.description, **schemas}
        )

    async def call(self, exchange: Exchange) -> None:
        """Call an operation with the body as input; 200 with `{success, result | error}`, also for failures.

        Meta-tools can be called too and return what a model would get. `?approval=ID` uses an
        approval; the call ends when the client disconnects.
        """
        id = exchange.path_params["id"]
        input = await exchange.read_json(MAX_BODY)
        context = Context(identity=exchange.identity, approval=exchange.query.get("approval"))
        with self._in_flight.track():
            await self._call_operation(exchange, id, input=input, context=context)

    async def _call_operation(self, exchange: Exchange, id: str, *, input: Any, context: Context) -> None:
        with DisconnectWatch(exchange) as watch:
            if meta_tool_id(id) is not None:
                outcome = await self._meta.run(id, input, context=replace(context, for_model=True))
            else:
                await self._calls.wait_for_operations([id], context)
                operation = self._calls.get_operation(id, context)
                outcome = await self._calls.call(operation, input, context=context)
            watch.response_complete = True
            await exchange.respond(200, outcome_to_json(outcome))


def is_recorded(exchange: Exchange) -> bool:
    """Return whether a search is recorded as a call of `hub.search`, as all searches with a key are.

    The console, whose requests have no key, searches at each keystroke and sends `?record=0`.
    """
    has_key = "authorization" in exchange.headers or "x-api-key" in exchange.headers
    return has_key or exchange.query.get("record") not in ("0", "false")


def search_error(failure: CallFailure) -> DragomanError:
    """Return the error of a search that did not run: denied, or not recorded."""
    return SEARCH_ERRORS.get(failure.code, BadRequest)(failure.message, hint=failure.hint)


def score_to_json(score: SearchScore | None) -> dict[str, Any] | None:
    """Return a score as JSON; None without a query."""
    return None if score is None else msgspec.structs.asdict(score)


def outcome_to_json(outcome: CallOutcome) -> dict[str, object]:
    """Return the outcome of a call as JSON."""
    more: dict[str, object] = {"callId": outcome.call_id, "status": outcome.status}
    if outcome.approval_id is not None:
        more["approvalId"] = outcome.approval_id
    if outcome.notes:
        more["notes"] = list(outcome.notes)
    return {**more, **outcome.to_json()}


def operation_summary(operation: Operation) -> dict[str, object]:
    claimed = {"effectClaimed": True} if operation.effect_claimed else {}
    return {
        **claimed,
        "id": operation.id,
        "namespace": operation.namespace,
        "summary": summarise(operation),
        "effect": operation.effect,
        "source": operation.source,
    }
