"""What a model can call: the four meta-tools, the operations that its agent pins, the front end's tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dragoman.errors import InvalidInput, NotFound
from dragoman.operations.batch import read_batch
from dragoman.operations.call import Calls
from dragoman.operations.context import Context
from dragoman.operations.meta import META_TOOLS, Meta, meta_name
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import Outcome
from dragoman.operations.registry import Registry
from dragoman.request import Tool

Kind = Literal["meta", "operation", "client", "unknown"]


class Toolbox:
    """The tools of one run. `client` names those that run in the front end."""

    def __init__(
        self,
        calls: Calls,
        meta: Meta,
        *,
        registry: Registry,
        pinned: Sequence[str] = (),
        client: Sequence[Tool] = (),
    ) -> None:
        self._calls = calls
        self._meta = meta
        self._registry = registry
        self._client = {tool.name for tool in client}
        held = [registry.get(id) for id in pinned]
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

    def asks(self, name: str, input: Mapping[str, Any]) -> bool:
        """True when somebody has to approve the call: of such an operation, or of a batch that has one."""
        if meta_name(name) != "hub.call":
            operation = self._operation(name)
            return operation is not None and operation.approval
        try:
            return any(self._gated(entry.tool) for entry in read_batch(input))
        except InvalidInput:
            return False  # nothing of it will run

    def names(self) -> list[str]:
        """The names that the model was shown."""
        return [tool.name for tool in self.tools]

    async def run(self, name: str, input: Mapping[str, Any], *, context: Context) -> Outcome:
        """Run a meta-tool or a pinned operation; the outcome says what came of it."""
        meta = meta_name(name)
        if meta:
            return await self._meta.run(meta, input, context=context)
        return await self._calls.call(self._operation(name) or name, input, context=context)

    def _gated(self, name: str) -> bool:
        try:
            return self._registry.get(name).approval
        except NotFound:
            return False

    def _operation(self, name: str) -> Operation | None:
        return self._pinned.get(wire_name(name))


def wire_name(id: str) -> str:
    """An operation's id as a model is shown it: most of them refuse a dot."""
    return id.replace(".", "_")


def _shown(operation: Operation) -> Tool:
    return Tool(wire_name(operation.id), operation.description, operation.input_schema)
