"""Helpers that the scenarios share."""

from __future__ import annotations

from typing import Any

from tests.clients.driver import Report, story_of

ASK_USER = {
    "name": "ask_user",
    "description": "Ask the user a question and wait for the answer.",
    "inputSchema": {
        "type": "object",
        "properties": {"question": {"type": "string"}},
        "required": ["question"],
    },
}
META_TOOLS = {"hub_list", "hub_search", "hub_schema", "hub_call"}


def send(text: str, **more: Any) -> dict[str, Any]:
    """The user writes and waits for the whole answer."""
    return {"do": "send", "text": text, **more}


def assert_kept(report: Report) -> None:
    """The hub keeps the story that the client shows."""
    assert story_of(report.stored) == story_of(report.messages)
