"""Convert events to Anthropic content blocks, one open at a time.

Anthropic's blocks are sequential, those of other families overlap (parallel calls): events of a later block
wait until the open one is complete. Empty texts and thinking are omitted, since Anthropic's API rejects them
when they are sent back. Web pages that an answer names become citations of the text that they came with, or
of the next one. Calls that another family's provider ran itself are omitted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from dragoman import events as e
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.messages import ProviderMetadata
from dragoman.wire.anthropic.block_decoders import RAW_BLOCK_TYPE
from dragoman.wire.anthropic.foreign_reasoning import (
    FOREIGN_SIGNATURE,
    encode_call_metadata,
    encode_opaque_reasoning,
    source_citation,
)
from dragoman.wire.reasoning_metadata import reasoning_details

INVALID_JSON_KEY = "INVALID_JSON"  # the key that Anthropic's documentation specifies for invalid arguments
_BlockKey: TypeAlias = tuple[str, str]
_START_EVENTS = (e.TextStart, e.ReasoningStart, e.ToolInputStart)
_CALLER_FIELDS = {"caller": "caller", "toolsetName": "toolset_name"}


class BlockSink(Protocol):
    """Receives blocks: writes them to a stream, or collects them in a message."""

    def start_block(self, block: Mapping[str, Any]) -> None:
        """Start a block, as its start event shows it."""
        ...

    def add_delta(self, delta: Mapping[str, Any]) -> None:
        """Add a delta to the open block."""
        ...

    def end_block(self) -> None:
        """End the open block."""
        ...


class _CurrentBlock:
    """The block that is being encoded."""

    def __init__(self, key: _BlockKey) -> None:
        self.key = key
        self.is_open = False
        self.provider_executed = False  # the provider runs this call itself
        self.arguments: list[str] = []  # fragments
        self.is_streamed: bool | None = None  # fragments are sent as they arrive; None: not yet decided
        self.texts: list[str] = []  # of a thinking block
        self.metadata: dict[str, Any] = {}  # Anthropic's provider metadata
        self.openai_metadata: dict[str, Any] = {}  # the OpenAI family's provider metadata

    def add_metadata(self, metadata: ProviderMetadata | None) -> None:
        """Merge the provider metadata."""
        if metadata is not None:
            self.metadata |= metadata.get("anthropic", {})
            self.openai_metadata |= metadata.get("openai", {})
            if details := reasoning_details(metadata):
                self.openai_metadata["reasoning_details"] = details

    @property
    def complete(self) -> bool:
        """Whether this is a call whose arguments are a complete object."""
        if not self.is_streamed or not self.arguments[-1].rstrip().endswith("}"):
            return False
        return isinstance(parse_arguments("".join(self.arguments)), dict)


class BlockEncoder:
    """Converts the events of one answer to blocks. `open_text_id` is the id of the open text block."""

    def __init__(self, sink: BlockSink) -> None:
        self.open_text_id: str | None = None
        self.started = False  # at least one block was started
        self._has_calls = False  # for the client to run
        self._sink = sink
        self._current: _CurrentBlock | None = None
        self._queue: list[e.Event] = []
        self._ended_calls: set[str] = set()  # ids
        self._sources: list[e.SourceUrl] = []  # that no text has cited

    @property
    def lacks_calls(self) -> bool:
        """Whether there are blocks, and none is a call."""
        return self.started and not self._has_calls

    def add_event(self, event: e.Event) -> None:
        """Add any event; those without an equivalent are ignored."""
        if isinstance(event, e.SourceUrl):
            self._sources.append(event)
            return
        self._encode_event(event)
        if self._current is None and self._queue:
            self._drain_queue()

    def finish(self) -> None:
        """End the open block and encode all queued events: the answer is complete."""
        while self._current is not None:
            self._end_block(self._current)
            self._drain_queue()

    def _drain_queue(self) -> None:
        """Encode queued events as far as possible."""
        queue = deque(self._queue)
        self._queue = []
        while queue:
            self._encode_event(queue.popleft())
            if self._current is None and self._queue:
                queue.extendleft(reversed(self._queue))
                self._queue = []

    def _encode_event(self, event: e.Event) -> None:
        key_of = _BLOCK_KEYS.get(type(event))
        key = key_of(event) if key_of is not None else None
        if key is None or (key[0] == "call" and key[1] in self._ended_calls):
            return
        current = self._current
        if current is not None and current.key != key:
            self._queue.append(event)
            if isinstance(event, _START_EVENTS) and current.complete:
                self._end_block(current)
            return
        if current is None:
            current = self._current = _CurrentBlock(key)
        match event:
            case e.TextStart() | e.TextDelta() | e.TextEnd():
                self._encode_text(current, event)
            case e.ReasoningStart() | e.ReasoningDelta() | e.ReasoningEnd():
                self._encode_reasoning(current, event)
            case e.ToolOutputAvailable() | e.ToolOutputError() | e.Data():
                self._pass_through(current, event)
            case _:
                self._encode_call(current, event)

    def _encode_text(self, current: _CurrentBlock, event: e.TextStart | e.TextDelta | e.TextEnd) -> None:
        current.add_metadata(event.provider_metadata)
        match event:
            case e.TextDelta(id=id, delta=delta) if delta:
                self._start_block(current, {"type": "text", "text": ""})
                self.open_text_id = id
                self._sink.add_delta({"type": "text_delta", "text": delta})
            case e.TextEnd():
                for citation in current.metadata.get("citations", ()):
                    self._start_block(current, {"type": "text", "text": ""})
                    self._sink.add_delta({"type": "citations_delta", "citation": citation})
                self._end_block(current)
            case _:
                pass

    def _encode_reasoning(
        self, current: _CurrentBlock, event: e.ReasoningStart | e.ReasoningDelta | e.ReasoningEnd
    ) -> None:
        current.add_metadata(event.provider_metadata)
        match event:
            case e.ReasoningDelta(delta=delta) if delta:
                self._start_block(current, {"type": "thinking", "thinking": "", "signature": ""})
                current.texts.append(delta)
                self._sink.add_delta({"type": "thinking_delta", "thinking": delta})
            case e.ReasoningEnd():
                self._write_signature(current)
                self._end_block(current)
            case _:
                pass

    def _write_signature(self, current: _CurrentBlock) -> None:
        """Send the signature or redacted data of a thinking block, also those of another family."""
        redacted, signature = current.metadata.get("redactedData"), current.metadata.get("signature")
        if not (redacted or signature) and current.openai_metadata:
            opaque = encode_opaque_reasoning(current.openai_metadata, "".join(current.texts))
            redacted, signature = (None, opaque) if current.is_open else (opaque, None)
        if current.is_open and not signature:
            signature = FOREIGN_SIGNATURE
        if redacted and not current.is_open:
            self._start_block(current, {"type": "redacted_thinking", "data": redacted})
        elif signature:
            self._start_block(current, {"type": "thinking", "thinking": "", "signature": ""})
            self._sink.add_delta({"type": "signature_delta", "signature": signature})

    def _encode_call(self, current: _CurrentBlock, event: e.Event) -> None:
        match event:
            case e.ToolInputStart(tool_call_id=id, tool_name=name):
                current.provider_executed = bool(event.provider_executed)
                current.add_metadata(event.provider_metadata)
                if not current.provider_executed:
                    self._start_call(current, id, name=name)
            case e.ToolInputDelta(input_text_delta=delta) if delta:
                self._write_arguments(current, delta)
            case e.ToolInputAvailable() | e.ToolInputError():
                current.provider_executed = current.provider_executed or bool(event.provider_executed)
                current.add_metadata(event.provider_metadata)
                self._ended_calls.add(event.tool_call_id)
                self._complete_call(current, event)
                self._end_block(current)
                self._write_call_metadata(current, event.tool_call_id)
            case _:
                pass

    def _start_call(self, current: _CurrentBlock, id: str, *, name: str) -> None:
        """Start the block of a call, unless it is open; what is opaque in the call comes before it."""
        if not current.is_open:
            self._write_call_metadata(current, id)
        self._has_calls = True
        self._start_block(current, _tool_use_block(id, name, metadata=current.metadata))

    def _write_call_metadata(self, current: _CurrentBlock, id: str) -> None:
        """Send another family's opaque part of a call, once: a `tool_use` block has no field for it."""
        opaque = encode_call_metadata(id, current.openai_metadata) if current.openai_metadata else None
        if opaque is not None:
            current.openai_metadata = {}
            self._sink.start_block({"type": "redacted_thinking", "data": opaque})
            self._sink.end_block()

    def _write_arguments(self, current: _CurrentBlock, delta: str) -> None:
        """Send a fragment of the arguments once they begin as an object: `null` and plain text wait."""
        current.arguments.append(delta)
        if current.is_streamed is None and (beginning := delta.lstrip()):
            current.is_streamed = current.is_open and beginning.startswith("{")
        if current.is_streamed:
            self._sink.add_delta({"type": "input_json_delta", "partial_json": delta})

    def _complete_call(self, current: _CurrentBlock, event: e.ToolInputAvailable | e.ToolInputError) -> None:
        """Send the arguments, unless they were streamed."""
        if current.provider_executed:
            block = current.metadata.get("block")
            if not isinstance(block, Mapping):
                return
            self._start_block(current, {**block, "input": {}})
            arguments: Any = block.get("input")
        else:
            self._start_call(current, event.tool_call_id, name=event.tool_name)
            arguments = None if current.is_streamed else _input_object(event.input)
        if arguments:
            json_text = msgspec.json.encode(arguments).decode()
            self._sink.add_delta({"type": "input_json_delta", "partial_json": json_text})

    def _pass_through(
        self, current: _CurrentBlock, event: e.ToolOutputAvailable | e.ToolOutputError | e.Data
    ) -> None:
        """Send a block of Anthropic's own unchanged."""
        if isinstance(event, e.Data):
            block = event.data
        else:
            block = (event.provider_metadata or {}).get("anthropic", {}).get("block")
        if isinstance(block, Mapping):
            self._start_block(current, block)
        self._end_block(current)

    def _start_block(self, current: _CurrentBlock, block: Mapping[str, Any]) -> None:
        """Start the block, unless it is open."""
        if not current.is_open:
            current.is_open = self.started = True
            self._sink.start_block(block)

    def _cite_sources(self, citations: Iterable[Any]) -> None:
        """Add the sources that the text's own citations do not name to the open block."""
        cited = {citation.get("url") for citation in citations if isinstance(citation, Mapping)}
        for source in self._sources:
            if source.url not in cited:
                self._sink.add_delta({"type": "citations_delta", "citation": source_citation(source)})
        self._sources.clear()

    def _end_block(self, current: _CurrentBlock) -> None:
        if current.is_open:
            if self._sources and current.key[0] == "text":
                self._cite_sources(current.metadata.get("citations", ()))
            self._sink.end_block()
        if current.key[0] == "call":
            self._ended_calls.add(current.key[1])
        self._current = self.open_text_id = None


def parse_arguments(arguments: str) -> Any:
    """Decode the arguments; None if they are not JSON, an empty object if they are empty."""
    if not arguments.strip():
        return {}
    try:
        return decode_json(arguments)
    except DECODE_ERRORS:
        return None


def _input_object(tool_input: Any) -> dict[str, Any]:
    """Return the input of a call as an object. Some servers encode it twice: then it is JSON in a string."""
    value = tool_input
    for _ in range(2):
        value = parse_arguments(value) if isinstance(value, str) else value
    return dict(value) if isinstance(value, Mapping) else {INVALID_JSON_KEY: tool_input}


def _tool_use_block(id: str, name: str, *, metadata: Mapping[str, Any]) -> dict[str, Any]:
    caller_fields = {field: metadata[key] for key, field in _CALLER_FIELDS.items() if key in metadata}
    return {"type": "tool_use", "id": id, "name": name, "input": {}, **caller_fields}


def _text_key(event: e.TextStart | e.TextDelta | e.TextEnd) -> _BlockKey:
    return "text", event.id


def _reasoning_key(event: e.ReasoningStart | e.ReasoningDelta | e.ReasoningEnd) -> _BlockKey:
    return "thinking", event.id


def _call_key(
    event: e.ToolInputStart | e.ToolInputDelta | e.ToolInputAvailable | e.ToolInputError,
) -> _BlockKey:
    return "call", event.tool_call_id


def _result_key(event: e.ToolOutputAvailable | e.ToolOutputError) -> _BlockKey | None:
    return ("result", event.tool_call_id) if event.provider_executed else None


_BLOCK_KEYS: Mapping[type, Callable[[Any], _BlockKey | None]] = {  # the block that an event belongs to
    **dict.fromkeys((e.TextStart, e.TextDelta, e.TextEnd), _text_key),
    **dict.fromkeys((e.ReasoningStart, e.ReasoningDelta, e.ReasoningEnd), _reasoning_key),
    **dict.fromkeys((e.ToolInputStart, e.ToolInputDelta, e.ToolInputAvailable, e.ToolInputError), _call_key),
    **dict.fromkeys((e.ToolOutputAvailable, e.ToolOutputError), _result_key),
    e.Data: lambda event: ("raw", "") if event.type == RAW_BLOCK_TYPE else None,
}
