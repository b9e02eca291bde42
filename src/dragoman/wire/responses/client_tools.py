"""Parse the tools of a Responses request, and keep the way back from a model's call to the client's tool.

Models of other families know functions with a JSON Schema and one flat list of names. Tools of a namespace
get the namespace in front of their name; a custom tool, whose input is free text, becomes a function with one
string; a search for tools that the client runs is a function, and what it has found is offered like the
other tools. Tools that a provider would run itself have no neutral equivalent: they are dropped and reported.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from dragoman.errors import BadRequest
from dragoman.model_request import NamedToolChoice, Tool, ToolChoice
from dragoman.wire.client_request import MAX_TOOLS, check_count
from dragoman.wire.openai.field_reader import (
    IgnoredFields,
    describe_value,
    read_boolean,
    read_list,
    read_nonempty_string,
    read_object,
    read_optional_string,
)

HUB_LABEL = "dragoman"
"""The `server_label` of calls that the hub runs, and of an MCP tool with which a client declares them."""
CUSTOM_INPUT = "input"
TOOL_SEARCH = "tool_search"
SEARCH_OUTPUT = "tool_search_output"
TOOL_ITEMS = ("additional_tools", SEARCH_OUTPUT)
"""Items of a request that have tools."""
ToolKind: TypeAlias = Literal["function", "custom", "tool_search"]
MAX_NAME = 64  # characters of a function's name
_SEPARATOR = "__"
_UNSAFE = re.compile(r"[^a-zA-Z0-9_-]")
_EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}
_FUNCTION_FIELDS = (
    *("type", "name", "description", "parameters", "strict"),
    *("execution", "defer_loading"),  # of a search for tools, and of what it finds
)
_CUSTOM_FIELDS = ("type", "name", "description", "format", "defer_loading")
_CHOICE_MODES: Mapping[str, ToolChoice] = {"auto": "auto", "none": "none", "required": "required"}


class ClientTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as the client knows it."""

    name: str
    namespace: str | None = None
    kind: ToolKind = "function"


class ClientTools:
    """The tools of one request. A tool that is defined twice counts as it was defined last."""

    def __init__(self, ignored: IgnoredFields | None = None) -> None:
        self.declares_hub = False
        """Whether the client declared an MCP tool for the calls that the hub runs: it answers approvals."""
        self._ignored = ignored or IgnoredFields()
        self._tools: dict[str, Tool] = {}  # by flat name
        self._clients: dict[str, ClientTool] = {}
        self._flat_names: dict[tuple[str | None, str], str] = {}

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools as a model gets them."""
        return tuple(self._tools.values())

    def find(self, flat_name: str) -> ClientTool | None:
        """Return the client's tool that a model calls; None if the client has none of that name."""
        return self._clients.get(flat_name)

    def is_search(self, flat_name: str) -> bool:
        """Return whether a tool is the client's search for others."""
        client = self._clients.get(flat_name)
        return client is not None and client.kind == "tool_search"

    def flat_name(self, name: str, namespace: str | None) -> str:
        """Return the name under which a model sees a tool, also one that is no longer offered.

        OpenAI calls a tool that its search has loaded by its name in a namespace of that name.
        """
        found = self._flat_names.get((namespace, name))
        if found is None and namespace == name:
            found = self._flat_names.get((None, name))
        return found or flatten(name, namespace)

    def add(self, values: Any, field: str) -> None:
        """Parse a list of tools. BadRequest names the invalid field."""
        tools = read_list(values, field)
        for index, value in enumerate(tools):
            self._add_tool(read_object(value, f"{field}[{index}]"), f"{field}[{index}]", namespace=None)
        check_count(len(self._tools), field, limit=MAX_TOOLS)

    def _add_tool(self, tool: Mapping[str, Any], field: str, *, namespace: str | None) -> None:
        match tool.get("type"):
            case "function":
                self._add_function(tool, field, namespace=namespace)
            case "custom":
                self._add_custom(tool, field, namespace=namespace)
            case "tool_search" if tool.get("execution") == "client":
                self._add_function({**tool, "name": TOOL_SEARCH}, field, kind="tool_search")
            case "namespace" if namespace is None:
                self._ignored.add_unknown(tool, ("type", "name", "tools"), field="tools[].namespace")
                name = read_nonempty_string(tool.get("name"), f"{field}.name")
                for index, inner in enumerate(read_list(tool.get("tools"), f"{field}.tools")):
                    path = f"{field}.tools[{index}]"
                    self._add_tool(read_object(inner, path), path, namespace=name)
            case "mcp":
                self._add_mcp(tool, field)
            case str(kind) if kind:
                self._ignored.add_unknown({kind[:60]: True}, (), field="tools[].type")
            case kind:
                raise BadRequest(
                    f"{field}.type must be the type of a tool, got {describe_value(kind)}",
                    field=f"{field}.type",
                )

    def _add_function(
        self,
        tool: Mapping[str, Any],
        field: str,
        *,
        namespace: str | None = None,
        kind: ToolKind = "function",
    ) -> None:
        self._ignored.add_unknown(tool, _FUNCTION_FIELDS, field="tools[]")
        schema, strict = tool.get("parameters"), tool.get("strict")
        name = read_nonempty_string(tool.get("name"), f"{field}.name")
        self._put(
            ClientTool(name=name, namespace=namespace, kind=kind),
            description=read_optional_string(tool.get("description"), f"{field}.description"),
            schema=dict(_EMPTY_SCHEMA) if schema is None else read_object(schema, f"{field}.parameters"),
            strict=None if strict is None else read_boolean(strict, f"{field}.strict"),
        )

    def _add_custom(self, tool: Mapping[str, Any], field: str, *, namespace: str | None) -> None:
        self._ignored.add_unknown(tool, _CUSTOM_FIELDS, field="tools[]")
        name = read_nonempty_string(tool.get("name"), f"{field}.name")
        description = read_optional_string(tool.get("description"), f"{field}.description")
        text = "The text."
        grammar = tool.get("format")
        if isinstance(grammar, Mapping) and isinstance(grammar.get("definition"), str):
            syntax = grammar.get("syntax") if isinstance(grammar.get("syntax"), str) else "given"
            text = f"The text. It must match this {syntax} grammar:\n{grammar['definition']}"
        self._put(
            ClientTool(name=name, namespace=namespace, kind="custom"),
            description=description,
            schema={
                "type": "object",
                "properties": {CUSTOM_INPUT: {"type": "string", "description": text}},
                "required": [CUSTOM_INPUT],
                "additionalProperties": False,
            },
            strict=None,
        )

    def _add_mcp(self, tool: Mapping[str, Any], field: str) -> None:
        label = read_nonempty_string(tool.get("server_label"), f"{field}.server_label")
        if label == HUB_LABEL:
            self.declares_hub = True
            return
        raise BadRequest(
            f"{field}: MCP servers called by the provider are supported by OpenAI's own API only",
            field=field,
            hint="add the server to the hub, and ask an agent as agent/NAME",
        )

    def _put(
        self, client: ClientTool, *, description: str, schema: Mapping[str, Any], strict: bool | None
    ) -> None:
        key = (client.namespace, client.name)
        flat = self._flat_names.get(key) or self._free_name(flatten(client.name, client.namespace))
        self._flat_names[key] = flat
        self._clients[flat] = client
        self._tools[flat] = Tool(flat, description, schema, strict)

    def _free_name(self, flat: str) -> str:
        names = (flat, *(f"{flat[: MAX_NAME - 5]}_{number}" for number in range(2, MAX_TOOLS)))
        return next(name for name in names if name not in self._clients)

    def describe_found(self, values: Any, field: str) -> str:
        """Return what a model reads as the result of a search for tools, which are among the tools now."""
        names = [
            self.flat_name(str(tool.get("name")), namespace)
            for namespace, tool in _unfold(read_list(values, field))
            if isinstance(tool, Mapping)
        ]
        return f"These tools can be called now: {', '.join(names)}" if names else "No tools were found."

    # ---- the tool choice -----------------------------------------------------------------------------

    def choose(self, value: Any) -> tuple[tuple[Tool, ...], ToolChoice | None]:
        """Return the tools that may be called, and the neutral tool choice. BadRequest."""
        match value:
            case None:
                return self.tools, None
            case str():
                return self.tools, self._mode(value, "tool_choice", offered=self.tools)
            case {"type": "function" | "custom"}:
                return self.tools, NamedToolChoice(self._named(value, "tool_choice"))
            case {"type": "allowed_tools"}:
                return self._allowed(value)
            case {"type": str(kind)}:
                raise BadRequest(
                    f"tool_choice: {kind!r:.60} is run only by providers of the Responses API",
                    field="tool_choice",
                    hint="leave tool_choice out, or ask a model of a provider of type responses",
                )
            case _:
                raise BadRequest(
                    f"tool_choice must be a mode or an object with a type, got {describe_value(value)}",
                    field="tool_choice",
                )

    def _allowed(self, value: Mapping[str, Any]) -> tuple[tuple[Tool, ...], ToolChoice]:
        names = set(self._allowed_names(read_list(value.get("tools"), "tool_choice.tools")))
        allowed = tuple(tool for tool in self.tools if tool.name in names)
        return allowed, self._mode(value.get("mode", "auto"), "tool_choice.mode", offered=allowed)

    def _allowed_names(self, values: Sequence[Any]) -> Iterator[str]:
        for index, entry in enumerate(values):
            field = f"tool_choice.tools[{index}]"
            tool = read_object(entry, field)
            if tool.get("type") in ("function", "custom"):
                yield self._named(tool, field)
            else:
                name = str(tool.get("type"))[:60]
                self._ignored.add_unknown({name: True}, (), field="tool_choice.tools[].type")

    def _named(self, value: Mapping[str, Any], field: str) -> str:
        name = read_nonempty_string(value.get("name"), f"{field}.name")
        namespace = read_optional_string(value.get("namespace"), f"{field}.namespace") or None
        flat = self._flat_names.get((namespace, name))
        if flat is None:
            raise BadRequest(f"{field}: {describe_value(name)} is not among the tools", field=f"{field}.name")
        return flat

    def _mode(self, value: Any, field: str, *, offered: Sequence[Tool]) -> ToolChoice:
        if not isinstance(value, str) or value not in _CHOICE_MODES:
            raise BadRequest(
                f"{field} must be 'auto', 'none', 'required' or an object that names a tool, "
                f"got {describe_value(value)}",
                field=field,
            )
        if value == "required" and not offered:
            raise BadRequest(f"{field} is 'required', but there are no functions", field=field)
        return _CHOICE_MODES[value]


def flatten(name: str, namespace: str | None) -> str:
    """Return the flat name of a tool: safe for every provider, at most `MAX_NAME` characters."""
    if namespace is None:
        return name
    flat = _UNSAFE.sub("_", f"{namespace}{_SEPARATOR}{name}")
    if len(flat) <= MAX_NAME:
        return flat
    digest = hashlib.sha256(flat.encode()).hexdigest()[:8]
    return f"{flat[: MAX_NAME - 9]}_{digest}"


def _unfold(tools: Sequence[Any]) -> Iterator[tuple[str | None, Any]]:
    """Yield tools with their namespace."""
    for tool in tools:
        if isinstance(tool, Mapping) and tool.get("type") == "namespace":
            yield from ((tool.get("name"), inner) for inner in tool.get("tools") or ())
        else:
            yield None, tool
