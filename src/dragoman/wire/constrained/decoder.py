"""Decode constrained answers: JSON that the model was forced to write becomes text or a tool call, while it
streams.

The JSON is `{"answer": "…"}` or `{"call": "<tool>", "input": {…}}`, with the keys in this order, as in the
schema of `answer_schema`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from msgspec.structs import replace

from dragoman.errors import ProviderError
from dragoman.events import Event, FinishStep, TextDelta, TextEnd, TextStart
from dragoman.wire.text_block_writer import TextBlockWriter
from dragoman.wire.tool_calls import ToolCallAssembler, ToolCallFragment

_ANSWER_START = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
_CALL_START = re.compile(r'\s*\{\s*"call"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"input"\s*:\s*(?=\{)')
_STRING_CHARACTERS = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')


class ConstrainedDecoder:
    """Decodes one answer: events of its JSON text to events of the text or call that it contains.

    `new_id` creates the call's id, not in `used_ids`. Other events are passed through.
    """

    def __init__(self, *, new_id: Callable[[], str], used_ids: Collection[str] = ()) -> None:
        self._blocks = TextBlockWriter(lambda: None)
        self._tool_calls = ToolCallAssembler(new_id=new_id, used_ids=used_ids)
        self._nesting = BracketCounter()
        self._state: Literal["head", "answer", "input", "end"] = "head"
        self._pending = ""  # text that cannot be interpreted yet

    def decode(self, batch: Sequence[Event]) -> list[Event]:
        """Return the events of the batch, maybe none. ProviderError if a complete answer does not fit the
        schema.
        """
        for event in batch:
            match event:
                case TextStart() | TextEnd():
                    pass  # blocks of the JSON text itself
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
        """Decide whether this is an answer or a call."""
        if match := _ANSWER_START.match(self._pending):
            self._state = "answer"
            self._blocks.open("text")
        elif match := _CALL_START.match(self._pending):
            self._state = "input"
            self._tool_calls.add(ToolCallFragment(index=0, name=json.loads(match[1], strict=False)))
            self._blocks.insert(self._tool_calls.flush())
        self._pending = self._pending[match.end() :] if match else self._pending

    def _read_answer(self) -> None:
        """Emit the complete characters of the answer; an incomplete escape waits."""
        match = _STRING_CHARACTERS.match(self._pending)
        characters = match[0] if match else ""
        self._pending = self._pending[len(characters) :]
        if characters:
            self._blocks.write("text", json.loads(f'"{characters}"', strict=False))
        if self._pending.startswith('"'):
            self._blocks.close()
            self._state = "end"

    def _read_input(self) -> None:
        """Append to the input up to its last bracket."""
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
            excerpt = f", at {self._pending[:80]!r}" if self._pending else ""
            raise ProviderError(
                f"the model's answer does not match the required schema{excerpt}", category="api_error"
            )
        self._blocks.close()
        self._blocks.insert(self._tool_calls.finish(truncated=event.finish_reason == "length"))
        if len(self._tool_calls) and self._state == "end":
            event = replace(event, finish_reason="tool-calls")
        self._blocks.insert([event])


class BracketCounter:
    """Counts the brackets of a JSON value that arrives in parts."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._after_backslash = False

    def find_end(self, text: str) -> int | None:
        """Return the position after the bracket that ends the value, if it is in this text."""
        for index, character in enumerate(text):
            if self._after_backslash:
                self._after_backslash = False
            elif self._in_string:
                self._after_backslash = character == "\\"
                self._in_string = character != '"'
            elif character == '"':
                self._in_string = True
            else:
                self._depth += (character in "{[") - (character in "}]")
                if not self._depth:
                    return index + 1
        return None
