"""The tools that a model can call in one run: meta-tools, pinned operations, client tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from dragoman.agent.meta_tool_calls import InnerCall, batch_entries
from dragoman.agent.stop_conditions import called_tools
from dragoman.agent.tool_names import NAME_LIMIT, wire_name
from dragoman.errors import Conflict, NotFound
from dragoman.identity import Identity
from dragoman.messages import ToolPart
from dragoman.model_request import ModelRequest, Tool
from dragoman.operations.approval import ApprovalRequest
from dragoman.operations.batch import BatchEntry
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import Context, ProgressCallback
from dragoman.operations.meta_tools import META_TOOLS, MetaTools, meta_tool_id
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallOutcome
from dragoman.operations.registry import MAX_ID_LENGTH, Registry
from dragoman.wire.token_estimate import estimate_input, estimate_text

ToolKind = Literal["meta", "operation", "client", "unknown"]
NO_NAMES: frozenset[str] = frozenset()  # an empty set takes 216 bytes


class Toolbox:
    """The tools of one run.

    `client` are the tools that the front end runs. `meta` is None for a model without the meta-tools. Pinned
    operations that are not registered are left out. With `manual`, the caller of the run executes all tools.
    """

    def __init__(
        self,
        calls: Calls,
        meta: MetaTools | None,
        *,
        registry: Registry,
        pinned: Sequence[str | Operation] = (),
        client: Sequence[Tool] = (),
        manual: bool = False,
    ) -> None:
        self._calls = calls
        self._registry = registry
        self._meta = meta
        self._manual = manual
        self._client_names = frozenset(tool.name for tool in client) if client else NO_NAMES
        matches = [each if isinstance(each, Operation) else find_operation(registry, each) for each in pinned]
        operations = [operation for operation in matches if operation is not None]
        self._pinned = unique_names(operations)
        self._aliases = name_aliases(self._pinned)
        shown = [_as_tool(name, operation) for name, operation in self._pinned.items()]
        self.tools: tuple[Tool, ...] = (*(META_TOOLS if meta else ()), *shown, *client)

    @property
    def search_hint(self) -> str:
        """The sentence that tells a model how to find operations; empty without meta-tools."""
        return "Find operations with hub_search." if self._meta is not None else ""

    def kind(self, name: str) -> ToolKind:
        """Return where a tool of this name runs."""
        if name in self._client_names:
            return "client"
        if self._meta is not None and meta_tool_id(name):
            return "meta"
        if self._find_operation(name) is None:
            return "unknown"
        return "client" if self._manual else "operation"

    def called_operations(self, call: ToolPart) -> list[str]:
        """Return what a call called, also through `hub_call`: ids of operations, else names as written."""
        if call.name in self._client_names:
            return [call.name]
        direct, *entries = called_tools(call)
        pinned = self._find_operation(direct)
        called = [(meta_tool_id(direct) or direct) if pinned is None else pinned.id]
        for entry in entries:
            operation = find_operation(self._registry, entry)
            called.append(entry if operation is None else operation.id)
        return called

    def inner_calls(self, name: str, input: Any, *, context: Context) -> Sequence[InnerCall]:
        """Return the operations that a call of this tool runs, as far as the caller may know of them."""
        if name in self._client_names:
            return ()
        entries = batch_entries(name, input) if self._meta is not None else ()
        pinned = self._find_operation(name)
        if entries or pinned is None:
            return [self._inner_call(entry, context) for entry in entries]
        return [InnerCall(pinned.id, input if isinstance(input, Mapping) else {}, pinned.policy_effect)]

    def _inner_call(self, entry: BatchEntry, context: Context) -> InnerCall:
        try:
            operation = self._calls.get_operation(entry.tool, context)
        except NotFound:
            return InnerCall(entry.tool[:MAX_ID_LENGTH], entry.input)
        return InnerCall(operation.id, entry.input, operation.policy_effect)

    @property
    def operation_ids(self) -> Mapping[str, str]:
        """The ids of operations and meta-tools by the names that the model is shown."""
        meta = {tool.name: meta_tool_id(tool.name) or tool.name for tool in META_TOOLS}
        return {**meta, **{name: operation.id for name, operation in self._pinned.items()}}

    def tool_names(self) -> list[str]:
        """Return the names that the model is shown."""
        return [tool.name for tool in self.tools]

    def callable_name(self, id: str, *, context: Context) -> str | None:
        """Return the name by which the model can call an operation: its own tool, or its id for
        `hub_call`.
        """
        pinned = next((name for name, operation in self._pinned.items() if operation.id == id), None)
        if pinned is not None or self._meta is None:
            return pinned
        namespace = id.partition(".")[0]
        return next(
            (each.id for each in self._meta.visible_operations(context, namespace) if each.id == id), None
        )

    async def run(
        self,
        name: str,
        input: Mapping[str, Any],
        *,
        context: Context,
        on_progress: ProgressCallback | None = None,
    ) -> CallOutcome:
        """Run a meta-tool or a pinned operation and return its outcome."""
        meta = meta_tool_id(name)
        if meta and self._meta is not None:
            return await self._meta.run(meta, input, context=context, on_progress=on_progress)
        is_alias = self._registry.find_alias(name) is not None
        operation = name if is_alias else self._find_operation(name) or name
        return await self._calls.call(operation, input, context=context, on_progress=on_progress)

    async def answer_approval(
        self, approval_id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> ApprovalRequest:
        """Record an answer to an approval request.

        Returns the request as stored: an earlier answer, or the expiry, stands.
        """
        stored = await self._calls.access_control.approvals.get(approval_id)
        if stored.status != "pending":
            return stored
        try:
            return await self._calls.answer_approval(approval_id, approved=approved, by=by, reason=reason)
        except Conflict:
            return await self._calls.access_control.approvals.get(approval_id)

    async def has_started(self, approval_id: str) -> bool:
        """Return whether the call that waits for this approval has started its work."""
        return (await self._calls.access_control.approvals.get(approval_id)).state is not None

    async def seconds_left(self, approval_id: str) -> float:
        """Return the seconds until the approval request expires."""
        return await self._calls.access_control.seconds_left(approval_id)

    async def expire_approval(self, approval_id: str) -> ApprovalRequest:
        """Expire the approval request if it is due, and return it as stored."""
        return await self._calls.approval_flow.expire_if_due(approval_id)

    async def decline_call(self, call_id: str, reason: str | None) -> None:
        """Close a waiting call that was declined before it started."""
        await self._calls.approval_flow.decline_call(call_id, reason)

    def _find_operation(self, name: str) -> Operation | None:
        alias = self._registry.find_alias(name)
        if alias is not None:
            return next((each for each in self._pinned.values() if each.id == alias.target), None)
        return self._pinned.get(name) or self._aliases.get(wire_name(name))


def find_operation(registry: Registry, id: str) -> Operation | None:
    """Return the operation of this id, or None."""
    try:
        return registry.get(id)
    except NotFound:
        return None


def unique_names(operations: Sequence[Operation]) -> dict[str, Operation]:
    """Return operations by tool name; a duplicate name gets a number."""
    by_name: dict[str, Operation] = {}
    for operation in {each.id: each for each in operations}.values():
        name, number = wire_name(operation.id), 2
        while name in by_name:
            suffix = f"_{number}"
            name, number = wire_name(operation.id)[: NAME_LIMIT - len(suffix)] + suffix, number + 1
        by_name[name] = operation
    return by_name


def name_aliases(operations: Mapping[str, Operation]) -> dict[str, Operation]:
    """Return operations by every accepted name: unambiguous bare names and the tool names."""
    by_bare_name: dict[str, list[Operation]] = {}
    for operation in operations.values():
        by_bare_name.setdefault(wire_name(operation.name), []).append(operation)
    clear = {name: matches[0] for name, matches in by_bare_name.items() if len(matches) == 1}
    return {**clear, **operations}


def _as_tool(name: str, operation: Operation) -> Tool:
    return Tool(name, operation.description, operation.input_schema)


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
        """The tokens of the tools and the instructions together."""
        return self.instructions + sum(tool.tokens for tool in self.tools)

    @property
    def names(self) -> list[str]:
        """The tools' names."""
        return [tool.name for tool in self.tools]


def measure_overhead(tools: Sequence[Tool], instructions: str | None) -> Overhead:
    """Return the tools and instructions with their estimated tokens."""
    return Overhead(
        tools=tuple(ToolCost(tool.name, tool_tokens(tool), tool.description) for tool in tools),
        instructions=estimate_text(instructions or ""),
    )


def tool_tokens(tool: Tool) -> int:
    return estimate_input(ModelRequest(model="", messages=(), tools=(tool,)))
