"""Blocks out to an Anthropic client: events become content blocks, one open at a time.

Anthropic's blocks follow one another, those of other families overlap (parallel calls): what comes for a
block behind the open one waits until that is complete. Empty texts and thoughts are no blocks, for their API
would refuse them when they come back. Calls that a provider of another family ran itself are left out, as
they have no words here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from dragoman import events as e
from dragoman.messages import ProviderMetadata

RAW = "data-anthropic"
BROKEN = (
    "INVALID_JSON"  # the name under which Anthropic's documents tell clients to say broken arguments back
)
_Key: TypeAlias = tuple[str, str]
_STARTS = (e.TextStart, e.ReasoningStart, e.ToolInputStart)
_CALLER = {"caller": "caller", "toolsetName": "toolset_name"}


class Sink(Protocol):
    """Where blocks go: onto a stream, or into a message."""

    def open(self, block: Mapping[str, Any]) -> None:
        """Begin a block, as its start shows it."""
        ...

    def grow(self, delta: Mapping[str, Any]) -> None:
        """Let the open block grow."""
        ...

    def close(self) -> None:
        """End the open block."""
        ...


class _Head:
    """The block whose turn it is."""

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.opened = False
        self.foreign = False  # a call that the provider runs itself
        self.pieces: list[str] = []  # of a call's arguments
        self.streamed: bool | None = None  # whether they leave as they come, once that is clear
        self.metadata: dict[str, Any] = {}  # Anthropic's

    def learn(self, metadata: ProviderMetadata | None) -> None:
        """Take what only Anthropic's clients are to know."""
        if metadata is not None:
            self.metadata |= metadata.get("anthropic", {})

    @property
    def complete(self) -> bool:
        """Whether this is a call whose arguments are a whole object."""
        if not self.streamed or not self.pieces[-1].rstrip().endswith("}"):
            return False
        return isinstance(parse("".join(self.pieces)), dict)


class Blocks:
    """Turns the events of one answer into blocks. `text` is the id of the text block that is open now."""

    def __init__(self, sink: Sink) -> None:
        self.text: str | None = None
        self.begun = False  # something was said
        self._sink = sink
        self._head: _Head | None = None
        self._waiting: list[e.Event] = []
        self._ended: set[str] = set()  # calls that are over

    def add(self, event: e.Event) -> None:
        """Take any event; those without a word here say nothing."""
        self._take(event)
        if self._head is None and self._waiting:
            self._catch_up()

    def settle(self) -> None:
        """End what is open, and say what waits: the answer is over."""
        while self._head is not None:
            self._close(self._head)
            self._catch_up()

    def _catch_up(self) -> None:
        """Take what waits, as far as it goes."""
        todo = deque(self._waiting)
        self._waiting = []
        while todo:
            self._take(todo.popleft())
            if self._head is None and self._waiting:
                todo.extendleft(reversed(self._waiting))
                self._waiting = []

    def _take(self, event: e.Event) -> None:
        find = _KEYS.get(type(event))
        key = find(event) if find is not None else None
        if key is None or (key[0] == "call" and key[1] in self._ended):
            return
        head = self._head
        if head is not None and head.key != key:
            self._waiting.append(event)
            if isinstance(event, _STARTS) and head.complete:
                self._close(head)
            return
        if head is None:
            head = self._head = _Head(key)
        match event:
            case e.TextStart() | e.TextDelta() | e.TextEnd():
                self._write(head, event)
            case e.ReasoningStart() | e.ReasoningDelta() | e.ReasoningEnd():
                self._think(head, event)
            case e.ToolOutputAvailable() | e.ToolOutputError() | e.Data():
                self._pass(head, event)
            case _:
                self._call(head, event)

    def _write(self, head: _Head, event: e.TextStart | e.TextDelta | e.TextEnd) -> None:
        head.learn(event.provider_metadata)
        match event:
            case e.TextDelta(id=id, delta=delta) if delta:
                self._open(head, {"type": "text", "text": ""})
                self.text = id
                self._sink.grow({"type": "text_delta", "text": delta})
            case e.TextEnd():
                for citation in head.metadata.get("citations", ()):
                    self._open(head, {"type": "text", "text": ""})
                    self._sink.grow({"type": "citations_delta", "citation": citation})
                self._close(head)
            case _:
                pass

    def _think(self, head: _Head, event: e.ReasoningStart | e.ReasoningDelta | e.ReasoningEnd) -> None:
        head.learn(event.provider_metadata)
        match event:
            case e.ReasoningDelta(delta=delta) if delta:
                self._open(head, {"type": "thinking", "thinking": "", "signature": ""})
                self._sink.grow({"type": "thinking_delta", "thinking": delta})
            case e.ReasoningEnd():
                self._seal(head)
                self._close(head)
            case _:
                pass

    def _seal(self, head: _Head) -> None:
        """Say what a thought must go back with."""
        redacted, signature = head.metadata.get("redactedData"), head.metadata.get("signature")
        if redacted and not head.opened:
            self._open(head, {"type": "redacted_thinking", "data": redacted})
        elif signature:
            self._open(head, {"type": "thinking", "thinking": "", "signature": ""})
            self._sink.grow({"type": "signature_delta", "signature": signature})

    def _call(self, head: _Head, event: e.Event) -> None:
        match event:
            case e.ToolInputStart(tool_call_id=id, tool_name=name):
                head.foreign = bool(event.provider_executed)
                head.learn(event.provider_metadata)
                if not head.foreign:
                    self._open(head, _tool_use(id, name, metadata=head.metadata))
            case e.ToolInputDelta(input_text_delta=delta) if delta:
                self._argue(head, delta)
            case e.ToolInputAvailable() | e.ToolInputError():
                head.foreign = head.foreign or bool(event.provider_executed)
                head.learn(event.provider_metadata)
                self._ended.add(event.tool_call_id)
                self._complete(head, event)
                self._close(head)
            case _:
                pass

    def _argue(self, head: _Head, delta: str) -> None:
        """Say a fragment of the arguments, once they begin as an object: `null` and bare text wait."""
        head.pieces.append(delta)
        if head.streamed is None and (begun := delta.lstrip()):
            head.streamed = head.opened and begun.startswith("{")
        if head.streamed:
            self._sink.grow({"type": "input_json_delta", "partial_json": delta})

    def _complete(self, head: _Head, event: e.ToolInputAvailable | e.ToolInputError) -> None:
        """Say the arguments, unless they were said as they came."""
        if head.foreign:
            block = head.metadata.get("block")
            if not isinstance(block, Mapping):
                return
            self._open(head, {**block, "input": {}})
            arguments: Any = block.get("input")
        else:
            self._open(head, _tool_use(event.tool_call_id, event.tool_name, metadata=head.metadata))
            arguments = None if head.streamed else _arguments(event.input)
        if arguments:
            written = msgspec.json.encode(arguments).decode()
            self._sink.grow({"type": "input_json_delta", "partial_json": written})

    def _pass(self, head: _Head, event: e.ToolOutputAvailable | e.ToolOutputError | e.Data) -> None:
        """A block that is Anthropic's own, as it is."""
        if isinstance(event, e.Data):
            block = event.data
        else:
            block = (event.provider_metadata or {}).get("anthropic", {}).get("block")
        if isinstance(block, Mapping):
            self._open(head, block)
        self._close(head)

    def _open(self, head: _Head, block: Mapping[str, Any]) -> None:
        """Open the block, unless it is."""
        if not head.opened:
            head.opened = self.begun = True
            self._sink.open(block)

    def _close(self, head: _Head) -> None:
        if head.opened:
            self._sink.close()
        if head.key[0] == "call":
            self._ended.add(head.key[1])
        self._head = self.text = None


def parse(arguments: str) -> Any:
    """The arguments as a value; None when they are no JSON, and an empty object when there are none."""
    if not arguments.strip():
        return {}
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _arguments(given: Any) -> dict[str, Any]:
    """The input of a call as the object that it has to be."""
    value = parse(given) if isinstance(given, str) else given
    return dict(value) if isinstance(value, Mapping) else {BROKEN: given}


def _tool_use(id: str, name: str, *, metadata: Mapping[str, Any]) -> dict[str, Any]:
    beside = {field: metadata[word] for word, field in _CALLER.items() if word in metadata}
    return {"type": "tool_use", "id": id, "name": name, "input": {}, **beside}


def _text(event: e.TextStart | e.TextDelta | e.TextEnd) -> _Key:
    return "text", event.id


def _thought(event: e.ReasoningStart | e.ReasoningDelta | e.ReasoningEnd) -> _Key:
    return "thinking", event.id


def _called(event: e.ToolInputStart | e.ToolInputDelta | e.ToolInputAvailable | e.ToolInputError) -> _Key:
    return "call", event.tool_call_id


def _result(event: e.ToolOutputAvailable | e.ToolOutputError) -> _Key | None:
    return ("result", event.tool_call_id) if event.provider_executed else None


_KEYS: Mapping[type, Callable[[Any], _Key | None]] = {  # the block that an event is for
    **dict.fromkeys((e.TextStart, e.TextDelta, e.TextEnd), _text),
    **dict.fromkeys((e.ReasoningStart, e.ReasoningDelta, e.ReasoningEnd), _thought),
    **dict.fromkeys((e.ToolInputStart, e.ToolInputDelta, e.ToolInputAvailable, e.ToolInputError), _called),
    **dict.fromkeys((e.ToolOutputAvailable, e.ToolOutputError), _result),
    e.Data: lambda event: ("raw", "") if event.type == RAW else None,
}
