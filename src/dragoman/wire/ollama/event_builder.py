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
from dragoman.wire.openai import chunk as chunks
from dragoman.wire.provider_errors import find_error, provider_error
from dragoman.wire.text_blocks import TextBlockWriter
from dragoman.wire.think_tags import TaggedText, ThinkTagSplitter
from dragoman.wire.tool_calls import ToolCallAssembler, ToolCallFragment

# ---- Lines of Ollama's /api/chat: one piece of an answer as a value.
# `decode_lines` is the quick way for what Ollama itself sends; `read_chunk` takes what comes through
# proxies and
# from
# servers that only resemble it: fields of other types, NaN, broken UTF-8, halves of surrogate pairs.

COUNT_FIELDS = (
    "prompt_eval_count",
    "eval_count",
    "total_duration",
    "load_duration",
    "prompt_eval_duration",
    "eval_duration",
)
DECODE_ERRORS = chunks.DECODE_ERRORS


class OllamaFunctionCall(msgspec.Struct, gc=False):
    """The function half of a call. The arguments are whole: an object, or as text with other servers."""

    name: str | None = None
    arguments: dict[str, Any] | str | None = None


class OllamaToolCall(msgspec.Struct, gc=False):
    """A whole tool call; servers before 0.12 give it no id."""

    id: str | None = None
    function: OllamaFunctionCall | None = None


class OllamaMessage(msgspec.Struct, gc=False):
    """What a line adds to the message; a whole message has the same fields."""

    content: str | None = None
    thinking: str | None = None
    tool_calls: list[OllamaToolCall] | None = None


class OllamaChunk(msgspec.Struct, gc=False):
    """One line. Counts and durations (nanoseconds) come with the last one, `done`."""

    message: OllamaMessage | None = None
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


_decoder = msgspec.json.Decoder(OllamaChunk)


def decode_lines(block: bytes) -> list[OllamaChunk] | None:
    """The lines of a block that holds nothing but well-behaved ones; None when each wants a closer look."""
    number = block.count(b"\n")
    if not block.startswith(b"{") or block.count(b"}\n{") + 1 != number or not block.endswith(b"}\n"):
        return None
    try:
        lines = _decoder.decode_lines(block)
    except DECODE_ERRORS:
        return None
    behaved = len(lines) == number and all(line.message is not None or line.done for line in lines)
    return lines if behaved else None


def read_chunk(payload: bytes) -> OllamaChunk:
    """The line, whatever its quirks; ValueError when it is no JSON, or no object."""
    try:
        line = _decoder.decode(payload)
    except DECODE_ERRORS:
        line = None
    if line is not None and (line.message is not None or line.done):
        return line
    value = chunks.parse_lenient_json(payload)
    if not isinstance(value, dict):
        raise ValueError(f"the line is a JSON {type(value).__name__}, not an object")
    try:
        return _lenient_chunk(value)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _lenient_chunk(value: Mapping[str, Any]) -> OllamaChunk:
    message, done = value.get("message"), value.get("done")
    said = _lenient_message(message) if isinstance(message, Mapping) else None
    over = done is True or done == 1 or done == "true"
    return OllamaChunk(
        message=said,
        done=over,
        done_reason=chunks.as_text(chunks.replace_surrogates(value.get("done_reason"))),
        model=chunks.as_text(chunks.replace_surrogates(value.get("model"))),
        error=chunks.replace_surrogates(
            value.get("error") if said is not None or over else find_error(value)
        ),
        **{name: _as_integer(value.get(name)) for name in COUNT_FIELDS},
    )


def _lenient_message(message: Mapping[str, Any]) -> OllamaMessage:
    """Halves of surrogate pairs stay in the texts that grow, where the other half may follow."""
    calls = message.get("tool_calls")
    objects = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    return OllamaMessage(
        content=chunks.as_text(message.get("content")),
        thinking=chunks.as_text(message.get("thinking")),
        tool_calls=[_lenient_call(call) for call in objects] or None,
    )


def _lenient_call(call: Mapping[str, Any]) -> OllamaToolCall:
    called = chunks.lenient_function(call.get("function"))
    return OllamaToolCall(
        id=chunks.as_text(chunks.replace_surrogates(call.get("id"))),
        function=None if called is None else OllamaFunctionCall(called.name, called.arguments),
    )


def _as_integer(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if whole else None


FINISH_REASONS: Mapping[str, FinishReason] = {
    "": "stop",  # old servers give none
    "stop": "stop",
    "load": "stop",
    "unload": "stop",
    "length": "length",
}


class OllamaEventBuilder:
    """One answer under way. `provider_error` is set when it failed, `done` when it has finished; nothing
    may be added then.

    `provider` goes into the finish, and `model` when no line names one. `new_id` gives ids for tool calls
    that come without one, or with one that is `taken`.
    """

    def __init__(
        self,
        *,
        provider: str | None,
        model: str | None,
        new_id: Callable[[], str],
        used_ids: Collection[str],
    ) -> None:
        self.failure: ProviderError | None = None
        self.done = False
        self._started = False
        self._model = ""
        self._requested_model = model
        self._provider = provider
        self._blocks = TextBlockWriter(lambda: None)
        self._think_tags = ThinkTagSplitter()
        self._content: list[str] = []  # pieces that Thinking has not seen yet
        self._tool_calls = ToolCallAssembler(new_id=new_id, used_ids=used_ids)
        self._call_count = 0

    def add_chunk(self, chunk: OllamaChunk) -> None:
        """Add any line."""
        self._model = self._model or chunk.model or ""
        said = chunk.message
        if said is not None:
            self._add_message(said)
        if chunk.error:
            self.fail(chunk.error)
        elif chunk.done:
            self._finish(chunk)

    def fail(self, error: Any) -> None:
        """Note why the answer failed; the first reason stays."""
        if self.failure is None:
            self.failure = error if isinstance(error, ProviderError) else provider_error(error)

    def take_events(self) -> list[Event]:
        """The events since the last time."""
        self._split_content()
        return self._blocks.take_events()

    def end(self) -> None:
        """The stream is over: the answer fails unless it is done."""
        if not self.done:
            self.fail(_unfinished_error(self._started))

    def _add_message(self, message: OllamaMessage) -> None:
        if message.thinking:
            self._flush_content()
            self._blocks.write("reasoning", message.thinking)
            self._started = True
        if message.content:
            self._content.append(message.content)
            self._started = True
        for call in message.tool_calls or ():
            self._add_call(call)

    def _add_call(self, call: OllamaToolCall) -> None:
        called = call.function or OllamaFunctionCall()
        arguments = called.arguments
        self._flush_content()
        self._blocks.close()
        self._call_count += 1
        self._started = True
        self._tool_calls.add(
            ToolCallFragment(
                index=self._call_count,
                id=call.id or "",
                name=called.name or "",
                arguments=_compact_json(arguments) if isinstance(arguments, dict) else arguments or "",
                complete=True,
            )
        )
        self._blocks.insert(self._tool_calls.flush())

    def _finish(self, chunk: OllamaChunk) -> None:
        self._flush_content()
        self._blocks.close()
        reason = FINISH_REASONS.get((chunk.done_reason or "").strip().lower(), "other")
        calls = self._tool_calls.finish(truncated=reason == "length")
        self._blocks.insert(calls)
        if calls and reason == "stop":
            reason = "tool-calls"
        finish = FinishStep(
            reason,
            _usage(chunk),
            self._model or self._requested_model,
            self._provider,
            provider_metadata=_metadata(chunk),
        )
        self._blocks.insert([finish])
        self.done = True

    def _split_content(self) -> None:
        """Cut the text so far into text and reasoning; the beginning of a tag is held back."""
        if self._content:
            pieces = self._think_tags.feed("".join(self._content))
            self._content.clear()
            self._write_tagged(pieces)

    def _flush_content(self) -> None:
        """The same with nothing held back: something else comes."""
        self._split_content()
        if self._think_tags.pending:
            self._write_tagged(self._think_tags.close())

    def _write_tagged(self, tagged: list[TaggedText]) -> None:
        for kind, piece in tagged:
            if kind == "border":
                self._blocks.close()
            else:
                self._blocks.write(kind, piece)


def _compact_json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def _usage(chunk: OllamaChunk) -> Usage | None:
    """What was counted. The prompt's count is absent when the prompt was cached: unknown, not zero."""
    prompt, output = chunk.prompt_eval_count, chunk.eval_count
    if prompt is None and output is None:
        return None
    total = None if prompt is None or output is None else prompt + output
    return Usage(input_tokens=prompt, output_tokens=output, total_tokens=total)


def _metadata(chunk: OllamaChunk) -> ProviderMetadata | None:
    """The reason in Ollama's word, and its durations in nanoseconds."""
    own = {
        "doneReason": chunk.done_reason or None,
        "totalDuration": chunk.total_duration,
        "loadDuration": chunk.load_duration,
        "promptEvalDuration": chunk.prompt_eval_duration,
        "evalDuration": chunk.eval_duration,
    }
    told = {name: value for name, value in own.items() if value is not None}
    return {"ollama": told} if told else None


def _unfinished_error(started: bool) -> ProviderError:
    what = "ended before it was done" if started else "is empty"
    return ProviderError(
        f"the provider's answer {what}",
        category="network",
        transient=True,
        hint="the connection was cut, or the server was stopped; look into its log",
    )
