"""Operation doors: what there is, what it takes, and calling one; for the CLI and the console."""

from __future__ import annotations

from dragoman.operations.call import Calls
from dragoman.operations.context import Context
from dragoman.operations.meta import Meta
from dragoman.operations.operation import Operation
from dragoman.operations.registry import Registry
from dragoman.operations.summary import summarise
from dragoman.server.exchange import Exchange

MAX_BODY = 4_000_000


class Operations:
    """The doors under `/api/operations`."""

    def __init__(self, registry: Registry, calls: Calls, *, meta: Meta) -> None:
        self._registry = registry
        self._calls = calls
        self._meta = meta

    async def list(self, exchange: Exchange) -> None:
        """All operations, or those of `?namespace`; with `?q` what the search finds."""
        query = exchange.query
        if "q" in query:
            input: dict[str, str] = {name: query[name] for name in ("q", "namespace") if name in query}
            outcome = await self._meta.run("hub.search", input, context=Context(identity=exchange.identity))
            await exchange.answer(200, outcome.unwrap())
            return
        found = self._registry.list(query.get("namespace"))
        body = {
            "operations": [_line(operation) for operation in found],
            "namespaces": self._registry.namespaces(),
        }
        await exchange.answer(200, body)

    async def get(self, exchange: Exchange) -> None:
        """One operation with its schemas."""
        operation = self._registry.get(exchange.params["id"])
        schemas = {"inputSchema": operation.input_schema, "outputSchema": operation.output_schema}
        await exchange.answer(200, {**_line(operation), "description": operation.description, **schemas})

    async def call(self, exchange: Exchange) -> None:
        """Call it with the body as its input; 200 with `{success, result | error}`, whatever came of it."""
        operation = self._registry.get(exchange.params["id"])
        input = await exchange.json_body(MAX_BODY)
        outcome = await self._calls.call(operation, input, context=Context(identity=exchange.identity))
        await exchange.answer(200, {"callId": outcome.call_id, **outcome.to_json()})


def _line(operation: Operation) -> dict[str, object]:
    return {
        "id": operation.id,
        "namespace": operation.namespace,
        "summary": summarise(operation),
        "effect": operation.effect,
    }
