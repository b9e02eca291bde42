"""The workshop: the operations of an agent, what calls them, and the tools that a model is shown of them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from dragoman.agent.servers import McpServer, specs_of
from dragoman.agent.toolbox import Toolbox, wire_name
from dragoman.errors import Unavailable
from dragoman.mcp.spec import ServerStatus
from dragoman.operations.approval import Approvals, MemoryApprovals
from dragoman.operations.call import Calls
from dragoman.operations.ledger import Ledger, MemoryLedger
from dragoman.operations.meta import Meta
from dragoman.operations.operation import Operation
from dragoman.operations.permission.guard import Guard
from dragoman.operations.permission.policy import Policy
from dragoman.operations.registry import Addable, Registry
from dragoman.request import Tool

if TYPE_CHECKING:
    from dragoman.mcp.client.client import Servers

MANY = 64  # tools, above which a model is shown the four meta-tools
KEPT = 1_000  # calls that are remembered


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which tools of an agent are shown, and how.

    Names are those that a model sees (`math_add`), ids (`math.add`), bare names (`add`), or patterns of these
    (`math.*`). What is allowed is so even where it is disallowed too, and then nothing else is.
    """

    allowed: Sequence[str] | None = None
    disallowed: Sequence[str] | None = None
    client: tuple[Tool, ...] = ()
    manual: bool = False
    meta: bool | None = None

    def lets(self, tool: Operation | Tool) -> bool:
        """Whether a model may call it."""
        if self.allowed is not None:
            return any(means(name, tool) for name in self.allowed)
        return not any(means(name, tool) for name in self.disallowed or ())


class Rulings(msgspec.Struct, frozen=True, kw_only=True):
    """Who decides about calls, and where they are written down."""

    policy: Policy | None = None
    approvals: Approvals | None = None
    ledger: Ledger | None = None


class Workshop:
    """What an agent can call. Opened for MCP servers only; what is not opened need not be closed."""

    def __init__(self, operations: Sequence[Addable], mcp: Sequence[McpServer], *, rulings: Rulings) -> None:
        self.registry = Registry(*operations)
        self._specs = specs_of(mcp)
        self._rulings = rulings
        self._servers: Servers | None = None
        self._calls: Calls | None = None
        self._usual: tuple[tuple[Operation, ...], Toolbox] | None = None

    @property
    def is_open(self) -> bool:
        """Whether all that there is to connect is connected."""
        return not self._specs or self._servers is not None

    async def open(self) -> None:
        """Connect the MCP servers, and wait until each has said what it offers. Unavailable, with reasons."""
        if self.is_open:
            return
        from dragoman.mcp.client.client import Servers  # late: it loads the database layer

        self._servers = Servers(self.registry, environ=dict(os.environ))
        for spec in self._specs:
            self._servers.add(spec)
        failed = [status for status in await self._settled(self._servers) if status.state == "failed"]
        if failed:
            await self.close()
            told = "; ".join(f"{status.name}: {status.error}" for status in failed)
            raise Unavailable(f"MCP servers do not answer: {told}")

    async def close(self) -> None:
        """Let MCP servers and threads go. It may be opened again."""
        servers, self._servers = self._servers, None
        calls, self._calls, self._usual = self._calls, None, None
        try:
            if servers is not None:
                await servers.close()
        finally:
            if calls is not None:
                await calls.close()

    def servers(self) -> Sequence[ServerStatus]:
        """How the MCP servers stand."""
        return self._servers.list() if self._servers is not None else ()

    def toolbox(self, choice: Choice) -> Toolbox:
        """The tools of one run."""
        held = self.registry.list()
        if choice == USUAL:
            if self._usual is None or self._usual[0] != held:
                self._usual = (held, self._shown(held, choice))
            return self._usual[1]
        client = tuple(each for each in choice.client if choice.lets(each))
        return self._shown([each for each in held if choice.lets(each)], replace(choice, client=client))

    def unknown(self, choice: Choice) -> list[str]:
        """What to say of names in a choice that mean nothing here: slips of the pen, tools that have gone."""
        named = {"allowed_tools": choice.allowed, "disallowed_tools": choice.disallowed}
        held: Sequence[Operation | Tool]
        held = (*self.registry.list(), *choice.client) if any(named.values()) else ()
        return [
            f"{word}: there is no tool {name!r}"
            for word, names in named.items()
            for name in names or ()
            if name != "*" and not any(means(name, each) for each in held)
        ]

    def _shown(self, held: Sequence[Operation], choice: Choice) -> Toolbox:
        if not (choice.meta or (choice.meta is None and len(held) > MANY)):
            pinned = [each.id for each in held]
            return Toolbox(
                self.calls, None, registry=self.registry, pinned=pinned,
                client=choice.client, manual=choice.manual,
            )  # fmt: skip
        registry, calls = self.registry, self.calls
        if len(held) < len(registry.list()):
            registry = Registry(*held)
            calls = Calls(registry, self._ledger, guard=calls.guard, spill=calls.spill)
        return Toolbox(calls, Meta(registry, calls), registry=registry, client=choice.client)

    @property
    def calls(self) -> Calls:
        """What calls the operations."""
        if self._calls is None:
            approvals = self._rulings.approvals or MemoryApprovals(time.time)
            guard = Guard(self._rulings.policy or Policy(), approvals, clock=time.time)
            self._ledger = self._rulings.ledger or MemoryLedger(keep=KEPT)
            self._calls = Calls(self.registry, self._ledger, guard=guard)
        return self._calls

    async def _settled(self, servers: Servers) -> Sequence[ServerStatus]:
        try:
            return await servers.settled()
        except BaseException:
            await self.close()
            raise


USUAL = Choice()


def means(name: str, tool: Operation | Tool) -> bool:
    """Whether a name, or a pattern of names, means an operation, or a tool that is run outside."""
    known = (tool.id, wire_name(tool.id), tool.name) if isinstance(tool, Operation) else (tool.name,)
    return any(fnmatchcase(each, name) for each in known)
