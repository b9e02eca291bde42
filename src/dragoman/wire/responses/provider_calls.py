"""Calls in the output of a response that the provider ran, or left to a client that cannot run them.

They are items of their own types. Most have their result in them; a shell's or a program's is an item of its
own, which names the call. xAI sends the steps of its searches as calls of custom tools that nobody defined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dragoman.events import Event, ToolInputAvailable, ToolInputStart, ToolOutputAvailable, ToolOutputError
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.wire.json_codec import drop_non_finite
from dragoman.wire.reasoning_metadata import bind_to_provider

_OWN_HANDLING = frozenset({"function_call", "custom_tool_call", "image_generation_call"})
_OTHER_TYPES = frozenset({"program", "mcp_approval_request"})
_SEPARATE_OUTPUT = _OTHER_TYPES | {"shell_call", "local_shell_call", "apply_patch_call", "computer_call"}
_NAMED = frozenset({"mcp_call", "mcp_approval_request", "custom_tool_call"})
_XAI_TOOLS = frozenset(
    {"x_keyword_search", "x_semantic_search", "x_user_search", "x_thread_fetch", "view_x_video"}
)
_XAI_CALL_ID = "xs_call_"
_OUTPUT_FIELDS = ("output", "outputs", "results", "result")
_INPUT_FIELDS = ("action", "queries", "code", "operation")
RAW_ITEM_TYPE = "data-responses"
"""Data with what of an output no other protocol has: an `item`, or a `part` of a message."""
NO_RESULT = "the answer ended before this call had a result: the provider leaves it to its client"


def is_provider_call(item: Mapping[str, Any]) -> bool:
    """Return whether an item is a call that the caller's tools have no part in."""
    kind = item.get("type")
    if not isinstance(kind, str):
        return False
    if kind == "custom_tool_call":
        return str(item.get("name")) in _XAI_TOOLS or str(item.get("call_id")).startswith(_XAI_CALL_ID)
    return kind in _OTHER_TYPES or (kind.endswith("_call") and kind not in _OWN_HANDLING)


class ProviderCalls:
    """The calls of one response whose results are items of their own, by call id."""

    def __init__(self, new_id: Callable[[], str], provider: str | None) -> None:
        self._new_id = new_id
        self._provider = provider
        self._open: dict[str, str] = {}  # the ids of their events

    def call_events(self, item: Mapping[str, Any]) -> list[Event]:
        """Return the events of a call, with its result if the item has it."""
        kind, name = str(item["type"]), item.get("name")
        id = item["id"] if isinstance(item.get("id"), str) and item["id"] else self._new_id()
        tool = name if kind in _NAMED and isinstance(name, str) and name else kind.removesuffix("_call")
        begin: list[Event] = [
            ToolInputStart(id, tool, provider_executed=True),
            ToolInputAvailable(id, tool, _read_input(item), provider_executed=True),
        ]
        if kind in _SEPARATE_OUTPUT:
            self._open[str(item.get("call_id") or id)] = id
            return begin
        return [*begin, self._result(id, item)]

    def output_events(self, item: Mapping[str, Any]) -> list[Event]:
        """Return the events of an item that is the result of an earlier one; none of any other item."""
        kind = item.get("type")
        is_output = isinstance(kind, str) and kind.endswith("_output")
        id = self._open.pop(str(item.get("call_id")), None) if is_output else None
        return [] if id is None else [self._result(id, item)]

    def close(self) -> list[Event]:
        """Return the events of the calls that have got no result."""
        unanswered, self._open = list(self._open.values()), {}
        return [ToolOutputError(id, NO_RESULT, provider_executed=True) for id in unanswered]

    def _result(self, id: str, item: Mapping[str, Any]) -> Event:
        metadata = bind_to_provider({"item": dict(item)}, self._provider)
        is_failed = item.get("status") == "failed"
        error = item.get("error") or (f"the call is {item['status']}" if is_failed else "")
        if error:
            return ToolOutputError(id, str(error), provider_executed=True, provider_metadata=metadata)
        output = {field: item[field] for field in _OUTPUT_FIELDS if item.get(field) is not None}
        value = output.get("output") if list(output) == ["output"] else output
        return ToolOutputAvailable(
            id, drop_non_finite(value), provider_executed=True, provider_metadata=metadata
        )


def _read_input(item: Mapping[str, Any]) -> dict[str, Any]:
    arguments = item.get("arguments", item.get("input"))
    if isinstance(arguments, str):
        try:
            arguments = decode_json(arguments)
        except DECODE_ERRORS:
            arguments = {"arguments": arguments}
    if isinstance(arguments, dict):
        return arguments
    fields = {name: item[name] for name in _INPUT_FIELDS if item.get(name) is not None}
    action = fields.get("action")
    return dict(drop_non_finite(action if isinstance(action, dict) else fields))
