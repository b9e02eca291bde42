"""Answer: the lines of one /api/chat answer become blocks, tool calls and a finish.

Thinking comes before text and text before calls when one line holds several. Calls arrive whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from dragoman.errors import ProviderError
from dragoman.events import Event, FinishReason, FinishStep, Usage
from dragoman.messages import ProviderMetadata
from dragoman.wire.blocks import Blocks
from dragoman.wire.failures import failure, find
from dragoman.wire.openai import chunk as chunks
from dragoman.wire.thinking import Cut, Thinking
from dragoman.wire.toolcalls import Piece, ToolCalls

# ---- Lines of Ollama's /api/chat: one piece of an answer as a value.
# `decode_lines` is the quick way for what Ollama itself sends; `read` takes what comes through proxies and
# from
# servers that only resemble it: fields of other types, NaN, broken UTF-8, halves of surrogate pairs.

COUNTS = (
    "prompt_eval_count",
    "eval_count",
    "total_duration",
    "load_duration",
    "prompt_eval_duration",
    "eval_duration",
)
FAILED = chunks.FAILED


class Called(msgspec.Struct, gc=False):
    """The function half of a call. The arguments are whole: an object, or as text with other servers."""

    name: str | None = None
    arguments: dict[str, Any] | str | None = None


class Call(msgspec.Struct, gc=False):
    """A whole tool call; servers before 0.12 give it no id."""

    id: str | None = None
    function: Called | None = None


class Said(msgspec.Struct, gc=False):
    """What a line adds to the message; a whole message has the same fields."""

    content: str | None = None
    thinking: str | None = None
    tool_calls: list[Call] | None = None


class Line(msgspec.Struct, gc=False):
    """One line. Counts and durations (nanoseconds) come with the last one, `done`."""

    message: Said | None = None
    done: bool = False
    done_reason: str | None = None
    model: str | None = None
    error: Any = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_duration: int | None = None
    eval_duration: int | None = None


_decoder = msgspec.json.Decoder(Line)


def decode_lines(block: bytes) -> list[Line] | None:
    """The lines of a block that holds nothing but well-behaved ones; None when each wants a closer look."""
    number = block.count(b"\n")
    if not block.startswith(b"{") or block.count(b"}\n{") + 1 != number or not block.endswith(b"}\n"):
        return None
    try:
        lines = _decoder.decode_lines(block)
    except FAILED:
        return None
    behaved = len(lines) == number and all(line.message is not None or line.done for line in lines)
    return lines if behaved else None


def read(payload: bytes) -> Line:
    """The line, whatever its quirks; ValueError when it is no JSON, or no object."""
    try:
        line = _decoder.decode(payload)
    except FAILED:
        line = None
    if line is not None and (line.message is not None or line.done):
        return line
    value = chunks.loose(payload)
    if not isinstance(value, dict):
        raise ValueError(f"the line is a JSON {type(value).__name__}, not an object")
    try:
        return _tolerate(value)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _tolerate(value: Mapping[str, Any]) -> Line:
    message, done = value.get("message"), value.get("done")
    said = _said(message) if isinstance(message, Mapping) else None
    over = done is True or done == 1 or done == "true"
    return Line(
        message=said,
        done=over,
        done_reason=chunks.text(chunks.clean(value.get("done_reason"))),
        model=chunks.text(chunks.clean(value.get("model"))),
        error=chunks.clean(value.get("error") if said is not None or over else find(value)),
        **{name: _count(value.get(name)) for name in COUNTS},
    )


def _said(message: Mapping[str, Any]) -> Said:
    """Halves of surrogate pairs stay in the texts that grow, where the other half may follow."""
    calls = message.get("tool_calls")
    objects = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    return Said(
        content=chunks.text(message.get("content")),
        thinking=chunks.text(message.get("thinking")),
        tool_calls=[_call(call) for call in objects] or None,
    )


def _call(call: Mapping[str, Any]) -> Call:
    called = chunks.function(call.get("function"))
    return Call(
        id=chunks.text(chunks.clean(call.get("id"))),
        function=None if called is None else Called(called.name, called.arguments),
    )


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if whole else None


REASONS: Mapping[str, FinishReason] = {
    "": "stop",  # old servers give none
    "stop": "stop",
    "load": "stop",
    "unload": "stop",
    "length": "length",
}


class Answer:
    """One answer under way. `failure` is set when it failed, `done` when it has finished; nothing may be
    added then.

    `provider` goes into the finish, and `model` when no line names one. `new_id` gives ids for tool calls
    that come without one, or with one that is `taken`.
    """

    def __init__(
        self,
        *,
        provider: str | None,
        model: str | None,
        new_id: Callable[[], str],
        taken: Collection[str],
    ) -> None:
        self.failure: ProviderError | None = None
        self.done = False
        self._begun = False
        self._model = ""
        self._asked = model
        self._provider = provider
        self._blocks = Blocks(lambda: None)
        self._thinking = Thinking()
        self._content: list[str] = []  # pieces that Thinking has not seen yet
        self._calls = ToolCalls(new_id=new_id, taken=taken)
        self._called = 0

    def add(self, line: Line) -> None:
        """Add any line."""
        self._model = self._model or line.model or ""
        said = line.message
        if said is not None:
            self._say(said)
        if line.error:
            self.fail(line.error)
        elif line.done:
            self._finish(line)

    def fail(self, error: Any) -> None:
        """Note why the answer failed; the first reason stays."""
        if self.failure is None:
            self.failure = error if isinstance(error, ProviderError) else failure(error)

    def take(self) -> list[Event]:
        """The events since the last time."""
        self._settle()
        return self._blocks.take()

    def end(self) -> None:
        """The stream is over: the answer fails unless it is done."""
        if not self.done:
            self.fail(_unfinished(self._begun))

    def _say(self, said: Said) -> None:
        if said.thinking:
            self._leave()
            self._blocks.write("reasoning", said.thinking)
            self._begun = True
        if said.content:
            self._content.append(said.content)
            self._begun = True
        for call in said.tool_calls or ():
            self._call(call)

    def _call(self, call: Call) -> None:
        called = call.function or Called()
        arguments = called.arguments
        self._leave()
        self._blocks.close()
        self._called += 1
        self._begun = True
        self._calls.add(
            Piece(
                index=self._called,
                id=call.id or "",
                name=called.name or "",
                arguments=_dump(arguments) if isinstance(arguments, dict) else arguments or "",
                whole=True,
            )
        )
        self._blocks.add(self._calls.settle())

    def _finish(self, line: Line) -> None:
        self._leave()
        self._blocks.close()
        reason = REASONS.get((line.done_reason or "").strip().lower(), "other")
        calls = self._calls.finish(cut=reason == "length")
        self._blocks.add(calls)
        if calls and reason == "stop":
            reason = "tool-calls"
        finish = FinishStep(
            reason,
            _usage(line),
            self._model or self._asked,
            self._provider,
            provider_metadata=_metadata(line),
        )
        self._blocks.add([finish])
        self.done = True

    def _settle(self) -> None:
        """Cut the text so far into text and reasoning; the beginning of a tag is held back."""
        if self._content:
            pieces = self._thinking.feed("".join(self._content))
            self._content.clear()
            self._lay(pieces)

    def _leave(self) -> None:
        """The same with nothing held back: something else comes."""
        self._settle()
        if self._thinking.held:
            self._lay(self._thinking.close())

    def _lay(self, pieces: list[Cut]) -> None:
        for kind, piece in pieces:
            if kind == "border":
                self._blocks.close()
            else:
                self._blocks.write(kind, piece)


def _dump(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def _usage(line: Line) -> Usage | None:
    """What was counted. The prompt's count is absent when the prompt was cached: unknown, not zero."""
    prompt, output = line.prompt_eval_count, line.eval_count
    if prompt is None and output is None:
        return None
    total = None if prompt is None or output is None else prompt + output
    return Usage(input_tokens=prompt, output_tokens=output, total_tokens=total)


def _metadata(line: Line) -> ProviderMetadata | None:
    """The reason in Ollama's word, and its durations in nanoseconds."""
    own = {
        "doneReason": line.done_reason or None,
        "totalDuration": line.total_duration,
        "loadDuration": line.load_duration,
        "promptEvalDuration": line.prompt_eval_duration,
        "evalDuration": line.eval_duration,
    }
    told = {name: value for name, value in own.items() if value is not None}
    return {"ollama": told} if told else None


def _unfinished(begun: bool) -> ProviderError:
    what = "ended before it was done" if begun else "is empty"
    return ProviderError(
        f"the provider's answer {what}",
        category="network",
        transient=True,
        hint="the connection was cut, or the server was stopped; look into its log",
    )
