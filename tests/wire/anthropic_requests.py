"""Helpers for Anthropic requests, and the rules that every request must follow."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.messages import Message, Part, TextPart, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.wire.anthropic.request import encode_request

MARK: Any = {"type": "ephemeral", "ttl": "1h"}
MARKED: Any = {"anthropic": {"cacheControl": MARK}}
PNG = "data:image/png;base64,iVBORw0KGgo="
ASKED = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}


def encode(*messages: Message, provider: str = "up", model: str = "m", **fields: Any) -> dict[str, Any]:
    """The body of a request."""
    body = msgspec.json.decode(
        encode_request(ModelRequest(model=model, messages=messages, **fields), provider=provider)
    )
    assert isinstance(body, dict)
    obeys(body["messages"])
    return body


def history(*messages: Message, **fields: Any) -> Any:
    return encode(*messages, **fields)["messages"]


def obeys(messages: list[dict[str, Any]]) -> None:
    """Check the rules whose violation is a 400: wire notes on providers, §6.6."""
    due: list[str] = []
    seen: set[str] = set()
    for before, message in zip([None, *messages], messages, strict=False):
        assert before is None or before["role"] != message["role"]
        assert message["content"]
        ids = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        first = [block["type"] for block in message["content"][: len(ids)]]
        assert ids == due
        assert set(first) <= {"tool_result"}
        due = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        assert not seen & set(due)
        seen |= set(due)
        for block in message["content"]:
            assert block["type"] != "text" or block["text"].strip()
    assert due == []


def user(*parts: Part, id: str = "u") -> Message:
    return Message(id, "user", parts)


def assistant(*parts: Part) -> Message:
    return Message("a", "assistant", parts)


def system(*parts: Part) -> Message:
    return Message("s", "system", parts)


def tool(id: str = "toolu_a", state: Any = "output-available", name: str = "f", **fields: Any) -> ToolPart:
    return ToolPart(f"tool-{name}", id, state, **{"input": {}, **fields})


def use(id: str = "toolu_a", value: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "f", "input": value or {}, **more}


def answered(content: Any, id: str = "toolu_a", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def words(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


HI = user(TextPart("Hi"))
