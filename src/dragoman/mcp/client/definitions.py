"""What an MCP server offers: tools, resources and prompts. Unusable ones are left out, with the reason."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import msgspec

from dragoman.json_decoding import is_deeper_than
from dragoman.operations.operation import NAME_PATTERN
from dragoman.operations.sanitize import sanitize_text

MAX_TOOLS = 10_000  # tools of one server
MAX_DEFINITION_BYTES = 262_144  # bytes of one definition
MAX_DEPTH = 64
NAME_PREVIEW_CHARS = 80

Method = Literal["tools/call", "resources/list", "resources/read", "prompts/list", "prompts/get"]


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The definition of one thing that can be called; `method` is the MCP method that calls it."""

    name: str
    input_schema: Mapping[str, Any]
    description: str = ""
    output_schema: Mapping[str, Any] | None = None
    annotations: Mapping[str, Any] | None = None
    method: Method = "tools/call"

    @property
    def body(self) -> str:
        """The definition as canonical JSON: equal definitions have equal bodies."""
        return msgspec.json.encode(self, order="sorted").decode()

    @cached_property
    def hash(self) -> str:
        """The hash of the body."""
        return hashlib.sha256(self.body.encode()).hexdigest()


class DefinitionList(msgspec.Struct, frozen=True):
    """What a server offers, and a text for each thing that was left out and why."""

    definitions: tuple[ToolDefinition, ...] = ()
    problems: tuple[str, ...] = ()


def parse_tools(tools: Sequence[Any], *, limit: int = MAX_TOOLS) -> DefinitionList:
    """Parse the tools of a `tools/list`; an invalid one is left out. Of tools with one name, take the first.

    Their hashes are computed here too, since this may run in a thread.
    """
    found: dict[str, ToolDefinition] = {}
    problems: list[str] = []
    for tool in tools[:limit]:
        wrong = tool_problem(tool) or duplicate_problem(tool, found)
        if wrong:
            problems.append(f"tool {name_preview(tool)} is left out: {wrong}")
        else:
            found[tool["name"].lower()] = parse_tool(tool)
    if len(tools) > limit:
        problems.append(
            f"{len(tools) - limit} tools are left out: this server may have {limit} (`max_tools`)"
        )
    return DefinitionList(tuple(found.values()), tuple(problems))


def parse_tool(tool: Mapping[str, Any]) -> ToolDefinition:
    definition = ToolDefinition(
        name=tool["name"],
        input_schema=tool["inputSchema"],
        description=tool.get("description") or "",
        output_schema=tool.get("outputSchema"),
        annotations=tool.get("annotations"),
    )
    _ = definition.hash
    return definition


def tool_problem(tool: Any) -> str | None:
    """Return why a tool cannot be used; None if it can."""
    if not isinstance(tool, dict):
        return "it is not an object"
    return name_problem(tool.get("name")) or type_problem(tool) or size_problem(tool)


def name_problem(name: Any) -> str | None:
    if not isinstance(name, str):
        return "it has no name"
    return None if NAME_PATTERN.fullmatch(name) else "its name is not 1 to 128 letters, digits, - _ . or /"


def type_problem(tool: Mapping[str, Any]) -> str | None:
    schema = tool.get("inputSchema")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "its input schema is not a JSON Schema of an object"
    if not isinstance(tool.get("description"), str | None):
        return "its description is not a string"
    if not all(isinstance(tool.get(key), dict | None) for key in ("outputSchema", "annotations")):
        return "its output schema or its annotations are not objects"
    return None


def size_problem(tool: Mapping[str, Any]) -> str | None:
    if is_deeper_than(tool, MAX_DEPTH):
        return f"it is nested more than {MAX_DEPTH} deep"
    size = len(msgspec.json.encode(tool))
    return (
        f"it has {size:,} bytes; the limit is {MAX_DEFINITION_BYTES:,}"
        if size > MAX_DEFINITION_BYTES
        else None
    )


def duplicate_problem(tool: Mapping[str, Any], definitions: Mapping[str, ToolDefinition]) -> str | None:
    first = definitions.get(tool["name"].lower())
    return None if first is None else f"there is a tool {first.name!r} already"


def name_preview(tool: Any) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return repr(sanitize_text(name, NAME_PREVIEW_CHARS)) if isinstance(name, str) else "without a name"


NO_INPUT: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
READ_RESOURCE: Mapping[str, Any] = {
    "type": "object",
    "properties": {"uri": {"type": "string", "description": "as resources.list gives it"}},
    "required": ["uri"],
    "additionalProperties": False,
}
GET_PROMPT: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "as prompts.list gives it"},
        "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def resource_operations() -> Sequence[ToolDefinition]:
    """Return the operations of a server that has resources."""
    return (
        ToolDefinition(
            name="resources.list",
            input_schema=NO_INPUT,
            description="List the resources of this server and the templates of their URIs.",
            method="resources/list",
        ),
        ToolDefinition(
            name="resources.read",
            input_schema=READ_RESOURCE,
            description="Read a resource of this server by its URI.",
            method="resources/read",
        ),
    )


def prompt_operations() -> Sequence[ToolDefinition]:
    """Return the operations of a server that has prompts."""
    return (
        ToolDefinition(
            name="prompts.list",
            input_schema=NO_INPUT,
            description="List the prompts of this server and their arguments.",
            method="prompts/list",
        ),
        ToolDefinition(
            name="prompts.get",
            input_schema=GET_PROMPT,
            description="Get the messages of a prompt of this server.",
            method="prompts/get",
        ),
    )


def merge(tools: DefinitionList, extras: Sequence[ToolDefinition]) -> DefinitionList:
    """Add resource and prompt operations to the tools; a tool takes precedence over one of its name."""
    names = {tool.name.lower() for tool in tools.definitions}
    added = [extra for extra in extras if extra.name not in names]
    problems = [
        f"{extra.name} of this server is left out: a tool has this name"
        for extra in extras
        if extra.name in names
    ]
    return DefinitionList((*tools.definitions, *added), (*tools.problems, *problems))
