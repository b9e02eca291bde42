"""JSON-RPC messages of MCP servers, and the handling of lines that are not valid ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData as Failure
from mcp.types import JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError

from dragoman.errors import TooLarge
from dragoman.json_decoding import decode_json, is_deeper_than, prune_depth
from dragoman.json_limits import JsonShape
from dragoman.large_json import weigh
from dragoman.offload import offload

PARSE_ERROR = -32700  # JSON-RPC's parse error
MAX_DEPTH = 128
MAX_VALUES = 400_000  # as many as a list of 10,000 tools with 20 fields each has
TOO_MANY = f"has more than {MAX_VALUES:,} JSON values and names, the limit"
ID_SEARCH_BYTES = 400  # bytes at either end of a message in which its id is looked for
ID_PATTERN = re.compile(rb'"id"\s*:\s*(?:(\d{1,18})|"([\w-]{1,64})")')


class UnreadableMessage(msgspec.Struct, frozen=True):
    """A line that is not a message, and the reason."""

    reason: str


async def decode_messages(line: bytes) -> list[SessionMessage | UnreadableMessage]:
    """Return the messages in a line; decodes a large one in a thread. See `parse_messages`."""
    return await offload(weigh(line), lambda: list(parse_messages(line)))


def parse_messages(line: bytes) -> Iterator[SessionMessage | UnreadableMessage]:
    """Yield the messages in a line. An unreadable response becomes the error of its request.

    So does one with more than `MAX_VALUES` values and names; it is not decoded.
    """
    shape = JsonShape(max_values=MAX_VALUES, max_depth=len(line))
    try:
        shape.feed_all(line)
    except TooLarge:
        yield error_for_unreadable(line, f"its response {TOO_MANY}") or UnreadableMessage(f"it {TOO_MANY}")
        return
    too_deep = shape.deepest > MAX_DEPTH
    value: Any = None
    try:
        value = None if too_deep else decode_json(line)
    except RecursionError:
        too_deep = True
    except ValueError:
        yield unreadable(line)
        return
    if too_deep:
        yield from parse_deep_messages(line)
        return
    for item in value if isinstance(value, list) else [value]:
        yield parse_message(item)


def parse_deep_messages(line: bytes) -> Iterator[SessionMessage | UnreadableMessage]:
    """Yield the messages in a line that is nested too deeply for the SDK.

    A list of tools comes without what is too deep, so that only those tools are left out. Any other response
    becomes the error of its request: a result is never changed silently.
    """
    try:
        value = decode_json(prune_depth(line, MAX_DEPTH))
    except (ValueError, RecursionError):
        yield unreadable(line)
        return
    for item in value if isinstance(value, list) else [value]:
        if not is_deeper_than(item, MAX_DEPTH - 1) or is_tool_list(item):
            yield parse_message(item)
        else:
            yield deep_message(item)


def has_too_many_values(text: bytes) -> bool:
    """Return whether a JSON text has more than `MAX_VALUES` values and names, without decoding it."""
    try:
        JsonShape(max_values=MAX_VALUES, max_depth=len(text)).feed_all(text)
    except TooLarge:
        return True
    return False


def is_tool_list(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("result"), dict) and "tools" in item["result"]


def deep_message(item: Any) -> SessionMessage | UnreadableMessage:
    id = item.get("id") if isinstance(item, dict) and "method" not in item else None
    if isinstance(id, int | str) and not isinstance(id, bool):
        return error_message(id, f"its response is nested more than {MAX_DEPTH} deep, the limit")
    return UnreadableMessage(f"it is nested more than {MAX_DEPTH} deep")


def unreadable(line: bytes) -> SessionMessage | UnreadableMessage:
    """Return the error of the request that a line seems to answer, which is not JSON; else the problem."""
    problem = error_for_unreadable(line, "its response is not valid JSON")
    return problem or UnreadableMessage("it is not valid JSON")


def parse_message(item: Any) -> SessionMessage | UnreadableMessage:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_python(item, by_name=False))
    except ValidationError:
        id = item.get("id") if isinstance(item, dict) and "method" not in item else None
        reason = "its response is not valid JSON-RPC: it has no readable result or error"
        if isinstance(id, int | str) and not isinstance(id, bool):
            return error_message(id, reason)
        return UnreadableMessage("it is JSON but not a JSON-RPC message")


def error_for_unreadable(line: bytes, reason: str) -> SessionMessage | None:
    """Return the error of the request that these bytes seem to answer; None if they name none."""
    for end in (line[:ID_SEARCH_BYTES], line[-ID_SEARCH_BYTES:]):
        found = ID_PATTERN.search(end)
        if found is not None and b'"method"' not in line[:ID_SEARCH_BYTES]:
            return error_message(int(found[1]) if found[1] else found[2].decode(), reason)
    return None


def error_message(id: int | str, reason: str, *, code: int = PARSE_ERROR) -> SessionMessage:
    """Return the error that a request gets when its response cannot be read."""
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=id, error=Failure(code=code, message=reason)))
