"""The texts, reasonings and tool calls of an AG-UI stream: each opens before it grows, and closes once.

What the client has of one already is not sent again; of one that it has completely, nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.wire.ag_ui.received_answer import MissingText

Body: TypeAlias = dict[str, Any]
Bodies: TypeAlias = Iterator[Body]


class GrowingBlock:
    """Something with an id that grows by deltas. `received` is what the client has of it; None: nothing."""

    def __init__(self, id: str, received: str | None = None) -> None:
        self.id = id
        self.has_closed = False
        self.is_open = False
        self._missing = None if received is None else MissingText(received)

    def first(self) -> Bodies:
        """Yield what opens it."""
        raise NotImplementedError

    def content(self, delta: str) -> Body:
        """Return what makes it grow."""
        raise NotImplementedError

    def last(self) -> Bodies:
        """Yield what closes it."""
        raise NotImplementedError

    def open(self) -> Bodies:
        """Open it, unless the client has it, or it is closed."""
        if self._missing is None and not self.is_open and not self.has_closed:
            self.is_open = True
            yield from self.first()

    def grow(self, delta: str) -> Bodies:
        """Let it grow by what the client does not have."""
        missing = self._missing
        rest: str | None = delta if missing is None else missing.take(delta)
        if rest is None and missing is not None:  # another text than the client has: it gets an id of its own
            self.id += "r"
            rest = missing.so_far + delta
        if rest and not self.has_closed:
            self._missing = None
            yield from self.open()
            yield self.content(rest)

    def close(self) -> Bodies:
        """Close it, unless it is closed, or the client has it."""
        if self.has_closed:
            return
        yield from self.open()
        self.has_closed = True
        if self.is_open:
            self.is_open = False
            yield from self.last()


class TextBlock(GrowingBlock):
    """A text of the assistant."""

    def first(self) -> Bodies:
        yield {"type": "TEXT_MESSAGE_START", "messageId": self.id, "role": "assistant"}

    def content(self, delta: str) -> Body:
        return {"type": "TEXT_MESSAGE_CONTENT", "messageId": self.id, "delta": delta}

    def last(self) -> Bodies:
        yield {"type": "TEXT_MESSAGE_END", "messageId": self.id}


class ReasoningBlock(GrowingBlock):
    """A reasoning of the model."""

    def first(self) -> Bodies:
        yield {"type": "REASONING_START", "messageId": self.id}
        yield {"type": "REASONING_MESSAGE_START", "messageId": self.id, "role": "reasoning"}

    def content(self, delta: str) -> Body:
        return {"type": "REASONING_MESSAGE_CONTENT", "messageId": self.id, "delta": delta}

    def last(self) -> Bodies:
        yield {"type": "REASONING_MESSAGE_END", "messageId": self.id}
        yield {"type": "REASONING_END", "messageId": self.id}


class CallBlock(GrowingBlock):
    """A tool call; its arguments grow. `parent` is the text that it belongs to, if there is one."""

    def __init__(self, id: str, name: str, *, parent: str | None, received: str | None) -> None:
        super().__init__(id, received)
        self.name = name
        self._parent = parent
        self._has_arguments = bool(received)
        self.has_closed = received is not None and is_whole(received)

    def first(self) -> Bodies:
        body = {"type": "TOOL_CALL_START", "toolCallId": self.id, "toolCallName": self.name}
        yield body if self._parent is None else {**body, "parentMessageId": self._parent}

    def content(self, delta: str) -> Body:
        self._has_arguments = True
        return {"type": "TOOL_CALL_ARGS", "toolCallId": self.id, "delta": delta}

    def last(self) -> Bodies:
        yield {"type": "TOOL_CALL_END", "toolCallId": self.id}

    def grow(self, delta: str) -> Bodies:
        """Let it grow by what the client does not have, unless it has the whole input."""
        return iter(()) if self.has_closed else super().grow(delta)

    def close_with(self, input: Any) -> Bodies:
        """Close it; with the whole input, if its text did not arrive in pieces."""
        if not self._has_arguments and not self.has_closed and input is not msgspec.UNSET:
            yield from self.grow(msgspec.json.encode(input).decode())
        yield from self.close()


def is_whole(arguments: str) -> bool:
    """Return whether arguments are a JSON object: a client may write what it has got in its own way."""
    try:
        return isinstance(decode_json(arguments), dict)
    except DECODE_ERRORS:
        return False
