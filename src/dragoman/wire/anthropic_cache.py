"""Caching: where the marks go by which Anthropic keeps the beginning of a request for the next one.

A mark says that all before it may be kept, in the order tools, system, messages. There are at most four:
behind the tools, behind the system, behind the newest message, and where the request before this one ended,
so that what it wrote is found again however much an answer has added. Nothing but the marks ever moves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.wire.openai_history import plain

MOST = 4
_MARK = "cache_control"
_UNMARKABLE = frozenset({"thinking", "redacted_thinking"})
_SETTINGS = ("tool_choice", "thinking", "output_config", "speed")


class Prefix(msgspec.Struct, frozen=True):
    """The fingerprints of what a request began with: what the provider looks for in its cache."""

    tools: bytes
    system: bytes
    settings: bytes
    blocks: tuple[bytes, ...]

    def strays(self, before: Prefix) -> str | None:
        """What has changed since the request before, so that its cache is of no use; None if nothing has."""
        if self.tools != before.tools:
            return "tools"
        if self.system != before.system:
            return "system"
        if self.settings != before.settings:
            return "settings"
        return None if self.blocks[: len(before.blocks)] == before.blocks else "messages"


def mark_places(body: Mapping[str, Any], mark: Mapping[str, Any]) -> None:
    """Mark the blocks of a body behind which it is to be kept; marks that are there already count."""
    spare = MOST - sum(_MARK in block for block in _all(body))
    for block in _places(body):
        if spare <= 0:
            return
        if _MARK not in block:
            block[_MARK] = dict(mark)
            spare -= 1


def prefix_of(body: Mapping[str, Any]) -> Prefix:
    """The fingerprints of a body. Marks do not count."""
    messages = body.get("messages", ())
    return Prefix(
        _digest([_bare(tool) for tool in body.get("tools", ())]),
        _digest([_bare(block) for block in body.get("system", ())]),
        _digest({name: body.get(name) for name in _SETTINGS}),
        tuple(_digest([said["role"], _bare(block)]) for said in messages for block in said["content"]),
    )


def _places(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The blocks to mark, the most useful first."""
    messages: Sequence[Mapping[str, Any]] = body.get("messages", ())
    last = [messages[-1]] if messages else []
    asked = [message for message in messages[:-1] if message["role"] == "user"]
    lists = [message["content"] for message in last]
    lists += [body.get("system", ()), body.get("tools", ())]
    lists += [message["content"] for message in asked[-1:]]
    for blocks in lists:
        yield from [block for block in blocks if block.get("type") not in _UNMARKABLE][-1:]


def _all(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from body.get("tools", ())
    yield from body.get("system", ())
    for message in body.get("messages", ()):
        yield from message["content"]


def _bare(block: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != _MARK}


def _digest(value: Any) -> bytes:
    return hashlib.sha256(msgspec.json.encode(value, enc_hook=plain)).digest()[:12]
