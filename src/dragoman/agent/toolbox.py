"""What a model can call: the four meta-tools, the operations that its agent pins, the front end's tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dragoman.errors import Conflict, NotFound
from dragoman.operations.approval import Approval
from dragoman.operations.call import Calls
from dragoman.operations.context import Context, Report
from dragoman.operations.identity import Identity
from dragoman.operations.meta import META_TOOLS, Meta, meta_name
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import Outcome
from dragoman.operations.registry import Registry
from dragoman.request import Tool

Kind = Literal["meta", "operation", "client", "unknown"]


class Toolbox:
    """The tools of one run. `client` names those that run in the front end.

    What is pinned, and not there (yet) or not allowed to whom the `context` names, is left out.
    """

    def __init__(
        self,
        calls: Calls,
        meta: Meta,
        *,
        registry: Registry,
        context: Context,
        pinned: Sequence[str] = (),
        client: Sequence[Tool] = (),
    ) -> None:
        self._calls = calls
        self._meta = meta
        self._registry = registry
        self._client = {tool.name for tool in client}
        there = [operation for id in pinned if (operation := found(registry, id)) is not None]
        held = [operation for operation in there if calls.is_visible(operation, context)]
        self._pinned = {wire_name(operation.id): operation for operation in held}
        shown = [_shown(operation) for operation in held]
        self.tools: tuple[Tool, ...] = (*META_TOOLS, *shown, *client)

    def kind(self, name: str) -> Kind:
        """Where a tool of this name would run."""
        if name in self._client:
            return "client"
        if meta_name(name):
            return "meta"
        return "operation" if self._operation(name) else "unknown"

    def names(self) -> list[str]:
        """The names that the model was shown."""
        return [tool.name for tool in self.tools]

    async def run(
        self, name: str, input: Mapping[str, Any], *, context: Context, on_progress: Report | None = None
    ) -> Outcome:
        """Run a meta-tool or a pinned operation; the outcome says what came of it."""
        meta = meta_name(name)
        if meta:
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

    def _operation(self, name: str) -> Operation | None:
        return self._pinned.get(wire_name(name))


def found(registry: Registry, id: str) -> Operation | None:
    """The operation of this id, if it is there."""
    try:
        return registry.get(id)
    except NotFound:
        return None


def wire_name(id: str) -> str:
    """An operation's id as a model is shown it: most of them refuse a dot."""
    return id.replace(".", "_")


def _shown(operation: Operation) -> Tool:
    return Tool(wire_name(operation.id), operation.description, operation.input_schema)
