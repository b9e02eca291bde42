"""The output items of a response, each with its complete sequence of stream events.

Every client needs another rung of the ladder, so none is left out: an item is added, its parts are added,
grow and are done, and the item is done, whole. Source: wire notes on the Responses API, sections 3, 4 and 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dragoman.events import SourceUrl
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.wire import json_codec
from dragoman.wire.responses.client_tools import CUSTOM_INPUT, HUB_LABEL, ClientTool, ToolKind
from dragoman.wire.responses.compaction import COMPACTION, seal_summary
from dragoman.wire.source_tracker import cited_place

ItemStatus = Literal["in_progress", "completed", "incomplete"]
_encode = msgspec.json.Encoder().encode


class EventSequence:
    """The stream events of one response as SSE frames, numbered from 0."""

    def __init__(self) -> None:
        self.number = 0
        self._frames: list[bytes] = []

    def write(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Add one event."""
        body = json_codec.encode_document({"type": kind, "sequence_number": self.number, **fields})
        self._frames.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), body))
        self.number += 1

    def write_delta(self, prefix: bytes, delta: str, *, suffix: bytes = b"}\n\n") -> None:
        """Add a delta whose other fields are encoded already: `prefix` ends before the sequence number."""
        self._frames.append(b"%b%d,%b%b" % (prefix, self.number, b'"delta":' + _encode(delta), suffix))
        self.number += 1

    def take(self) -> bytes:
        """Return the frames since the last call."""
        frames, self._frames = self._frames, []
        return b"".join(frames)


class OutputItem:
    """An item that is being written. `place` are its id and index, which all of its events repeat."""

    def __init__(self, events: EventSequence, item: dict[str, Any], *, index: int) -> None:
        self.item = item
        self.events = events
        self.place = {"item_id": item["id"], "output_index": index}
        events.write("response.output_item.added", {"output_index": index, "item": {**item}})

    def write(self, kind: str, **fields: Any) -> None:
        """Write an event of this item."""
        self.events.write(f"response.{kind}", {**self.place, **fields})

    def delta_prefix(self, kind: str, **fields: int) -> bytes:
        """Return the beginning of a delta event; see `EventSequence.write_delta`."""
        head = _encode({"type": f"response.{kind}", **self.place, **fields})
        return b'event: response.%b\ndata: %b,"sequence_number":' % (kind.encode(), head[:-1])

    def finish(self, **fields: Any) -> None:
        """Write the end of the item, whole."""
        self.item |= fields
        self.events.write(
            "response.output_item.done", {"output_index": self.place["output_index"], "item": self.item}
        )


_TEXT_DELTA_END = b',"logprobs":[]}\n\n'


class MessageItem(OutputItem):
    """A message with one part: text, or a refusal. `start` is the length of its step's text before it."""

    def __init__(
        self, events: EventSequence, id: str, *, index: int, is_refusal: bool, start: int = 0
    ) -> None:
        item = {"id": id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        super().__init__(events, item, index=index)
        self._is_refusal = is_refusal
        self._texts: list[str] = []
        self._annotations: list[dict[str, Any]] = []
        self._start = start
        self.text_length = 0
        self._kind = "refusal" if is_refusal else "output_text"
        self._prefix = self.delta_prefix(f"{self._kind}.delta", content_index=0)
        self.write("content_part.added", content_index=0, part=self._part(""))

    def append(self, delta: str) -> None:
        """Append text."""
        self._texts.append(delta)
        self.text_length += len(delta)
        if self._is_refusal:
            self.events.write_delta(self._prefix, delta)
        else:
            self.events.write_delta(self._prefix, delta, suffix=_TEXT_DELTA_END)

    def cite(self, source: SourceUrl) -> None:
        """Add a citation where its provider places it, or else at the current end of the text."""
        place = cited_place(source)
        start, end = (index - self._start for index in place) if place else (0, 0)
        if not 0 <= start < end <= self.text_length:
            start = end = self.text_length
        annotation = {
            "type": "url_citation",
            "url": source.url,
            "title": source.title or source.url,
            "start_index": start,
            "end_index": end,
        }
        fields = {"annotation_index": len(self._annotations), "annotation": annotation}
        self._annotations.append(annotation)
        self.write("output_text.annotation.added", content_index=0, **fields)

    def close(self, status: ItemStatus = "completed") -> None:
        """End the text, the part and the item."""
        text = json_codec.encode_once("".join(self._texts))
        part = self._part(text)
        if self._is_refusal:
            self.write("refusal.done", content_index=0, refusal=text)
        else:
            self.write("output_text.done", content_index=0, text=text, logprobs=[])
        self.write("content_part.done", content_index=0, part=part)
        self.finish(status=status, content=[part])

    def _part(self, text: str | msgspec.Raw) -> dict[str, Any]:
        if self._is_refusal:
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "text": text, "annotations": self._annotations, "logprobs": []}


class CompactionItem(OutputItem):
    """A compaction, whose summary is being written. Clients see that it grows, not how."""

    def __init__(self, events: EventSequence, id: str, *, index: int) -> None:
        super().__init__(events, {"id": id, "type": COMPACTION, "encrypted_content": ""}, index=index)
        self._texts: list[str] = []

    def append(self, delta: str) -> None:
        """Append to the summary."""
        self._texts.append(delta)
        self.write("compaction.compacting")

    def close(self) -> None:
        """End the item, with the whole summary."""
        self.finish(encrypted_content=seal_summary("".join(self._texts)))


class ReasoningItem(OutputItem):
    """The model's reasoning, with one summary part if it has a text."""

    def __init__(self, events: EventSequence, id: str, *, index: int) -> None:
        super().__init__(events, {"id": id, "type": "reasoning", "summary": []}, index=index)
        self._texts: list[str] = []
        self._prefix = self.delta_prefix("reasoning_summary_text.delta", summary_index=0)

    def append(self, delta: str) -> None:
        """Append text."""
        if not self._texts:
            part = {"type": "summary_text", "text": ""}
            self.write("reasoning_summary_part.added", summary_index=0, part=part)
        self._texts.append(delta)
        self.events.write_delta(self._prefix, delta)

    def close(self, encrypted: str | None = None) -> None:
        """End the text and the item, with what its provider needs back."""
        if not self._texts:
            self.finish(encrypted_content=encrypted)
            return
        part = {"type": "summary_text", "text": json_codec.encode_once("".join(self._texts))}
        self.write("reasoning_summary_text.done", summary_index=0, text=part["text"])
        self.write("reasoning_summary_part.done", summary_index=0, part=part)
        self.finish(summary=[part], encrypted_content=encrypted)


# By kind of tool: the fields of a call of it as it begins.
_NEW_CALLS: Mapping[ToolKind, Mapping[str, Any]] = {
    "function": {"type": "function_call", "arguments": ""},
    "custom": {"type": "custom_tool_call", "input": ""},
    "tool_search": {"type": "tool_search_call", "execution": "client", "arguments": {}},
}


class CallItem(OutputItem):
    """A call that the client runs."""

    def __init__(self, events: EventSequence, id: str, *, index: int, call_id: str, tool: ClientTool) -> None:
        self._kind = tool.kind
        item: dict[str, Any] = {
            "id": id,
            "status": "in_progress",
            "call_id": call_id,
            **_NEW_CALLS[tool.kind],
        }
        if tool.kind != "tool_search":
            item["name"] = tool.name
        if tool.namespace is not None:
            item["namespace"] = tool.namespace
        super().__init__(events, item, index=index)
        self._texts: list[str] = []
        self._prefix = self.delta_prefix("function_call_arguments.delta")

    def append(self, fragment: str) -> None:
        """Append to the arguments; those of other tools are read from JSON when they are complete."""
        self._texts.append(fragment)
        if fragment and self._kind == "function":
            self.events.write_delta(self._prefix, fragment)

    def close(self, arguments: Any = None, *, status: ItemStatus = "completed") -> None:
        """End the arguments and the item; `arguments` count if none were streamed."""
        text = "".join(self._texts)
        if not text.strip() and arguments is not None:
            text = arguments_text(arguments)
            if self._kind == "function":
                self.events.write_delta(self._prefix, text)
        match self._kind:
            case "function":
                self.write("function_call_arguments.done", name=self.item["name"], arguments=text)
                self.finish(status=status, arguments=text)
            case "custom":
                text = custom_input(text)
                self.write("custom_tool_call_input.delta", delta=text)
                self.write("custom_tool_call_input.done", input=text)
                self.finish(status=status, input=text)
            case "tool_search":
                self.finish(status=status, arguments=search_arguments(text))


class HubCallItem(OutputItem):
    """A call that the hub runs, or the provider: the client sees it with its output."""

    def __init__(self, events: EventSequence, id: str, *, index: int, name: str) -> None:
        item = {
            "id": id,
            "type": "mcp_call",
            "status": "in_progress",
            "server_label": HUB_LABEL,
            "name": name,
            "arguments": "",
            "output": None,
            "error": None,
            "approval_request_id": None,
        }
        super().__init__(events, item, index=index)
        self._texts: list[str] = []
        self._has_arguments = False
        self._prefix = self.delta_prefix("mcp_call_arguments.delta")
        self.write("mcp_call.in_progress")

    def append(self, fragment: str) -> None:
        """Append to the arguments."""
        self._texts.append(fragment)
        if fragment:
            self.events.write_delta(self._prefix, fragment)

    def end_arguments(self, arguments: Any = None) -> None:
        """End the arguments; `arguments` count if none were streamed."""
        self._has_arguments = True
        text = "".join(self._texts)
        if not text.strip() and arguments is not None:
            text = arguments_text(arguments)
            self.events.write_delta(self._prefix, text)
        self.item["arguments"] = text
        self.write("mcp_call_arguments.done", arguments=text)

    def close(self, *, output: str | None = None, error: str | None = None) -> None:
        """End the call with its output, or with its error."""
        if not self._has_arguments:  # it was stopped before
            self.end_arguments()
        self.write("mcp_call.completed" if error is None else "mcp_call.failed")
        problem = None
        if error is not None:
            problem = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": error}]}
        self.finish(status="completed" if error is None else "failed", output=output, error=problem)


def arguments_text(arguments: Any) -> str:
    """Return arguments or an output as text: JSON, unless it is a text already."""
    return arguments if isinstance(arguments, str) else _encode(arguments).decode()


def custom_input(arguments: str) -> str:
    """Return the text in a custom tool's arguments; what is not the agreed JSON counts as the text."""
    try:
        value = decode_json(arguments)
    except DECODE_ERRORS:
        return arguments
    text = value.get(CUSTOM_INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


def search_arguments(arguments: str) -> dict[str, Any]:
    """Return the arguments of a search for tools; what is not the agreed JSON counts as the query."""
    try:
        value = decode_json(arguments)
    except DECODE_ERRORS:
        value = None
    return value if isinstance(value, dict) else {"query": arguments}
