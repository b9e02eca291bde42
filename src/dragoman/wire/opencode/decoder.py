"""Decode OpenCode's stream: the lines of `opencode run --format json` to events.

One answer is a whole run of several steps, in which OpenCode calls its own tools. A text, or the reasoning,
arrives in one line when it is complete, and so does a tool call: with its outcome. Source: OpenCode's `run`
command (step_start, text, reasoning, tool_use, step_finish, error).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.wire.provider_errors import provider_error


class OpenCodeLine(msgspec.Struct, frozen=True):
    """A line; `type` says what `part` is."""

    type: str
    session_id: str | None = msgspec.field(default=None, name="sessionID")
    part: dict[str, Any] = {}
    error: Any = None


_decoder = msgspec.json.Decoder(OpenCodeLine)


class OpenCodeDecoder:
    """Decodes one answer. `session_id` is known after the first line; `usage` sums the steps."""

    def __init__(self) -> None:
        self.session_id: str | None = None
        self.unparsed_line = ""
        """The last line that is not an event."""
        self.usage: e.Usage | None = None
        self.cost: float | None = None
        self._block_count = 0
        self._call_ids: set[str] = set()

    def feed(self, raw: bytes) -> list[e.Event]:
        """Return the events of one line; ProviderError if it reports a failure. Other output is ignored."""
        try:
            line = decode_json(raw, _decoder)
        except DECODE_ERRORS:
            self.unparsed_line = raw.decode(errors="replace").strip() or self.unparsed_line
            return []
        self.session_id = line.session_id or self.session_id
        match line.type:
            case "text":
                return self._read_text(line.part, (e.TextStart, e.TextDelta, e.TextEnd))
            case "reasoning":
                return self._read_text(line.part, (e.ReasoningStart, e.ReasoningDelta, e.ReasoningEnd))
            case "tool_use":
                return self._read_call(line.part)
            case "step_finish":
                self._add_usage(line.part)
                return []
            case "error":
                raise provider_error(error_text(line.error))
            case _:
                return []

    def _read_text(
        self,
        part: Mapping[str, Any],
        kinds: tuple[
            type[e.TextStart | e.ReasoningStart],
            type[e.TextDelta | e.ReasoningDelta],
            type[e.TextEnd | e.ReasoningEnd],
        ],
    ) -> list[e.Event]:
        text = part.get("text")
        if not isinstance(text, str) or not text:
            return []
        start, delta, end = kinds
        self._block_count += 1
        id = f"opencode-{self._block_count}"
        return [start(id), delta(id, text), end(id)]

    def _read_call(self, part: Mapping[str, Any]) -> list[e.Event]:
        """Return a call and its outcome; a call that was reported before, only the outcome."""
        id, name, state = part.get("callID"), part.get("tool"), part.get("state")
        if not (isinstance(id, str) and isinstance(name, str) and isinstance(state, Mapping)):
            return []
        events: list[e.Event] = []
        if id not in self._call_ids:
            self._call_ids.add(id)
            events = [
                e.ToolInputStart(id, name, provider_executed=True, dynamic=True),
                e.ToolInputAvailable(
                    id, name, state.get("input") or {}, provider_executed=True, dynamic=True
                ),
            ]
        match state.get("status"):
            case "completed":
                output = state.get("output")
                events.append(e.ToolOutputAvailable(id, output, provider_executed=True, dynamic=True))
            case "error":
                text = str(state.get("error") or "the call failed")
                events.append(e.ToolOutputError(id, text, provider_executed=True, dynamic=True))
            case _:
                pass
        return events

    def _add_usage(self, part: Mapping[str, Any]) -> None:
        tokens, cost = part.get("tokens"), part.get("cost")
        if isinstance(cost, int | float):
            self.cost = (self.cost or 0.0) + cost
        if not isinstance(tokens, Mapping):
            return
        cache = tokens.get("cache")
        cache = cache if isinstance(cache, Mapping) else {}
        read, written = count(cache, "read"), count(cache, "write")
        used_input = count(tokens, "input") + read + written
        reasoning = count(tokens, "reasoning")
        used_output = count(tokens, "output") + reasoning
        usage = e.Usage(
            input_tokens=used_input,
            output_tokens=used_output,
            total_tokens=used_input + used_output,
            reasoning_tokens=reasoning or None,
            cached_input_tokens=read or None,
            cache_write_tokens=written or None,
        )
        self.usage = usage if self.usage is None else self.usage + usage


def count(tokens: Mapping[str, Any], name: str) -> int:
    """Return a count of tokens; 0 for what is not one."""
    value = tokens.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def error_text(error: Any) -> str:
    """Return the message of a reported error."""
    if isinstance(error, Mapping):
        data = error.get("data")
        message = data.get("message") if isinstance(data, Mapping) else error.get("message")
        return str(message or error.get("name") or "OpenCode reported an error")
    return str(error or "OpenCode reported an error")
