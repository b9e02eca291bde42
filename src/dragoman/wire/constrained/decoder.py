"""Constrained answers in: the JSON that a model was held to becomes text or a tool call while it is written.

The JSON is `{"answer": "…"}` or `{"call": "<tool>", "input": {…}}`, the keys in this order, as the schema of
`constrained_schema.form` has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from msgspec.structs import replace

from dragoman.errors import ProviderError
from dragoman.events import Event, FinishStep, TextDelta, TextEnd, TextStart
from dragoman.wire.blocks import Blocks
from dragoman.wire.toolcalls import Piece, ToolCalls

_ANSWER = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
_CALL = re.compile(r'\s*\{\s*"call"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"input"\s*:\s*(?=\{)')
_LETTERS = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')


class Constrained:
    """Reads one answer: the events of its JSON text go in, those of the text or call that it means come out.

    `new_id` makes the call's id, none that is `taken`. Other events pass as they are.
    """

    def __init__(self, *, new_id: Callable[[], str], taken: Collection[str] = ()) -> None:
        self._blocks = Blocks(lambda: None)
        self._calls = ToolCalls(new_id=new_id, taken=taken)
        self._nesting = Nesting()
        self._place: Literal["head", "answer", "input", "end"] = "head"
        self._pending = ""  # was read, and means nothing yet

    def take(self, batch: Sequence[Event]) -> list[Event]:
        """What the batch means; may be nothing. ProviderError when the whole answer has not the form."""
        for event in batch:
            match event:
                case TextStart() | TextEnd():
                    pass  # they are of the JSON
                case TextDelta(delta=text):
                    self._read(text)
                case FinishStep():
                    self._finish(event)
                case _:
                    self._blocks.add([event])
        return self._blocks.take()

    def _read(self, text: str) -> None:
        self._pending += text
        if self._place == "head":
            self._begin()
        if self._place == "answer":
            self._speak()
        elif self._place == "input":
            self._fill()

    def _begin(self) -> None:
        """Find out which of the two it is."""
        if found := _ANSWER.match(self._pending):
            self._place = "answer"
            self._blocks.open("text")
        elif found := _CALL.match(self._pending):
            self._place = "input"
            self._calls.add(Piece(index=0, name=json.loads(found[1], strict=False)))
            self._blocks.add(self._calls.settle())
        self._pending = self._pending[found.end() :] if found else self._pending

    def _speak(self) -> None:
        """Say the letters of the answer that are whole; half an escape waits."""
        found = _LETTERS.match(self._pending)
        letters = found[0] if found else ""
        self._pending = self._pending[len(letters) :]
        if letters:
            self._blocks.write("text", json.loads(f'"{letters}"', strict=False))
        if self._pending.startswith('"'):
            self._blocks.close()
            self._place = "end"

    def _fill(self) -> None:
        """Let the input grow; what comes behind its last bracket is not of it."""
        end = self._nesting.end(self._pending)
        text = self._pending if end is None else self._pending[:end]
        self._pending = ""
        if text:
            self._calls.add(Piece(index=0, arguments=text))
            self._blocks.add(self._calls.drain())
        if end is not None:
            self._place = "end"

    def _finish(self, event: FinishStep) -> None:
        if event.finish_reason == "stop" and self._place != "end":
            shown = f", at {self._pending[:80]!r}" if self._pending else ""
            raise ProviderError(f"the model did not keep to the form{shown}", category="api_error")
        self._blocks.close()
        self._blocks.add(self._calls.finish(cut=event.finish_reason == "length"))
        if len(self._calls) and self._place == "end":
            event = replace(event, finish_reason="tool-calls")
        self._blocks.add([event])


class Nesting:
    """Counts the brackets of a JSON value that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """The place behind the bracket that ends the value, if it is in this piece."""
        for at, letter in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = letter == "\\"
                self._quoted = letter != '"'
            elif letter == '"':
                self._quoted = True
            else:
                self._depth += (letter in "{[") - (letter in "}]")
                if not self._depth:
                    return at + 1
        return None
