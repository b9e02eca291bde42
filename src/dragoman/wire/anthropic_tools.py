"""Tools and the choice among them, as Anthropic's API takes them.

Source: wire notes on providers, §6.2 and §10.1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dragoman.request import ModelRequest, Named, Tool, ToolChoice
from dragoman.wire.anthropic_history import tool_name
from dragoman.wire.anthropic_metadata import FAMILY, cache_mark

_EXTRAS = {
    "allowed_callers": "allowedCallers",
    "defer_loading": "deferLoading",
    "eager_input_streaming": "eagerInputStreaming",
    "input_examples": "inputExamples",
}
_TYPES = {"auto": "auto", "none": "none", "required": "any"}


def write_tools(request: ModelRequest, *, forcing: bool, drop: Collection[str]) -> dict[str, Any]:
    """The fields `tools` and `tool_choice`. `forcing`: a call may be demanded; else it is only allowed."""
    if not request.tools:
        return {}
    written: dict[str, Any] = {"tools": [_tool(tool, strict="strict" not in drop) for tool in request.tools]}
    single = request.options.get("parallel_tool_calls") is False
    choice = request.tool_choice
    if "tool_choice" in drop or (choice is None and not single):
        return written
    wanted = _choice("auto" if choice is None or (forces(choice) and not forcing) else choice)
    if single and wanted["type"] != "none":
        wanted["disable_parallel_tool_use"] = True
    return {**written, "tool_choice": wanted}


def forces(choice: ToolChoice | None) -> bool:
    """Whether the choice demands a call."""
    return isinstance(choice, Named) or choice == "required"


def _tool(tool: Tool, *, strict: bool) -> dict[str, Any]:
    written: dict[str, Any] = {"name": tool_name(tool.name)}
    if tool.description:
        written["description"] = tool.description
    written["input_schema"] = {"type": "object", "properties": {}, **tool.input_schema}
    if tool.strict is not None and strict:
        written["strict"] = tool.strict
    own: Mapping[str, Any] = (tool.metadata or {}).get(FAMILY, {})
    extras = {name: own[word] for name, word in _EXTRAS.items() if own.get(word) is not None}
    return {**written, **extras, **cache_mark(tool.metadata)}


def _choice(choice: ToolChoice) -> dict[str, Any]:
    if isinstance(choice, Named):
        return {"type": "tool", "name": tool_name(choice.name)}
    return {"type": _TYPES[choice]}
