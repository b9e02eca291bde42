"""Tools in: the tools of a chat.completions request, and which of them the model may or must call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.errors import BadRequest
from dragoman.request import Named, Tool, ToolChoice
from dragoman.wire.openai_door_fields import Ignored, cache_mark, flag, listing, mapping, name, show, text

_NO_INPUT: Mapping[str, Any] = {"type": "object", "properties": {}}
_MODES: Mapping[str, ToolChoice] = {"auto": "auto", "none": "none", "required": "required"}


def read_tools(body: Mapping[str, Any], ignored: Ignored) -> tuple[tuple[Tool, ...], ToolChoice | None]:
    """The tools and the choice among them; `functions` and `function_call` are their old names.

    A choice of `allowed_tools` leaves the others out.
    """
    tools = [
        _tool(tool, f"tools[{index}]", ignored=ignored)
        for index, tool in enumerate(listing(body.get("tools"), "tools"))
    ]
    tools += [
        _function(function, f"functions[{index}]", ignored=ignored)
        for index, function in enumerate(listing(body.get("functions"), "functions"))
    ]
    given = body.get("tool_choice")
    if given is None:
        return tuple(tools), _old_choice(body.get("function_call"), tools)
    if isinstance(given, dict) and given.get("type") == "allowed_tools":
        return _allowed(given.get("allowed_tools"), tools)
    return tuple(tools), _choice(given, tools)


def _tool(value: Any, field: str, *, ignored: Ignored) -> Tool:
    tool = mapping(value, field)
    kind = tool.get("type")
    if kind not in (None, "function"):
        raise BadRequest(
            f"{field}.type must be 'function', got {show(kind)}",
            field=f"{field}.type",
            hint="only function tools are understood by every provider",
        )
    ignored.rest(tool, ("type", "function", "cache_control", "prompt_cache_breakpoint"), field="tools[]")
    read = _function(tool.get("function"), f"{field}.function", ignored=ignored)
    mark = cache_mark(tool, field)
    return read if mark is None else Tool(read.name, read.description, read.input_schema, read.strict, mark)


def _function(value: Any, field: str, *, ignored: Ignored) -> Tool:
    function = mapping(value, field)
    known = ("name", "description", "parameters", "strict", "cache_control")
    ignored.rest(function, known, field="tools[].function")
    schema, strict = function.get("parameters"), function.get("strict")
    return Tool(
        name(function.get("name"), f"{field}.name"),
        text(function.get("description"), f"{field}.description"),
        dict(_NO_INPUT) if schema is None else mapping(schema, f"{field}.parameters"),
        None if strict is None else flag(strict, f"{field}.strict"),
        cache_mark(function, field),
    )


def _choice(value: Any, tools: Sequence[Tool]) -> ToolChoice:
    if isinstance(value, dict):
        if value.get("type") != "function":
            raise _unknown(value.get("type"), "tool_choice.type", wanted="'function' or 'allowed_tools'")
        function = mapping(value.get("function"), "tool_choice.function")
        return _named(function.get("name"), "tool_choice.function.name", tools=tools)
    return _mode(value, "tool_choice", tools=tools)


def _old_choice(value: Any, tools: Sequence[Tool]) -> ToolChoice | None:
    if value is None:
        return None
    if isinstance(value, dict):
        return _named(value.get("name"), "function_call.name", tools=tools)
    return _mode(value, "function_call", tools=tools)


def _mode(value: Any, field: str, *, tools: Sequence[Tool]) -> ToolChoice:
    if not isinstance(value, str) or value not in _MODES:
        raise _unknown(value, field, wanted="'auto', 'none', 'required' or an object that names a tool")
    if value == "required" and not tools:
        raise BadRequest(f"{field} is 'required', but there are no tools", field=field)
    return _MODES[value]


def _named(value: Any, field: str, *, tools: Sequence[Tool]) -> Named:
    called = name(value, field)
    if not any(tool.name == called for tool in tools):
        raise BadRequest(f"{field}: {show(called)} is not among the tools", field=field)
    return Named(called)


def _allowed(value: Any, tools: Sequence[Tool]) -> tuple[tuple[Tool, ...], ToolChoice]:
    field = "tool_choice.allowed_tools"
    allowed = mapping(value, field)
    names = set()
    for index, entry in enumerate(listing(allowed.get("tools"), f"{field}.tools")):
        place = f"{field}.tools[{index}]"
        function = mapping(mapping(entry, place).get("function"), f"{place}.function")
        names.add(_named(function.get("name"), f"{place}.function.name", tools=tools).name)
    chosen = tuple(tool for tool in tools if tool.name in names)
    mode = allowed.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise _unknown(mode, f"{field}.mode", wanted="'auto' or 'required'")
    return chosen, _mode(mode, f"{field}.mode", tools=chosen)


def _unknown(value: Any, field: str, *, wanted: str) -> BadRequest:
    return BadRequest(f"{field} must be {wanted}, got {show(value)}", field=field)
