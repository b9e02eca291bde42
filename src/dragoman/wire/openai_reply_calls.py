"""Calls out: the tool calls of an answer as fragments for an OpenAI client, one call after the other.

OpenAI's SDK takes a call for complete once a fragment of another one comes. So what a model writes of a
second call waits until the first is whole. Indexes count the calls that the client sees, from 0 on.
Source: wire notes on providers, §4.3 and §10.5.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from dragoman.events import ToolInputAvailable, ToolInputDelta, ToolInputError, ToolInputStart

Fragment = dict[str, Any]
Named: TypeAlias = ToolInputStart | ToolInputAvailable | ToolInputError
Happened: TypeAlias = Named | ToolInputDelta

CALLS = (ToolInputStart, ToolInputDelta, ToolInputAvailable, ToolInputError)
_encoder = msgspec.json.Encoder()


class Calls:
    """Tells the calls of one answer. Those that the provider runs itself are not the client's to see."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        self._turn = 0  # the index of the call that may speak

    def __len__(self) -> int:
        return len(self._calls)

    def tell(self, event: Happened) -> list[Fragment]:
        """The fragments that can be told now."""
        call = self._by_id.get(event.tool_call_id)
        if call is None:
            if isinstance(event, ToolInputDelta) or event.provider_executed:
                return []
            call = self._by_id[event.tool_call_id] = _Call(event, index=len(self._calls))
            self._calls.append(call)
        call.hear(event)
        return call.take() if call.index < self._turn else self._drain()

    def write(self, event: ToolInputDelta) -> int | None:
        """Take more arguments of the call whose turn it is: its index; None when `tell` has to see it."""
        call = self._by_id.get(event.tool_call_id)
        if call is None or call.blank or call.index != len(self._calls) - 1 or call.index != self._turn:
            return None
        call.told.append(event.input_text_delta)
        return call.index

    def rest(self) -> list[Fragment]:
        """What still waits, at the end of the answer."""
        waiting = self._calls[self._turn :]
        self._turn = len(self._calls)
        return [fragment for call in waiting for fragment in call.take()]

    def _drain(self) -> list[Fragment]:
        fragments: list[Fragment] = []
        while self._turn < len(self._calls):
            call = self._calls[self._turn]
            fragments += call.take()
            if not call.ended and (call is self._calls[-1] or not call.is_whole()):
                break
            self._turn += 1
        return fragments


class _Call:
    """A call under way: what of its arguments was told, and what was not yet."""

    def __init__(self, event: Named, *, index: int) -> None:
        self.index = index
        self.blank = True  # nothing but white space yet
        self.ended = False
        self.told: list[str] = []
        self._header: Fragment | None = {"index": index, "id": event.tool_call_id, "type": "function"}
        self._name = event.tool_name
        self._untold: list[str] = []

    def hear(self, event: Happened) -> None:
        """Take what happened to the call; the end says its arguments if nothing has said them yet."""
        match event:
            case ToolInputStart():
                pass
            case ToolInputDelta(input_text_delta=piece):
                self._add(piece)
            case ToolInputAvailable():
                self.ended = True
                if self.blank:
                    self._add(_written({} if event.input is None else event.input))
            case ToolInputError():
                self.ended = True
                if not (self.told or self._untold):
                    self._add(_written("" if event.input is None else event.input))

    def take(self) -> list[Fragment]:
        """What was not told yet, in one fragment; the first says which call it is."""
        arguments = "".join(self._untold)
        self.told += self._untold
        self._untold = []
        header, self._header = self._header, None
        if header is not None:
            return [{**header, "function": {"name": self._name, "arguments": arguments}}]
        return [{"index": self.index, "function": {"arguments": arguments}}] if arguments else []

    def is_whole(self) -> bool:
        """Whether the arguments are all there, as far as one can see."""
        text = "".join(self.told)
        if not text.rstrip().endswith("}"):
            return False
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def _add(self, piece: str) -> None:
        if piece:
            self._untold.append(piece)
            self.blank = self.blank and piece.isspace()


def _written(arguments: Any) -> str:
    """Arguments as text; what cannot be read as JSON stays verbatim."""
    return arguments if isinstance(arguments, str) else _encoder.encode(arguments).decode()
