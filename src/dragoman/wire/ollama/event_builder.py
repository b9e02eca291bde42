"""Build events from the lines of one /api/chat answer: blocks, tool calls, finish.

If one line contains several, thinking comes before text and text before calls. Calls arrive complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from dragoman.events import Event, FinishReason, FinishStep, Usage
from dragoman.messages import ProviderMetadata
from dragoman.wire.answer_decoder import AnswerBuilder, AnswerOptions
from dragoman.wire.json_codec import compact_json
from dragoman.wire.ollama.chunk import (
    OllamaChunk,
    OllamaFunctionCall,
    OllamaMessage,
    OllamaToolCall,
)
from dragoman.wire.provider_errors import incomplete_answer_error
from dragoman.wire.text_block_writer import TextBlockWriter
from dragoman.wire.think_tags import TaggedText, ThinkTagSplitter
from dragoman.wire.tool_calls import ToolCallFragment

FINISH_REASONS: Mapping[str, FinishReason] = {
    "": "stop",  # old servers send none
    "stop": "stop",
    "load": "stop",
    "unload": "stop",
    "length": "length",
}


class OllamaEventBuilder(AnswerBuilder):
    """Builds the events of one answer. `done` is set when it has finished; nothing may be added then."""

    def __init__(self, **options: Unpack[AnswerOptions]) -> None:
        super().__init__(**options)
        self.done = False
        self._started = False
        self._model = ""
        self._blocks = TextBlockWriter(lambda: None)
        self._think_tags = ThinkTagSplitter()
        self._content: list[str] = []  # text that ThinkTagSplitter has not read yet
        self._call_count = 0

    def add_chunk(self, chunk: OllamaChunk) -> None:
        """Add a line."""
        self._model = self._model or chunk.model or ""
        message = chunk.message
        if message is not None:
            self._add_message(message)
        if chunk.error:
            self.fail(chunk.error)
        elif chunk.done:
            self._finish(chunk)

    def take_events(self) -> list[Event]:
        """Return the events since the last call."""
        self._split_content()
        if self.failure is not None:
            self._blocks.insert(self.tool_calls.take_events())  # of the call that failed
        return self._blocks.take_events()

    def end(self) -> None:
        """End the stream: the answer fails unless it is done."""
        if not self.done:
            self.fail(incomplete_answer_error("ended before it was done", started=self._started))

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
        function = call.function or OllamaFunctionCall()
        arguments = function.arguments
        self._flush_content()
        self._blocks.close()
        self._call_count += 1
        self._started = True
        self.tool_calls.add(
            ToolCallFragment(
                index=self._call_count,
                id=call.id or "",
                name=function.name or "",
                arguments=compact_json(arguments) if isinstance(arguments, dict) else arguments or "",
                complete=True,
            )
        )
        self._blocks.insert(self.tool_calls.flush())

    def _finish(self, chunk: OllamaChunk) -> None:
        self._flush_content()
        self._blocks.close()
        reason = FINISH_REASONS.get((chunk.done_reason or "").strip().lower(), "other")
        calls = self.tool_calls.finish(truncated=reason == "length")
        self._blocks.insert(calls)
        if calls and reason == "stop":
            reason = "tool-calls"
        finish = FinishStep(
            reason,
            read_usage(chunk),
            self._model or self.requested_model,
            self.provider,
            provider_metadata=_metadata(chunk),
        )
        self._blocks.insert([finish])
        self.done = True

    def _split_content(self) -> None:
        """Split the text so far into text and reasoning; keep back the beginning of a tag."""
        if self._content:
            pieces = self._think_tags.feed("".join(self._content))
            self._content.clear()
            self._write_tagged(pieces)

    def _flush_content(self) -> None:
        """Like `_split_content`, with nothing kept back: other content follows."""
        self._split_content()
        if self._think_tags.pending:
            self._write_tagged(self._think_tags.close())

    def _write_tagged(self, tagged: list[TaggedText]) -> None:
        for kind, text in tagged:
            if kind == "border":
                self._blocks.close()
            else:
                self._blocks.write(kind, text)


def read_usage(chunk: OllamaChunk) -> Usage | None:
    """Return the counts. The prompt's is absent if the prompt was cached: unknown, not zero."""
    prompt, output = _count(chunk.prompt_eval_count), _count(chunk.eval_count)
    if prompt is None and output is None:
        return None
    total = None if prompt is None or output is None else prompt + output
    return Usage(input_tokens=prompt, output_tokens=output, total_tokens=total)


def _count(value: int | None) -> int | None:
    return None if value is None or value < 0 else value


def _metadata(chunk: OllamaChunk) -> ProviderMetadata | None:
    """Ollama's own finish reason, and its durations in nanoseconds."""
    fields = {
        "doneReason": chunk.done_reason or None,
        "totalDuration": chunk.total_duration,
        "loadDuration": chunk.load_duration,
        "promptEvalDuration": chunk.prompt_eval_duration,
        "evalDuration": chunk.eval_duration,
    }
    metadata = {name: value for name, value in fields.items() if value is not None}
    return {"ollama": metadata} if metadata else None
