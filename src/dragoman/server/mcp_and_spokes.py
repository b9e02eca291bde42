"""HTTP handlers of MCP servers and spokes."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec

from dragoman.errors import BadRequest, Forbidden
from dragoman.http.asgi_exchange import Exchange
from dragoman.mcp.client.client import McpClient as Clients
from dragoman.mcp.client.definition_pins import DefinitionChange
from dragoman.mcp.server_spec import ServerStatus
from dragoman.server.http.query_parameters import to_camel_case
from dragoman.spokes.hub.server import SpokeServer

MAX_BODY = 256_000


class ApproveDefinitionsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The definitions to approve, by name, or by name and hash; all without `tools`."""

    tools: list[str] | dict[str, str] | None = None


class SpokeDefinitionsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Operations of spokes, by id, or by id and the hash of the definition that was shown."""

    operations: list[str] | dict[str, str]


class McpServerEditor(Protocol):
    """Adds, removes and reconnects stored MCP servers.

    A protocol, because the layer of `app.external_operations`, which does it, is above this one.
    """

    def add(self, name: str, body: Any) -> Awaitable[ServerStatus]: ...

    def remove(self, name: str) -> Awaitable[None]: ...

    def reconnect(self, name: str) -> Awaitable[ServerStatus]: ...


class McpServerHandlers:
    """Handlers of `/api/mcp/servers` and `/api/spokes`."""

    def __init__(self, clients: Clients, spoke_server: SpokeServer, *, editor: McpServerEditor) -> None:
        self._clients = clients
        self._spoke_server = spoke_server
        self._editor = editor

    async def list(self, exchange: Exchange) -> None:
        """List all MCP servers with their status."""
        await exchange.respond(200, {"servers": [status_to_json(status) for status in self._clients.list()]})

    async def add(self, exchange: Exchange) -> None:
        """Add a server, `{"name", "command" | "url", ...}` as in the configuration; 201 with its status."""
        body = await exchange.read_json(MAX_BODY)
        name = body.pop("name", None) if isinstance(body, dict) else None
        if not isinstance(name, str):
            raise BadRequest("the body names no server", field="name", hint='send {"name": …, "url": …}')
        if body.get("command") and exchange.identity.key_id is None:
            raise Forbidden(
                "only callers with a key can add a server with a command, and this hub has no keys",
                hint="put the server into dragoman.yaml, or serve with keys",
            )
        await exchange.respond(201, status_to_json(await self._editor.add(name, body)))

    async def get(self, exchange: Exchange) -> None:
        """Return one server and its definitions that wait for approval."""
        name = exchange.path_params["name"]
        status, changes = self._clients.status(name), self._clients.changes(name)
        await exchange.respond(
            200, {**status_to_json(status), "changes": [change_to_json(each) for each in changes]}
        )

    async def log(self, exchange: Exchange) -> None:
        """Return the last lines of a server's error output, and why its connections ended."""
        lines = self._clients.recent_lines(exchange.path_params["name"])
        await exchange.respond(200, {"lines": [{"time": at, "message": line} for at, line in lines]})

    async def remove(self, exchange: Exchange) -> None:
        """Remove a server that was added; 204."""
        await self._editor.remove(exchange.path_params["name"])
        await exchange.respond(204)

    async def reconnect(self, exchange: Exchange) -> None:
        """Reconnect to a server in the background, with its current secrets."""
        await exchange.respond(
            200, status_to_json(await self._editor.reconnect(exchange.path_params["name"]))
        )

    async def approve(self, exchange: Exchange) -> None:
        """Approve definitions: `{"tools": {NAME: HASH}}` or `{"tools": [NAME, …]}`; all without a body."""
        try:
            body = msgspec.convert(await exchange.read_json(MAX_BODY), ApproveDefinitionsBody)
        except msgspec.ValidationError as error:
            raise BadRequest(
                f"the body is invalid: {error}", hint='send {"tools": {NAME: HASH}} or {"tools": [NAME]}'
            ) from None
        name, by = exchange.path_params["name"], exchange.identity.owner
        approved = await self._clients.approve(name, body.tools, by=by)
        await exchange.respond(200, {"approved": list(approved)})

    async def spokes(self, exchange: Exchange) -> None:
        """List the spokes and their operations, and the owners of namespaces."""
        owners = await self._spoke_server.namespaces()
        namespaces = [{"name": name, "owner": owner} for name, owner in owners.items()]
        await exchange.respond(200, {"spokes": self._spoke_server.status(), "namespaces": namespaces})

    async def free_namespace(self, exchange: Exchange) -> None:
        """Let another owner's spokes have a namespace; 204."""
        await self._spoke_server.operations.free_namespace(exchange.path_params["name"])
        await exchange.respond(204)

    async def definitions(self, exchange: Exchange) -> None:
        """List the operations of spokes and who may call them, also by `?namespace`."""
        found = await self._spoke_server.operations.definitions(exchange.query.get("namespace"))
        await exchange.respond(200, {"operations": [status_to_json(each) for each in found]})

    async def definition(self, exchange: Exchange) -> None:
        """Return an operation with its definition, and how that differs from the approved one."""
        found = await self._spoke_server.operations.definition(exchange.path_params["id"])
        more = {"definition": found.definition, "diff": found.diff}
        await exchange.respond(200, {**status_to_json(found), **more})

    async def approve_definitions(self, exchange: Exchange) -> None:
        """Open operations to all owners: `{"operations": {ID: HASH}}` or `{"operations": [ID]}`."""
        body = await read_definitions(exchange)
        approved = await self._spoke_server.operations.approve(body.operations, by=exchange.identity.owner)
        await exchange.respond(200, {"approved": list(approved)})

    async def revoke_definitions(self, exchange: Exchange) -> None:
        """Take back approvals: `{"operations": [ID]}`."""
        body = await read_definitions(exchange)
        revoked = await self._spoke_server.operations.revoke(list(body.operations))
        await exchange.respond(200, {"revoked": list(revoked)})


async def read_definitions(exchange: Exchange) -> SpokeDefinitionsBody:
    """Return the operations that the body names. Raises BadRequest."""
    try:
        return msgspec.convert(await exchange.read_json(MAX_BODY), SpokeDefinitionsBody)
    except msgspec.ValidationError as error:
        raise BadRequest(
            f"the body is invalid: {error}", hint='send {"operations": {ID: HASH}} or {"operations": [ID]}'
        ) from None


def status_to_json(status: msgspec.Struct) -> dict[str, Any]:
    """Return a status as JSON in camelCase."""
    body: dict[str, Any] = msgspec.to_builtins(status)
    return {to_camel_case(name): value for name, value in body.items() if value not in (None, (), [])}


def change_to_json(change: DefinitionChange) -> dict[str, Any]:
    """Return a definition that waits for approval, with its differences."""
    return {"name": change.name, "kind": change.kind, "hash": change.hash, "diff": change.diff}
