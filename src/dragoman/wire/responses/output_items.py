"""The output items of a response: encoded from the events of an answer, each with its complete ladder.

Every client needs another rung of the ladder, so none is left out: an item is added, its parts are added,
grow and are done, and the item is done, whole. Source: wire notes on the Responses API, sections 3, 4 and 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from dragoman import events as e
from dragoman.json_text import DECODE_ERRORS, decode_json
from dragoman.messages import ProviderMetadata
from dragoman.wire import json_codec
from dragoman.wire.responses.client_tools import CUSTOM_INPUT, HUB_LABEL, ClientTool, ClientTools
from dragoman.wire.responses.compaction import COMPACTION, seal_summary
from dragoman.wire.responses.opaque_reasoning import encrypted_content, item_id

ItemStatus = Literal["in_progress", "completed", "incomplete"]
_encode = msgspec.json.Encoder().encode
TextEvent: TypeAlias = e.TextStart | e.TextDelta | e.TextEnd
ReasoningEvent: TypeAlias = e.ReasoningStart | e.ReasoningDelta | e.ReasoningEnd
InputEvent: TypeAlias = e.ToolInputStart | e.ToolInputDelta | e.ToolInputAvailable | e.ToolInputError
OutputEvent: TypeAlias = (
    e.ToolApprovalRequest | e.ToolOutputAvailable | e.ToolOutputError | e.ToolOutputDenied
)
TEXT_EVENTS = (e.TextStart, e.TextDelta, e.TextEnd)
REASONING_EVENTS = (e.ReasoningStart, e.ReasoningDelta, e.ReasoningEnd)
INPUT_EVENTS = (e.ToolInputStart, e.ToolInputDelta, e.ToolInputAvailable, e.ToolInputError)
OUTPUT_EVENTS = (e.ToolApprovalRequest, e.ToolOutputAvailable, e.ToolOutputError, e.ToolOutputDenied)


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
    """A message with one part: text, or a refusal."""

    def __init__(self, events: EventSequence, id: str, *, index: int, is_refusal: bool) -> None:
        item = {"id": id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        super().__init__(events, item, index=index)
        self._is_refusal = is_refusal
        self._texts: list[str] = []
        self._annotations: list[dict[str, Any]] = []
        self._length = 0
        self._kind = "refusal" if is_refusal else "output_text"
        self._prefix = self.delta_prefix(f"{self._kind}.delta", content_index=0)
        self.write("content_part.added", content_index=0, part=self._part(""))

    def append(self, delta: str) -> None:
        """Append text."""
        self._texts.append(delta)
        self._length += len(delta)
        if self._is_refusal:
            self.events.write_delta(self._prefix, delta)
        else:
            self.events.write_delta(self._prefix, delta, suffix=_TEXT_DELTA_END)

    def cite(self, url: str, title: str | None) -> None:
        """Add a citation at the current end of the text."""
        place = {"start_index": self._length, "end_index": self._length}
        annotation = {"type": "url_citation", "url": url, "title": title or url, **place}
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


class CallItem(OutputItem):
    """A call that the client runs."""

    def __init__(self, events: EventSequence, id: str, *, index: int, call_id: str, tool: ClientTool) -> None:
        self._is_custom = tool.kind == "custom"
        item: dict[str, Any] = {
            "id": id,
            "type": "custom_tool_call" if self._is_custom else "function_call",
            "status": "in_progress",
            "call_id": call_id,
            "name": tool.name,
            "input" if self._is_custom else "arguments": "",
        }
        if tool.namespace is not None:
            item["namespace"] = tool.namespace
        super().__init__(events, item, index=index)
        self._texts: list[str] = []
        self._prefix = self.delta_prefix("function_call_arguments.delta")

    def append(self, fragment: str) -> None:
        """Append to the arguments; those of a custom tool are read from JSON when they are complete."""
        self._texts.append(fragment)
        if fragment and not self._is_custom:
            self.events.write_delta(self._prefix, fragment)

    def close(self, arguments: Any = None, *, status: ItemStatus = "completed") -> None:
        """End the arguments and the item; `arguments` count if none were streamed."""
        text = "".join(self._texts)
        if not text.strip() and arguments is not None:
            text = arguments_text(arguments)
            self._append_late(text)
        if self._is_custom:
            text = custom_input(text)
            self.write("custom_tool_call_input.delta", delta=text)
            self.write("custom_tool_call_input.done", input=text)
            self.finish(status=status, input=text)
            return
        self.write("function_call_arguments.done", name=self.item["name"], arguments=text)
        self.finish(status=status, arguments=text)

    def _append_late(self, text: str) -> None:
        if not self._is_custom:
            self.events.write_delta(self._prefix, text)


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
        self._prefix = self.delta_prefix("mcp_call_arguments.delta")
        self.write("mcp_call.in_progress")

    def append(self, fragment: str) -> None:
        """Append to the arguments."""
        self._texts.append(fragment)
        if fragment:
            self.events.write_delta(self._prefix, fragment)

    def end_arguments(self, arguments: Any) -> None:
        """End the arguments; `arguments` count if none were streamed."""
        text = "".join(self._texts)
        if not text.strip() and arguments is not None:
            text = arguments_text(arguments)
            self.events.write_delta(self._prefix, text)
        self.item["arguments"] = text
        self.write("mcp_call_arguments.done", arguments=text)

    def close(self, *, output: str | None = None, error: str | None = None) -> None:
        """End the call with its output, or with its error."""
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


class ItemEncoder:
    """Encodes the output items of one response.

    `hub_runs_calls`: calls of tools that the client does not have are run by the hub.
    """

    def __init__(
        self, events: EventSequence, tools: ClientTools, *, base_id: str, hub_runs_calls: bool
    ) -> None:
        self.output: list[dict[str, Any]] = []
        self._events = events
        self._tools = tools
        self._base_id = base_id
        self._hub_runs_calls = hub_runs_calls
        self._refusal_ids: set[str] = set()
        self._messages: dict[str, MessageItem] = {}
        self._reasoning: dict[str, ReasoningItem] = {}
        self._reasoning_metadata: dict[str, ProviderMetadata] = {}
        self._calls: dict[str, CallItem | HubCallItem] = {}
        self._approvals: dict[str, str] = {}

    # ---- text and reasoning --------------------------------------------------------------------------

    def encode_text(self, event: TextEvent) -> None:
        """Encode text; a block without text becomes no item."""
        match event:
            case e.TextStart(id=id, provider_metadata=metadata):
                is_refusal = bool((metadata or {}).get("openai", {}).get("refusal"))
                (self._refusal_ids.add if is_refusal else self._refusal_ids.discard)(id)
            case e.TextDelta(id=id, delta=delta):
                if delta:
                    (self._messages.get(id) or self._open_message(id)).append(delta)
            case e.TextEnd(id=id):
                message = self._messages.pop(id, None)
                if message is not None:
                    message.close()

    def encode_reasoning(self, event: ReasoningEvent) -> None:
        """Encode reasoning; a block that has neither text nor anything opaque becomes no item."""
        match event:
            case e.ReasoningStart(id=id, provider_metadata=metadata):
                self._reasoning_metadata[id] = dict(metadata or {})
            case e.ReasoningDelta(id=id, delta=delta, provider_metadata=metadata):
                self._merge_metadata(id, metadata)
                if delta:
                    (self._reasoning.get(id) or self._open_reasoning(id)).append(delta)
            case e.ReasoningEnd(id=id, provider_metadata=metadata):
                self._merge_metadata(id, metadata)
                self._end_reasoning(id)

    def _open_message(self, id: str) -> MessageItem:
        is_refusal = id in self._refusal_ids
        item = MessageItem(self._events, self._next_id("msg"), index=len(self.output), is_refusal=is_refusal)
        self._messages[id] = item
        self.output.append(item.item)
        return item

    def _open_reasoning(self, id: str) -> ReasoningItem:
        provider_id = item_id(self._reasoning_metadata.get(id))
        item = ReasoningItem(self._events, provider_id or self._next_id("rs"), index=len(self.output))
        self._reasoning[id] = item
        self.output.append(item.item)
        return item

    def _merge_metadata(self, id: str, update: ProviderMetadata | None) -> None:
        metadata = self._reasoning_metadata.setdefault(id, {})
        for family, values in (update or {}).items():
            metadata[family] = {**metadata.get(family, {}), **values}

    def _end_reasoning(self, id: str) -> None:
        encrypted = encrypted_content(self._reasoning_metadata.get(id))
        item = self._reasoning.get(id)
        if item is None and encrypted is not None:
            item = self._open_reasoning(id)
        self._reasoning.pop(id, None)
        self._reasoning_metadata.pop(id, None)
        if item is not None:
            item.close(encrypted)

    # ---- calls ---------------------------------------------------------------------------------------

    def encode_input(self, event: InputEvent) -> None:
        """Encode the beginning or the arguments of a call."""
        match event:
            case e.ToolInputStart():
                self._call(event)
            case e.ToolInputDelta(tool_call_id=id, input_text_delta=fragment):
                if id in self._calls:
                    self._calls[id].append(fragment)
            case e.ToolInputAvailable() | e.ToolInputError():
                self._end_input(event)

    def encode_output(self, event: OutputEvent) -> None:
        """Encode what becomes of a call that the hub runs."""
        match event:
            case e.ToolApprovalRequest(approval_id=approval_id, tool_call_id=id):
                self._approvals[id] = approval_id
            case e.ToolOutputAvailable(tool_call_id=id, output=output, preliminary=preliminary):
                if not preliminary:
                    self._end_hub_call(id, output=arguments_text(output))
            case e.ToolOutputError(tool_call_id=id, error_text=text):
                self._end_hub_call(id, error=text)
            case e.ToolOutputDenied(tool_call_id=id):
                self._end_hub_call(id, error="the call was not approved")

    def _call(
        self, event: e.ToolInputStart | e.ToolInputAvailable | e.ToolInputError
    ) -> CallItem | HubCallItem:
        id, index = event.tool_call_id, len(self.output)
        call = self._calls.get(id)
        if call is not None:
            return call
        tool = self._tools.find(event.tool_name)
        if event.provider_executed or (tool is None and self._hub_runs_calls):
            call = HubCallItem(self._events, self._next_id("mcp"), index=index, name=event.tool_name)
        else:
            tool = tool or ClientTool(name=event.tool_name)
            prefix = "fc" if tool.kind == "function" else "ctc"
            call = CallItem(self._events, self._next_id(prefix), index=index, call_id=id, tool=tool)
        self._calls[id] = call
        self.output.append(call.item)
        return call

    def _end_input(self, event: e.ToolInputAvailable | e.ToolInputError) -> None:
        call = self._call(event)
        if isinstance(call, CallItem):
            call.close({} if event.input is None else event.input)
            del self._calls[event.tool_call_id]
            return
        call.end_arguments({} if event.input is None else event.input)
        if isinstance(event, e.ToolInputError):
            self._end_hub_call(event.tool_call_id, error=event.error_text)

    def _end_hub_call(self, id: str, *, output: str | None = None, error: str | None = None) -> None:
        call = self._calls.get(id)
        if isinstance(call, HubCallItem):
            del self._calls[id]
            if id in self._approvals:
                call.item["approval_request_id"] = self._approvals.pop(id)
            call.close(output=output, error=error)

    # ---- the rest ------------------------------------------------------------------------------------

    def open_compaction(self) -> CompactionItem:
        """Begin the compaction that is the answer."""
        item = CompactionItem(self._events, self._next_id("cmp"), index=len(self.output))
        self.output.append(item.item)
        return item

    def add_compaction(self, sealed: str) -> None:
        """Add a compaction that was made before the answer."""
        self.open_compaction().finish(encrypted_content=sealed)

    def encode_source(self, event: e.SourceUrl) -> None:
        """Encode a citation, if a text is open that it can belong to."""
        for message in reversed(self._messages.values()):
            message.cite(event.url, event.title)
            return

    def encode_file(self, event: e.File) -> None:
        """Encode a generated image; other files have no item."""
        head, comma, data = event.url.partition(";base64,")
        if not (comma and head.startswith("data:image/")):
            return
        item = {"id": self._next_id("ig"), "type": "image_generation_call", "status": "in_progress"}
        image = OutputItem(self._events, {**item, "result": None}, index=len(self.output))
        self.output.append(image.item)
        image.write("image_generation_call.in_progress")
        image.write("image_generation_call.completed")
        image.finish(status="completed", result=data)

    def request_approval(self, approval_id: str, tool_call_id: str) -> None:
        """Add the item that asks the client to approve a call of the hub."""
        call = self._calls.pop(tool_call_id, None)
        if not isinstance(call, HubCallItem):
            return
        call.close(error="the call waits for its approval")
        item = {
            "id": approval_id,
            "type": "mcp_approval_request",
            "server_label": HUB_LABEL,
            "name": call.item["name"],
            "arguments": call.item["arguments"],
        }
        request = OutputItem(self._events, item, index=len(self.output))
        self.output.append(request.item)
        request.finish()

    def close(self, status: ItemStatus = "completed") -> None:
        """End all items that are open; calls of the hub have failed then."""
        for message in self._messages.values():
            message.close(status)
        for id in list(self._reasoning):
            self._end_reasoning(id)
        for id, call in list(self._calls.items()):
            if isinstance(call, CallItem):
                call.close(status="incomplete")
            else:
                waits = id in self._approvals
                self._end_hub_call(
                    id, error="the call waits for an approval in the hub" if waits else "the call was stopped"
                )
        self._messages.clear()
        self._calls.clear()

    def add_empty_message(self) -> None:
        """Add a message without text: clients loop on a response without output."""
        item = MessageItem(self._events, self._next_id("msg"), index=len(self.output), is_refusal=False)
        self.output.append(item.item)
        item.close()

    def _next_id(self, prefix: str) -> str:
        return f"{prefix}_{self._base_id}{len(self.output):04d}"
