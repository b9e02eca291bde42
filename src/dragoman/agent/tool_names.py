"""Names of tools: what a model is shown, and what `allowed_tools`, `tool_called` and `StepChange` accept."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from dragoman.model_request import Tool
from dragoman.operations.operation import Operation
from dragoman.suggestions import find_similar_name
from dragoman.wire.tool_names import fit_tool_name

MAX_NAMES_SHOWN = 50  # in an error
NAME_LIMIT = 64  # of the strictest provider


def wire_name(id: str) -> str:
    """Return an operation's id as a tool name that every provider accepts: most refuse a dot."""
    return fit_tool_name(id, NAME_LIMIT)


def matches_tool(name: str, tool: Operation | Tool) -> bool:
    """Return whether a name or pattern matches the tool."""
    return matches_id(name, tool.id if isinstance(tool, Operation) else tool.name)


def matches_id(name: str, id: str) -> bool:
    """Return whether a name or pattern matches an operation's id, tool name or bare name."""
    return any(fnmatchcase(candidate, name) for candidate in (id, wire_name(id), id.partition(".")[2]))


def describe_tools(name: str, ids: Sequence[str]) -> str:
    """Return which tools there are, and the one that a misspelt name may mean."""
    listed = ", ".join([*ids[:MAX_NAMES_SHOWN], *["…"][: len(ids) > MAX_NAMES_SHOWN]])
    id_of_bare_name = {id.partition(".")[2]: id for id in ids if "." in id}
    bare_name = find_similar_name(name, id_of_bare_name)
    similar = find_similar_name(name, ids) or (bare_name and id_of_bare_name[bare_name])
    return f"there are {listed or 'none'}" + (f"; did you mean {similar!r}?" if similar else "")
