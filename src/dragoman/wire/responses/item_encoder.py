"""Encode the events of an answer as the output items of a response.

Source: wire notes on the Responses API, sections 3, 4 and 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from dragoman import events as e
from dragoman.messages import ProviderMetadata
from dragoman.wire.responses.client_tools import HUB_LABEL, ClientTool, ClientTools, ToolKind
from dragoman.wire.responses.opaque_reasoning import call_content, encrypted_content, item_id
from dragoman.wire.responses.output_items import (
    CallItem,
    CompactionItem,
    EventSequence,
    HubCallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    ReasoningItem,
    arguments_text,
)

TextEvent: TypeAlias = e.StartStep | e.TextStart | e.TextDelta | e.TextEnd
ReasoningEvent: TypeAlias = e.ReasoningStart | e.ReasoningDelta | e.ReasoningEnd
InputEvent: TypeAlias = e.ToolInputStart | e.ToolInputDelta | e.ToolInputAvailable | e.ToolInputError
OutputEvent: TypeAlias = (
    e.ToolApprovalRequest | e.ToolOutputAvailable | e.ToolOutputError | e.ToolOutputDenied
)
TEXT_EVENTS = (e.StartStep, e.TextStart, e.TextDelta, e.TextEnd)
REASONING_EVENTS = (e.ReasoningStart, e.ReasoningDelta, e.ReasoningEnd)
INPUT_EVENTS = (e.ToolInputStart, e.ToolInputDelta, e.ToolInputAvailable, e.ToolInputError)
_CALL_PREFIXES: Mapping[ToolKind, str] = {"function": "fc", "custom": "ctc", "tool_search": "tsc"}
OUTPUT_EVENTS = (e.ToolApprovalRequest, e.ToolOutputAvailable, e.ToolOutputError, e.ToolOutputDenied)


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
        self._end_last: Callable[..., None] | None = None  # ends the last item, once its status is clear
        self._reasoning: dict[str, ReasoningItem] = {}
        self._reasoning_metadata: dict[str, ProviderMetadata] = {}
        self._calls: dict[str, CallItem | HubCallItem] = {}
        self._approvals: dict[str, str] = {}
        self._signed_calls: set[str] = set()  # whose opaque part has been added
        self._sources: list[e.SourceUrl] = []  # that came before the text
        self._text_length = 0  # characters of the step's texts that have ended

    # ---- text and reasoning --------------------------------------------------------------------------

    def encode_text(self, event: TextEvent) -> None:
        """Encode text; a block without text becomes no item. Citations count from the start of its step."""
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
                    self.end_last_item()
                    self._end_last = message.close
                    self._text_length += message.text_length
            case e.StartStep():
                self._text_length = 0

    def end_last_item(self, status: ItemStatus = "completed") -> None:
        """Write the end of the message or call that has ended last, if it is not written yet.

        Whether the model's limit cut it is clear with the next event.
        """
        end, self._end_last = self._end_last, None
        if end is not None:
            end(status=status)

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
        item = MessageItem(
            self._events,
            self._next_id("msg"),
            index=len(self.output),
            is_refusal=is_refusal,
            start=self._text_length,
        )
        self._messages[id] = item
        self.output.append(item.item)
        sources, self._sources = self._sources, []
        for source in () if is_refusal else sources:
            item.cite(source)
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
            self._add_call_content(event)
            index = len(self.output)
            call_item_id = self._next_id(_CALL_PREFIXES[tool.kind])
            call = CallItem(self._events, call_item_id, index=index, call_id=id, tool=tool)
        self._calls[id] = call
        self.output.append(call.item)
        return call

    def _add_call_content(self, event: e.ToolInputStart | e.ToolInputAvailable | e.ToolInputError) -> None:
        """Add a reasoning item with what the call's provider needs back with it, if anything, once."""
        content = call_content(event.tool_call_id, event.provider_metadata)
        if content is not None and event.tool_call_id not in self._signed_calls:
            self._signed_calls.add(event.tool_call_id)
            self.end_last_item()
            item = ReasoningItem(self._events, self._next_id("rs"), index=len(self.output))
            self.output.append(item.item)
            item.close(content)

    def _end_input(self, event: e.ToolInputAvailable | e.ToolInputError) -> None:
        call = self._call(event)
        if isinstance(call, CallItem):
            self.end_last_item()
            self._end_last = partial(call.close, {} if event.input is None else event.input)
            del self._calls[event.tool_call_id]
            self._add_call_content(event)
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
        """Encode a citation of the text that is open, or of the next one."""
        message = next(reversed(self._messages.values()), None)
        if message is None:
            self._sources.append(event)
        else:
            message.cite(event)

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
        self.end_last_item()
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
