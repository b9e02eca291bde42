"""A line of Claude Code's stream, as far as it is read."""

from __future__ import annotations

from typing import Any

import msgspec


class Line(msgspec.Struct, frozen=True):
    """A message of the CLI; `type` and `subtype` say which."""

    type: str
    subtype: str = ""
    session_id: str | None = None
    parent_tool_use_id: str | None = None
    model: str | None = None
    agents: Any = None
    task_id: str | None = None
    patch: Any = None
    event: msgspec.Raw = msgspec.Raw()
    message: Any = None
    error: Any = None
    is_error: bool = False
    result: Any = None
    errors: Any = None
    usage: Any = None
    models: Any = msgspec.field(default=None, name="modelUsage")
    total_cost_usd: float | None = None
    num_turns: int | None = None
    stop_reason: str | None = None
    api_error_status: int | None = None


_decoder = msgspec.json.Decoder(Line)


def read_line(raw: bytes) -> Line | None:
    """The message in a line; None when it is noise."""
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
