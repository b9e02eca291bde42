"""Place prompt cache breakpoints in an Anthropic request.

A breakpoint caches everything before it, in the order tools, system, messages. There are at most
four: after the tools, after the system, after the newest message, and where the previous request
ended, so that its cache entry is found however much an answer has added. Only the breakpoints ever
move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.wire.json_codec import mapping_enc_hook

MAX_BREAKPOINTS = 4
_CACHE_CONTROL = "cache_control"
_UNCACHEABLE_TYPES = frozenset({"thinking", "redacted_thinking"})
_SETTINGS_FIELDS = ("tool_choice", "thinking", "output_config", "speed")


class PromptPrefix(msgspec.Struct, frozen=True):
    """Digests of the start of a request: what the provider looks up in its cache."""

    tools: bytes
    system: bytes
    settings: bytes
    blocks: tuple[bytes, ...]

    def first_difference(self, previous: PromptPrefix) -> str | None:
        """Name what has changed since the previous request and invalidates its cache; None if nothing has."""
        if self.tools != previous.tools:
            return "tools"
        if self.system != previous.system:
            return "system"
        if self.settings != previous.settings:
            return "settings"
        return None if self.blocks[: len(previous.blocks)] == previous.blocks else "messages"


def add_cache_breakpoints(body: Mapping[str, Any], cache_control: Mapping[str, Any]) -> None:
    """Add breakpoints to the blocks of a body; existing ones count towards the limit."""
    remaining = MAX_BREAKPOINTS - sum(_CACHE_CONTROL in block for block in _all_blocks(body))
    for block in _breakpoint_blocks(body):
        if remaining <= 0:
            return
        if _CACHE_CONTROL not in block:
            block[_CACHE_CONTROL] = dict(cache_control)
            remaining -= 1


def prompt_prefix(body: Mapping[str, Any]) -> PromptPrefix:
    """Compute the digests of a body. Breakpoints are ignored."""
    messages = body.get("messages", ())
    return PromptPrefix(
        _digest([_without_cache_control(tool) for tool in body.get("tools", ())]),
        _digest([_without_cache_control(block) for block in body.get("system", ())]),
        _digest({name: body.get(name) for name in _SETTINGS_FIELDS}),
        tuple(
            _digest([message["role"], _without_cache_control(block)])
            for message in messages
            for block in message["content"]
        ),
    )


def _breakpoint_blocks(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the blocks for breakpoints, the most useful first."""
    messages: Sequence[Mapping[str, Any]] = body.get("messages", ())
    newest = [messages[-1]] if messages else []
    user_messages = [message for message in messages[:-1] if message["role"] == "user"]
    lists = [message["content"] for message in newest]
    lists += [body.get("system", ()), body.get("tools", ())]
    lists += [message["content"] for message in user_messages[-1:]]
    for blocks in lists:
        yield from [block for block in blocks if block.get("type") not in _UNCACHEABLE_TYPES][-1:]


def _all_blocks(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from body.get("tools", ())
    yield from body.get("system", ())
    for message in body.get("messages", ()):
        yield from message["content"]


def _without_cache_control(block: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != _CACHE_CONTROL}


def _digest(value: Any) -> bytes:
    return hashlib.sha256(msgspec.json.encode(value, enc_hook=mapping_enc_hook)).digest()[:12]
