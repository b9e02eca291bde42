"""The operations and MCP servers of a library agent, and the tools that its model is shown."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from dragoman.agent.mcp_server_specs import McpServer, server_specs
from dragoman.agent.tool_names import describe_tools, matches_id, matches_tool
from dragoman.agent.tools.toolbox import Toolbox
from dragoman.errors import ConfigError, Unavailable
from dragoman.mcp.server_spec import ServerStatus
from dragoman.model_request import Tool
from dragoman.operations.approval import ApprovalStore, MemoryApprovalStore
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.ledger import Ledger, MemoryLedger
from dragoman.operations.meta_tools import META_TOOLS, MetaTools, meta_tool_id
from dragoman.operations.operation import Operation
from dragoman.operations.permission.access_control import AccessControl
from dragoman.operations.permission.policy import Policy
from dragoman.operations.registry import OperationSource, Registry

if TYPE_CHECKING:
    from dragoman.mcp.client.client import McpClient

MAX_SHOWN_TOOLS = 64  # tools, above which a model is shown the four meta-tools
LEDGER_CALLS = 1_000  # calls that are remembered


class ToolSelection(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of an agent that one run shows, and how.

    Names are tool names (`math_add`), ids (`math.add`), bare names (`add`) or patterns of these (`math.*`).
    `allowed` takes precedence over `disallowed`, and excludes everything that it does not name.
    """

    allowed: Sequence[str] | None = None
    disallowed: Sequence[str] | None = None
    client_tools: tuple[Tool, ...] = ()
    manual: bool = False
    meta_tools: bool | None = None

    def allows(self, tool: Operation | Tool) -> bool:
        """Return whether the selection includes the tool."""
        if self.allowed is not None:
            return any(matches_tool(name, tool) for name in self.allowed)
        return not any(matches_tool(name, tool) for name in self.disallowed or ())


class CallServices(msgspec.Struct, frozen=True, kw_only=True):
    """The policy, approval store and ledger that calls use; None takes the default."""

    policy: Policy | None = None
    approvals: ApprovalStore | None = None
    ledger: Ledger | None = None


class AgentTools:
    """The operations of an agent. Only MCP servers need `open` and `close`."""

    def __init__(
        self, operations: Sequence[OperationSource], mcp: Sequence[McpServer], *, services: CallServices
    ) -> None:
        self.registry = Registry(*operations)
        self._specs = server_specs(mcp)
        self._services = services
        self._servers: McpClient | None = None
        self._calls: Calls | None = None
        self._default_toolbox: tuple[tuple[Operation, ...], Toolbox] | None = None

    @property
    def is_open(self) -> bool:
        """Whether every MCP server is connected."""
        return not self._specs or self._servers is not None

    async def open(self) -> None:
        """Connect the MCP servers and wait for their tool lists.

        Raises Unavailable with the reason of each server that failed.
        """
        if self.is_open:
            return
        from dragoman.mcp.client.client import McpClient  # late: it loads the database layer

        self._servers = McpClient(self.registry, environ=dict(os.environ))
        for spec in self._specs:
            self._servers.add(spec)
        failed = [status for status in await self._wait_connected(self._servers) if status.state == "failed"]
        if failed:
            await self.close()
            failures = "; ".join(f"{status.name}: {status.error}" for status in failed)
            raise Unavailable(f"MCP servers did not connect: {failures}")

    async def close(self) -> None:
        """Disconnect the MCP servers and stop the worker threads. `open` may be called again."""
        servers, self._servers = self._servers, None
        calls, self._calls, self._default_toolbox = self._calls, None, None
        try:
            if servers is not None:
                await servers.close()
        finally:
            if calls is not None:
                await calls.close()

    def abandon(self) -> None:
        """Release the threads; for tools whose event loop has ended without `close`."""
        if self._calls is not None:
            self._calls.release_threads()

    def servers(self) -> Sequence[ServerStatus]:
        """Return the status of each MCP server."""
        return self._servers.list() if self._servers is not None else ()

    def toolbox(self, selection: ToolSelection) -> Toolbox:
        """Return the tools of one run."""
        operations = self.registry.list()
        if selection == DEFAULT_SELECTION:
            if self._default_toolbox is None or self._default_toolbox[0] != operations:
                self._default_toolbox = (operations, self._make_toolbox(operations, selection))
            return self._default_toolbox[1]
        client = tuple(each for each in selection.client_tools if selection.allows(each))
        return self._make_toolbox(
            [each for each in operations if selection.allows(each)], replace(selection, client_tools=client)
        )

    def unknown_names(self, selection: ToolSelection) -> list[str]:
        """Return a notice for each name in a selection that matches no tool."""
        selections = {"allowed_tools": selection.allowed, "disallowed_tools": selection.disallowed}
        tools: Sequence[Operation | Tool]
        tools = (*self.registry.list(), *selection.client_tools) if any(selections.values()) else ()
        return [
            f"{argument}: there is no tool {name!r}"
            for argument, names in selections.items()
            for name in names or ()
            if name != "*" and not any(matches_tool(name, each) for each in tools)
        ]

    def require_names(self, names: Sequence[str], client_tools: Sequence[Tool], *, argument: str) -> None:
        """Raise ConfigError for a name that matches no tool, unless MCP servers are not connected yet."""
        if not names or not self.is_open:
            return
        ids = [*(each.id for each in self.registry.list()), *(tool.name for tool in client_tools)]
        meta_ids = [meta_tool_id(tool.name) or tool.name for tool in META_TOOLS]
        for name in names:
            if not any(matches_id(name, id) for id in (*ids, *meta_ids)):
                raise ConfigError(f"{argument}: there is no tool {name!r}; {describe_tools(name, ids)}")

    def _make_toolbox(self, operations: Sequence[Operation], selection: ToolSelection) -> Toolbox:
        if not (selection.meta_tools or (selection.meta_tools is None and len(operations) > MAX_SHOWN_TOOLS)):
            pinned = [each.id for each in operations]
            return Toolbox(
                self.calls, None, registry=self.registry, pinned=pinned,
                client=selection.client_tools, manual=selection.manual,
            )  # fmt: skip
        registry, calls = self.registry, self.calls
        if len(operations) < len(registry.list()):
            registry = Registry(*operations)
            calls = Calls(
                registry, self._ledger, access_control=calls.access_control, overflow=calls.overflow
            )
        return Toolbox(calls, MetaTools(registry, calls), registry=registry, client=selection.client_tools)

    @property
    def calls(self) -> Calls:
        """The service that calls the operations."""
        if self._calls is None:
            approvals = self._services.approvals or MemoryApprovalStore(time.time)
            guard = AccessControl(self._services.policy or Policy(), approvals, clock=time.time)
            self._ledger = self._services.ledger or MemoryLedger(max_calls=LEDGER_CALLS)
            self._calls = Calls(self.registry, self._ledger, access_control=guard)
        return self._calls

    async def _wait_connected(self, servers: McpClient) -> Sequence[ServerStatus]:
        try:
            return await servers.wait_until_started()
        except BaseException:
            await self.close()
            raise


DEFAULT_SELECTION = ToolSelection()
