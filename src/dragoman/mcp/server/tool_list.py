"""The tools that an MCP client sees; the same bytes each time, so that clients can cache them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from dragoman.errors import NotFound
from dragoman.model_request import Tool
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import Context
from dragoman.operations.meta_tools import META_TOOLS, META_TOOLS_BY_ID
from dragoman.operations.operation import MAX_DESCRIPTION_LENGTH, Effect, Operation
from dragoman.operations.registry import Registry
from dragoman.operations.sanitize import sanitize_text
from dragoman.wire.tool_names import fit_tool_name

log = logging.getLogger(__name__)

NAME_LIMIT = 64  # characters of a tool name, in the strictest client
SHOWN_NAMESPACES = 40
ALWAYS_LOAD = {"anthropic/alwaysLoad": True}
"""`_meta` of a tool that a client shows also if it hides tools until they are searched for."""
BATCH_ENTRY_SCHEMA = {
    "type": "object",
    "properties": {
        "success": {"type": "boolean"},
        "result": {"description": "The result of the operation."},
        "error": {"type": "object", "description": "Why it failed, and what to correct."},
        "notes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["success"],
}
NAMESPACES_SCHEMA = {"type": "object", "additionalProperties": {"type": "integer"}}
TOOLS_SCHEMA = {"type": "array", "items": {"type": "object"}}
OUTPUT_PROPERTIES: Mapping[str, Mapping[str, Any]] = {
    "hub_list": {"namespaces": NAMESPACES_SCHEMA, "tools": TOOLS_SCHEMA, "more": {"type": "integer"}},
    "hub_search": {"tools": TOOLS_SCHEMA},
    "hub_schema": {"tool": {"type": "string"}, "inputSchema": {"type": "object"}},
    "hub_call": {"result": {"type": "array", "items": BATCH_ENTRY_SCHEMA}},
}
TITLES = {
    "hub_list": "List operations",
    "hub_search": "Search operations",
    "hub_schema": "Show an operation",
    "hub_call": "Call operations",
}
EFFECT_HINTS: Mapping[Effect, Mapping[str, bool]] = {
    "read": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True},
    "idempotent": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True},
    "once": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False},
}


def meta_tool_id(name: str) -> str | None:
    """Return `hub.call` for `hub_call`, `hub.call` and `call`, and so for all four; None for another name."""
    return META_TOOL_SPELLINGS.get(name)


def meta_tool_spellings() -> Iterator[tuple[str, str]]:
    for dotted, tool in META_TOOLS_BY_ID.items():
        for name in (dotted, tool.name, dotted.partition(".")[2]):
            yield name, dotted


def meta_tool_entry(tool: Tool) -> dict[str, Any]:
    """Return a meta-tool in the form of `tools/list`. hub_call is as destructive as what it can call."""
    acts = tool.name == "hub_call"
    output = OUTPUT_PROPERTIES[tool.name]
    return {
        "name": tool.name,
        "title": TITLES[tool.name],
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": {"type": "object", "properties": output, "required": list(output)},
        "annotations": {**EFFECT_HINTS["once" if acts else "read"], "openWorldHint": acts},
        "_meta": ALWAYS_LOAD,
    }


def pinned_tool_entry(name: str, operation: Operation) -> dict[str, Any]:
    """Return a pinned operation. Without an output schema: a shortened large result would not match it."""
    return {
        "name": name,
        "description": sanitize_text(operation.description, MAX_DESCRIPTION_LENGTH) or operation.id,
        "inputSchema": {**operation.input_schema, "type": "object"},
        "annotations": {**EFFECT_HINTS[operation.policy_effect], "openWorldHint": True},
        "_meta": ALWAYS_LOAD,
    }


META_TOOL_SPELLINGS = dict(meta_tool_spellings())
META_TOOL_ENTRIES = tuple(meta_tool_entry(tool) for tool in META_TOOLS)


class ToolList:
    """The four meta-tools and the pinned operations: ids or patterns such as `time.*`."""

    def __init__(self, registry: Registry, calls: Calls, *, pinned: Sequence[str] = ()) -> None:
        self._registry = registry
        self._calls = calls
        self.pinned = tuple(pinned)

    def tools(self, context: Context) -> list[dict[str, Any]]:
        """Return the tools that the caller may call: the four first, then by name."""
        pinned = sorted(self._visible_pinned(context).items())
        return [*META_TOOL_ENTRIES, *(pinned_tool_entry(name, operation) for name, operation in pinned)]

    def find_pinned(self, name: str, context: Context) -> Operation | None:
        """Return the pinned operation that has this tool name or id."""
        if not self.pinned:
            return None
        pinned = self._visible_pinned(context)
        return pinned.get(name) or next((each for each in pinned.values() if each.id == name), None)

    def instructions(self, context: Context) -> str:
        """Return the server's instructions: where to start, and which namespaces there are."""
        spaces = self._visible_namespaces(context)
        shown = ", ".join(spaces[:SHOWN_NAMESPACES]) or "none yet"
        more = f" and {len(spaces) - SHOWN_NAMESPACES} more" if len(spaces) > SHOWN_NAMESPACES else ""
        return (
            "A hub of operations behind four tools. Find operations with hub_search, get the schema of one"
            " with hub_schema before you call it for the first time, and call them with hub_call, up to 32"
            f" at a time. The operations are in the namespaces {shown}{more}; hub_list shows them."
        )

    def _visible_namespaces(self, context: Context) -> list[str]:
        """Return the namespaces with operations that the caller may see."""
        seen: set[str] = set()
        for operation in self._registry.list():
            if operation.namespace not in seen and self._calls.is_visible(operation, context):
                seen.add(operation.namespace)
        return sorted(seen)

    def _visible_pinned(self, context: Context) -> dict[str, Operation]:
        """Return the pinned operations by tool name."""
        pinned: dict[str, Operation] = {}
        for operation in sorted(self._pinned_operations(), key=lambda each: each.id):
            name = tool_name(operation.id)
            if meta_tool_id(name) or pinned.get(name, operation) is not operation:
                log.warning("%s is not listed: its name %r is taken", operation.id, name)
            elif self._calls.is_visible(operation, context):
                pinned[name] = operation
        return pinned

    async def wait_for_pinned(self, context: Context) -> None:
        """Wait for pinned operations of servers that are starting, if the caller may see them."""
        examples = self._calls.access_control.policy.examples()
        ids = [id for pattern in self.pinned for id in examples_of(pattern, examples)]
        await self._calls.wait_for_operations(ids, context)

    def _pinned_operations(self) -> Iterator[Operation]:
        for pattern in self.pinned:
            if "*" in pattern or "?" in pattern:
                yield from (each for each in self._registry.list() if fnmatchcase(each.id, pattern))
                continue
            try:
                yield self._registry.get(pattern)
            except NotFound:
                log.debug("the pinned operation %r is not here now", pattern)


def examples_of(pattern: str, examples: Sequence[str]) -> Sequence[str]:
    """Return ids that a pattern matches: for a caller who may see none of them, it matches nothing.

    `examples` has an id for each pattern of the policy's rules, since each may decide otherwise.
    """
    lowered = pattern.lower()
    some_id = re.sub(r"[*?]", "x", lowered)
    return [some_id, *(each for each in examples if some_id != lowered and fnmatchcase(each, lowered))]


def tool_name(id: str) -> str:
    """Return an id as a tool name that every client accepts: letters, digits, - and _, at most 64."""
    return fit_tool_name(id, NAME_LIMIT)
