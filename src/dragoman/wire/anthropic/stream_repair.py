"""Repair events of a relayed Messages stream that Anthropic's SDKs cannot read.

The SDKs build a message by adding up its events. They fail at an event before `message_start`, at a block or
delta that is missing, null or without its text, at an index other than the block's position, and at a missing
usage. Only such events are changed. Source: wire notes on providers, §6.3, and the SDKs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dragoman.json_decoding import parse_digits
from dragoman.wire.tool_calls import CallIds

_TEXT_FIELDS = {"text": "text", "thinking": "thinking"}  # block type -> field to which deltas are added
_DELTA_FIELDS = {  # delta type -> its field
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
_MESSAGE_DEFAULTS: Mapping[str, Any] = {
    "id": "msg_unnamed",
    "type": "message",
    "role": "assistant",
    "model": "",
    "content": [],
    "usage": {"input_tokens": 0, "output_tokens": 0},
}


class EventRepair:
    """Repairs the events of one stream, depending on the earlier ones."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self.open_index: int | None = None
        """The index of the open block, if it equals the block's position: its deltas need no repair."""
        self._started = False
        self._types: list[str] = []  # of the blocks, by position
        self._positions: dict[int, int] = {}  # of the open blocks, by the server's index
        self._call_ids = CallIds(new_id)
        self._stop_reason: str | None = None
        self._output_tokens = 0

    @property
    def has_blocks(self) -> bool:
        """Whether the message has begun a block."""
        return bool(self._types)

    def repair(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the events to pass on for one: the same object if it needs no repair."""
        match event.get("type"):
            case "message_start":
                return [self._repair_start(event)]
            case "content_block_start":
                return [*self._missing_start(), *self._start_block(event)]
            case "content_block_delta":
                return self._repair_delta(event)
            case "content_block_stop":
                return self._stop_block(event)
            case "message_delta":
                return [*self._missing_start(), self._repair_end(event)]
            case _:
                return [event]

    def _repair_start(self, event: dict[str, Any]) -> dict[str, Any]:
        self._started = True
        message = event.get("message")
        fields = message if isinstance(message, Mapping) else {}
        missing = {
            name: default
            for name, default in _MESSAGE_DEFAULTS.items()
            if not isinstance(fields.get(name), type(default))
        }
        content = fields.get("content")
        self._types = [_type_of(block) for block in content] if isinstance(content, list) else []
        return {**event, "message": {**fields, **missing}} if missing else event

    def _missing_start(self) -> list[dict[str, Any]]:
        if self._started:
            return []
        self._started = True
        message = {**_MESSAGE_DEFAULTS, "stop_reason": None, "stop_sequence": None}
        return [{"type": "message_start", "message": message}]

    def _start_block(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        index = _as_index(event.get("index"))
        if index is not None and index in self._positions:
            return []  # the block is open already
        position = len(self._types)
        self._positions[position if index is None else index] = position
        content_block = event.get("content_block")
        block = content_block if isinstance(content_block, Mapping) else {}
        block_type = _type_of(block)
        self._types.append(block_type)
        missing: dict[str, Any] = {} if block.get("type") == block_type else {"type": block_type}
        field = _TEXT_FIELDS.get(block_type)
        if field is not None and not isinstance(block.get(field), str):
            missing[field] = ""
        if block_type == "tool_use":
            missing |= {} if isinstance(block.get("input"), Mapping) else {"input": {}}
            missing |= own_id(block, self._call_ids)
        self.open_index = position if event.get("index") == position else None
        if not missing and self.open_index is not None:
            return [event]
        return [{**event, "index": position, "content_block": {**block, **missing}}]

    def _repair_delta(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        fields = event.get("delta")
        delta_type = fields.get("type") if isinstance(fields, Mapping) else None
        if isinstance(fields, Mapping) and not isinstance(delta_type, str):
            delta_type = next((name for name, field in _DELTA_FIELDS.items() if field in fields), None)
        if not isinstance(fields, Mapping) or delta_type is None:
            return []
        field = _DELTA_FIELDS.get(delta_type)
        if field is not None and not isinstance(fields.get(field), str):
            return []
        before, position = self._find_block(event.get("index"), delta_type)
        if position is None:
            return []
        if not before and event.get("index") == position and fields.get("type") == delta_type:
            return [event]
        return [*before, {**event, "index": position, "delta": {**fields, "type": delta_type}}]

    def _find_block(self, index: Any, delta_type: str) -> tuple[list[dict[str, Any]], int | None]:
        """Return events that start the block of a delta, if it is missing, and the block's position."""
        number = _as_index(index)
        position = self._positions.get(number) if number is not None else self._last_position()
        if position is not None:
            return [], position
        block_type = {"text_delta": "text", "thinking_delta": "thinking"}.get(delta_type)
        if block_type is None:
            return [], self._last_position()
        start: dict[str, Any] = {"type": "content_block_start", "content_block": {"type": block_type}}
        if number is not None:
            start["index"] = number
        return [*self._missing_start(), *self._start_block(start)], len(self._types) - 1

    def _last_position(self) -> int | None:
        return len(self._types) - 1 if self._types else None

    def _stop_block(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        index = _as_index(event.get("index"))
        self.open_index = None
        if index is None:
            index = next(reversed(self._positions), None)
        position = None if index is None else self._positions.pop(index, None)
        if position is None:
            return []
        return [event if event.get("index") == position else {**event, "index": position}]

    def _repair_end(self, event: dict[str, Any]) -> dict[str, Any]:
        """Repair a `message_delta`: a later one without a stop reason would remove that of the first."""
        delta = _as_object(event.get("delta"))
        usage = _as_object(event.get("usage")) or _as_object(delta.get("usage"))
        reason, count = delta.get("stop_reason"), usage.get("output_tokens")
        self._stop_reason = reason if isinstance(reason, str) and reason else self._stop_reason
        self._output_tokens = count if isinstance(count, int) else self._output_tokens
        is_whole = event.get("usage") is usage and "stop_reason" in delta and count is not None
        if is_whole and reason == self._stop_reason:
            return event
        return {
            **event,
            "delta": {"stop_sequence": None, **delta, "stop_reason": self._stop_reason},
            "usage": {**usage, "output_tokens": self._output_tokens},
        }


def own_id(call: Mapping[str, Any], ids: CallIds) -> dict[str, str]:
    """Return `{"id": new id}` if a call has no id or one that is used, else nothing."""
    id = ids.take(call.get("id"))
    return {} if id == call.get("id") else {"id": id}


def _as_object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _type_of(block: Any) -> str:
    block_type = block.get("type") if isinstance(block, Mapping) else None
    return block_type if isinstance(block_type, str) else "text"


def _as_index(value: Any) -> int | None:
    """Return an index, also from text, as some servers write it; None for any other value."""
    if isinstance(value, str):
        return parse_digits(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def encode_event(event: Mapping[str, Any]) -> bytes:
    """Encode a repaired event. A lone surrogate stays, since its other half may follow."""
    try:
        return msgspec.json.encode(event)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(event, separators=(",", ":")).encode()
