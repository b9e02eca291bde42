"""Read the usage of a whole response; web searches are counted by the items of its output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from dragoman.events import Usage
from dragoman.wire.openai.usage import read_usage


def usage_of_response(response: Mapping[str, Any], *, model: str = "") -> Usage | None:
    """Return the usage in a response object; None if it has none."""
    usage = read_usage(response.get("usage"), model=model)
    output = response.get("output")
    searches = sum(map(_is_search, output)) if isinstance(output, list) else 0
    return replace(usage, web_searches=searches) if usage is not None and searches else usage


def _is_search(item: Any) -> bool:
    """Return whether an item is a search: pages that are opened, or searched for a text, cost nothing."""
    if not isinstance(item, Mapping) or item.get("type") != "web_search_call":
        return False
    action = item.get("action")
    return item.get("status") != "failed" and (
        not isinstance(action, Mapping) or action.get("type") in (None, "search")
    )
