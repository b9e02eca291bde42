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
from dragoman.wire.text_blocks import TextBlockWriter
from dragoman.wire.tool_calls import ToolCallAssembler, ToolCallFragment

_ANSWER_START = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
_CALL_START = re.compile(r'\s*\{\s*"call"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"input"\s*:\s*(?=\{)')
_STRING_CHARACTERS = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')


class ConstrainedDecoder:
    """Reads one answer: the events of its JSON text go in, those of the text or call that it means come out.

    `new_id` makes the call's id, none that is `taken`. Other events pass as they are.
    """

    def __init__(self, *, new_id: Callable[[], str], used_ids: Collection[str] = ()) -> None:
        self._blocks = TextBlockWriter(lambda: None)
        self._tool_calls = ToolCallAssembler(new_id=new_id, used_ids=used_ids)
        self._nesting = BracketCounter()
        self._state: Literal["head", "answer", "input", "end"] = "head"
        self._pending = ""  # was read, and means nothing yet

    def decode(self, batch: Sequence[Event]) -> list[Event]:
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
                    self._blocks.insert([event])
        return self._blocks.take_events()

    def _read(self, text: str) -> None:
        self._pending += text
        if self._state == "head":
            self._read_start()
        if self._state == "answer":
            self._read_answer()
        elif self._state == "input":
            self._read_input()

    def _read_start(self) -> None:
        """Find out which of the two it is."""
        if found := _ANSWER_START.match(self._pending):
            self._state = "answer"
            self._blocks.open("text")
        elif found := _CALL_START.match(self._pending):
            self._state = "input"
            self._tool_calls.add(ToolCallFragment(index=0, name=json.loads(found[1], strict=False)))
            self._blocks.insert(self._tool_calls.flush())
        self._pending = self._pending[found.end() :] if found else self._pending

    def _read_answer(self) -> None:
        """Say the letters of the answer that are whole; half an escape waits."""
        found = _STRING_CHARACTERS.match(self._pending)
        letters = found[0] if found else ""
        self._pending = self._pending[len(letters) :]
        if letters:
            self._blocks.write("text", json.loads(f'"{letters}"', strict=False))
        if self._pending.startswith('"'):
            self._blocks.close()
            self._state = "end"

    def _read_input(self) -> None:
        """Let the input grow; what comes behind its last bracket is not of it."""
        end = self._nesting.find_end(self._pending)
        text = self._pending if end is None else self._pending[:end]
        self._pending = ""
        if text:
            self._tool_calls.add(ToolCallFragment(index=0, arguments=text))
            self._blocks.insert(self._tool_calls.take_events())
        if end is not None:
            self._state = "end"

    def _finish(self, event: FinishStep) -> None:
        if event.finish_reason == "stop" and self._state != "end":
            shown = f", at {self._pending[:80]!r}" if self._pending else ""
            raise ProviderError(f"the model did not keep to the form{shown}", category="api_error")
        self._blocks.close()
        self._blocks.insert(self._tool_calls.finish(truncated=event.finish_reason == "length"))
        if len(self._tool_calls) and self._state == "end":
            event = replace(event, finish_reason="tool-calls")
        self._blocks.insert([event])


class BracketCounter:
    """Counts the brackets of a JSON value that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._after_backslash = False

    def find_end(self, text: str) -> int | None:
        """The place behind the bracket that ends the value, if it is in this piece."""
        for at, letter in enumerate(text):
            if self._after_backslash:
                self._after_backslash = False
            elif self._in_string:
                self._after_backslash = letter == "\\"
                self._in_string = letter != '"'
            elif letter == '"':
                self._in_string = True
            else:
                self._depth += (letter in "{[") - (letter in "}]")
                if not self._depth:
                    return at + 1
        return None
