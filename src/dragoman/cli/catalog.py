"""The catalog: operations to list, search and call, of a running hub or right here in this process."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

from dragoman.cli.client import HubClient, segment
from dragoman.cli.settings import HERE, with_operations
from dragoman.config import read_config
from dragoman.operations.approval import MemoryApprovals, checked
from dragoman.operations.artifact import MemoryArtifacts
from dragoman.operations.call import Calls
from dragoman.operations.context import Context
from dragoman.operations.guard import Guard
from dragoman.operations.history import MemoryHistory
from dragoman.operations.identity import LOCAL
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.operation import Operation
from dragoman.operations.registry import Registry
from dragoman.operations.search import Search
from dragoman.operations.summary import summarise
from dragoman.server.app.rules import policy_of
from dragoman.server.app.tools import registry_of
from dragoman.server.approvals import question_of
from dragoman.server.operations import body_of


class Catalog(Protocol):
    """Operations; the values are those of the doors under `/api/operations`."""

    async def list(self, namespace: str | None) -> Any: ...

    async def search(self, query: str, namespace: str | None) -> Any: ...

    async def get(self, id: str) -> Any: ...

    async def call(self, id: str, input: Mapping[str, Any], *, approval: str | None = None) -> Any: ...

    async def question(self, approval: str) -> Any:
        """What is asked; None where a yes or no is wanted."""
        ...

    async def approve(self, approval: str, answer: str | None = None) -> None: ...


class Remote:
    """The operations of a running hub."""

    def __init__(self, client: HubClient) -> None:
        self._client = client

    async def list(self, namespace: str | None) -> Any:
        return await self._find(namespace=namespace)

    async def search(self, query: str, namespace: str | None) -> Any:
        return await self._find(q=query, namespace=namespace)

    async def get(self, id: str) -> Any:
        return await self._client.ask("GET", f"/api/operations/{segment(id)}")

    async def call(self, id: str, input: Mapping[str, Any], *, approval: str | None = None) -> Any:
        query = f"?{urlencode({'approval': approval})}" if approval else ""
        return await self._client.ask("POST", f"/api/operations/{segment(id)}/call{query}", body=input)

    async def question(self, approval: str) -> Any:
        return (await self._client.ask("GET", f"/api/approvals/{segment(approval)}"))["question"]

    async def approve(self, approval: str, answer: str | None = None) -> None:
        body = {"approved": True} if answer is None else {"answer": answer}
        await self._client.ask("POST", f"/api/approvals/{segment(approval)}", body=body)

    async def _find(self, **asked: str | None) -> Any:
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return await self._client.ask("GET", f"/api/operations?{query}")


class Here:
    """The operations that a hub of this configuration would have, in this process."""

    def __init__(self, registry: Registry, calls: Calls) -> None:
        self._registry = registry
        self._calls = calls

    async def list(self, namespace: str | None) -> Any:
        found = [line(operation) for operation in self._registry.list(namespace)]
        return {"operations": found, "namespaces": self._registry.namespaces()}

    async def search(self, query: str, namespace: str | None) -> Any:
        return Search(self._registry).find(query, namespace=namespace).to_json()

    async def get(self, id: str) -> Any:
        operation = self._registry.get(id)
        schemas = {"inputSchema": operation.input_schema, "outputSchema": operation.output_schema}
        return {**line(operation), "description": operation.description, **schemas}

    async def call(self, id: str, input: Mapping[str, Any], *, approval: str | None = None) -> Any:
        context = Context(approval=approval)
        return body_of(await self._calls.call(self._registry.get(id), input, context=context))

    async def question(self, approval: str) -> Any:
        return question_of((await self._calls.guard.approvals.get(approval)).question)

    async def approve(self, approval: str, answer: str | None = None) -> None:
        await self._calls.answer(approval, approved=True, by=LOCAL, reason=answer and checked(answer))


def line(operation: Operation) -> dict[str, Any]:
    return {
        "id": operation.id,
        "namespace": operation.namespace,
        "summary": summarise(operation),
        "effect": operation.effect,
        "source": operation.source,
    }


@asynccontextmanager
async def opened(
    hub: str | None, key: str | None, *, config: Path | None, places: Sequence[str]
) -> AsyncIterator[Catalog]:
    """The catalog of a hub when one is named, else that of a configuration, if there is one."""
    if hub:
        async with HubClient(hub, key) as client:
            yield Remote(client)
        return
    path = config or (HERE if HERE.exists() else None)
    said = with_operations(read_config(path), places)
    registry = registry_of(said, MemoryArtifacts(), history=MemoryHistory())
    guard = Guard(policy_of(said), MemoryApprovals(time.time), clock=time.time)
    async with Calls(registry, MemoryLedger(), guard=guard) as calls:
        yield Here(registry, calls)
