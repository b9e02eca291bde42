"""What a model can call: the four meta-tools, the operations that its agent pins, the front end's tools."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from dragoman.errors import Conflict, NotFound
from dragoman.operations.approval import Approval
from dragoman.operations.call import Calls
from dragoman.operations.context import Context, Report
from dragoman.operations.identity import Identity
from dragoman.operations.meta import META_TOOLS, Meta, meta_name
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import Outcome
from dragoman.operations.registry import Registry
from dragoman.request import ModelRequest, Tool
from dragoman.wire.estimate import estimate_input, estimate_text

Kind = Literal["meta", "operation", "client", "unknown"]
NAME_LIMIT = 64  # of the strictest provider
UNFIT = re.compile(r"[^A-Za-z0-9_-]")


class Toolbox:
    """The tools of one run. `client` names those that run in the front end; `meta` None: no meta-tools.

    What is pinned, and not there (yet), is left out. With `manual` whoever began the run runs all of them.
    """

    def __init__(
        self,
        calls: Calls,
        meta: Meta | None,
        *,
        registry: Registry,
        pinned: Sequence[str] = (),
        client: Sequence[Tool] = (),
        manual: bool = False,
    ) -> None:
        self._calls = calls
        self._meta = meta
        self._manual = manual
        self._client = {tool.name for tool in client}
        held = [operation for id in pinned if (operation := found(registry, id)) is not None]
        self._pinned = named(held)
        self._known = spellings(self._pinned)
        shown = [_shown(name, operation) for name, operation in self._pinned.items()]
        self.tools: tuple[Tool, ...] = (*(META_TOOLS if meta else ()), *shown, *client)

    @property
    def hint(self) -> str:
        """How a model finds what it looks for."""
        return "Find operations with hub_search." if self._meta is not None else ""

    def kind(self, name: str) -> Kind:
        """Where a tool of this name would run."""
        if name in self._client:
            return "client"
        if self._meta is not None and meta_name(name):
            return "meta"
        if self._operation(name) is None:
            return "unknown"
        return "client" if self._manual else "operation"

    def names(self) -> list[str]:
        """The names that the model was shown."""
        return [tool.name for tool in self.tools]

    def way(self, id: str, *, context: Context) -> str | None:
        """The name by which a model calls an operation, if it can: a tool's, or one for `hub_call`."""
        pinned = next((name for name, operation in self._pinned.items() if operation.id == id), None)
        if pinned is not None or self._meta is None:
            return pinned
        namespace = id.partition(".")[0]
        return next((each.id for each in self._meta.visible(context, namespace) if each.id == id), None)

    async def run(
        self, name: str, input: Mapping[str, Any], *, context: Context, on_progress: Report | None = None
    ) -> Outcome:
        """Run a meta-tool or a pinned operation; the outcome says what came of it."""
        meta = meta_name(name)
        if meta and self._meta is not None:
            return await self._meta.run(meta, input, context=context, on_progress=on_progress)
        operation = self._operation(name) or name
        return await self._calls.call(operation, input, context=context, on_progress=on_progress)

    async def answer(
        self, approval_id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> Approval:
        """Take somebody's answer; where another one came first, or too late, that as it is kept."""
        kept = await self._calls.guard.approvals.get(approval_id)
        if kept.status != "pending":
            return kept
        try:
            return await self._calls.answer(approval_id, approved=approved, by=by, reason=reason)
        except Conflict:
            return await self._calls.guard.approvals.get(approval_id)

    async def has_begun(self, approval_id: str) -> bool:
        """Whether the call that this approval was for is in the midst of its work."""
        return (await self._calls.guard.approvals.get(approval_id)).state is not None

    async def seconds_left(self, approval_id: str) -> float:
        """How long this approval may still be given."""
        return await self._calls.guard.seconds_left(approval_id)

    async def expire(self, approval_id: str) -> Approval:
        """The approval as it is now; a call that nobody approved in time is not made."""
        return await self._calls.consent.expire(approval_id)

    async def decline(self, call_id: str, reason: str | None) -> None:
        """A call that waited is not made."""
        await self._calls.consent.decline(call_id, reason)

    def _operation(self, name: str) -> Operation | None:
        return self._pinned.get(name) or self._known.get(wire_name(name))


def found(registry: Registry, id: str) -> Operation | None:
    """The operation of this id, if it is there."""
    try:
        return registry.get(id)
    except NotFound:
        return None


def wire_name(id: str) -> str:
    """An operation's id as every provider takes it for a tool's name: most of them refuse a dot."""
    return UNFIT.sub("_", id)[:NAME_LIMIT]


def named(operations: Sequence[Operation]) -> dict[str, Operation]:
    """Operations by the names that a model is shown; where two would have the same, one gets a number."""
    held: dict[str, Operation] = {}
    for operation in {each.id: each for each in operations}.values():
        name, number = wire_name(operation.id), 2
        while name in held:
            end = f"_{number}"
            name, number = wire_name(operation.id)[: NAME_LIMIT - len(end)] + end, number + 1
        held[name] = operation
    return held


def spellings(held: Mapping[str, Operation]) -> dict[str, Operation]:
    """Operations by the other names that a model may use: without the namespace, if that is clear."""
    short: dict[str, list[Operation]] = {}
    for operation in held.values():
        short.setdefault(wire_name(operation.name), []).append(operation)
    clear = {name: meant[0] for name, meant in short.items() if len(meant) == 1}
    return {**clear, **held}


def _shown(name: str, operation: Operation) -> Tool:
    return Tool(name, operation.description, operation.input_schema)


# ---- Overhead: what an agent's tools and instructions take of each request, before anything is said.


class ToolCost(msgspec.Struct, frozen=True):
    """A tool as the model is shown it, and about how many tokens it takes."""

    name: str
    tokens: int
    description: str = ""


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that a model is shown, and what they and the instructions take: estimates, in tokens."""

    tools: tuple[ToolCost, ...] = ()
    instructions: int = 0

    @property
    def tokens(self) -> int:
        """All of it."""
        return self.instructions + sum(tool.tokens for tool in self.tools)

    @property
    def names(self) -> list[str]:
        """The tools' names."""
        return [tool.name for tool in self.tools]


def overhead_of(tools: Sequence[Tool], instructions: str | None) -> Overhead:
    """What these take."""
    return Overhead(
        tools=tuple(ToolCost(tool.name, cost_of(tool), tool.description) for tool in tools),
        instructions=estimate_text(instructions or ""),
    )


def cost_of(tool: Tool) -> int:
    return estimate_input(ModelRequest(model="", messages=(), tools=(tool,)))
