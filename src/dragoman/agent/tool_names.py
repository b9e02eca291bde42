"""Names of tools: what a model is shown, and what `allowed_tools` and `tool_called` accept."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from dragoman.model_request import Tool
from dragoman.operations.operation import Operation

NAME_LIMIT = 64  # of the strictest provider
INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")


def wire_name(id: str) -> str:
    """Return an operation's id as a tool name that every provider accepts: most refuse a dot."""
    return INVALID_CHARACTERS.sub("_", id)[:NAME_LIMIT]


def matches_tool(name: str, tool: Operation | Tool) -> bool:
    """Return whether a name or pattern matches the tool."""
    return matches_id(name, tool.id if isinstance(tool, Operation) else tool.name)


def matches_id(name: str, id: str) -> bool:
    """Return whether a name or pattern matches an operation's id, tool name or bare name."""
    return any(fnmatchcase(candidate, name) for candidate in (id, wire_name(id), id.partition(".")[2]))
