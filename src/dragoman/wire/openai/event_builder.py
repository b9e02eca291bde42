"""Build events from the chunks of one chat.completions answer: blocks, tool calls, sources, finish.

If one chunk contains several, reasoning comes before text and text before calls. The transcript of a spoken
answer is its text, and the sound is a file at the end. A refusal is a text block
with the provider metadata `{"openai": {"refusal": true}}`; the finish reason stays the provider's.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from dragoman.events import Event, File, FinishReason, FinishStep, TextDelta, Usage
from dragoman.json_decoding import is_well_formed
from dragoman.wire.answer_decoder import AnswerBuilder, AnswerOptions
from dragoman.wire.files import detect_media_type
from dragoman.wire.json_codec import as_text, compact_json
from dragoman.wire.openai.chunk import (
    OpenAIChoice,
    OpenAIChunk,
    OpenAIDelta,
    OpenAIFunctionCall,
    OpenAIToolCallDelta,
    lenient_function,
)
from dragoman.wire.openai.quirks import Quirks
from dragoman.wire.openai.reasoning_accumulator import ReasoningAccumulator, bind_to_provider
from dragoman.wire.openai.usage import has_counts, read_usage
from dragoman.wire.provider_errors import incomplete_answer_error, provider_error, with_usage
from dragoman.wire.source_tracker import SourceTracker
from dragoman.wire.text_block_writer import BlockKind, TextBlockWriter
from dragoman.wire.think_tags import TaggedText, ThinkTagSplitter
from dragoman.wire.tool_calls import ToolCallFragment

_RAW_AUDIO = "audio/pcm"
_AUDIO_TYPES: Mapping[str, str] = {  # by the format of a request
    "aac": "audio/aac",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/opus",
    "pcm16": _RAW_AUDIO,
    "wav": "audio/wav",
}
AUDIO_START = 64  # characters of base64 that tell the format of a sound
FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "tool_calls": "tool-calls",
    "tool_call": "tool-calls",
    "tool_use": "tool-calls",
    "function_call": "tool-calls",
    "content_filter": "content-filter",
    "safety": "content-filter",
    "refusal": "content-filter",
    "recitation": "content-filter",
    "prohibited_content": "content-filter",
    "sensitive": "content-filter",
    "guardrail_intervened": "content-filter",
    "error": "error",
    "abort": "error",
    "network_error": "error",
    "insufficient_system_resource": "error",
    "malformed_function_call": "error",
}
_FINISH_REASON_RANKS: Mapping[FinishReason, int] = {
    "stop": 1,
    "tool-calls": 2,
    "length": 3,
    "content-filter": 3,
    "error": 4,
}


class OpenAIEventBuilder(AnswerBuilder):
    """Builds the events of one answer."""

    def __init__(self, quirks: Quirks, **options: Unpack[AnswerOptions]) -> None:
        super().__init__(**options)
        self.finish_reason: FinishReason | None = None
        self.model = ""
        self.has_tool_calls = False
        self._started = False
        self._lenient_finish = quirks.lenient_finish
        self._reasoning = ReasoningAccumulator(self.provider)
        self.blocks = TextBlockWriter(self._reasoning.take_metadata)
        self._think_tags = ThinkTagSplitter(quirks.think_tags)
        self._content: list[str] = []  # text that ThinkTagSplitter has not read yet
        self._sources = SourceTracker()
        self._audio: list[str] = []  # base64 of a spoken answer, as it comes
        self._usage: Any = None
        self._service_tier: str | None = None

    def add_if_sole_delta(self, chunk: OpenAIChunk) -> bool:
        """Add a chunk that contains nothing but a delta, as nearly all do; return False for any other.

        All checks are in one function, without calls: it runs for every chunk that comes alone in a read.
        """
        choices = chunk.choices
        if (
            choices is None
            or len(choices) != 1
            or not self.model
            or chunk.usage is not None
            or chunk.error is not None
            or chunk.x_groq is not None
            or chunk.citations is not None
            or chunk.search_results is not None
            or chunk.web_search is not None
        ):
            return False
        choice = choices[0]
        delta = choice.delta
        if delta is None or choice.index or choice.finish_reason is not None or choice.error is not None:
            return False
        has_more = not (
            delta.reasoning_content is None
            and delta.reasoning is None
            and delta.reasoning_text is None
            and delta.refusal is None
            and delta.reasoning_details is None
            and delta.thinking_blocks is None
            and delta.reasoning_opaque is None
            and delta.function_call is None
            and delta.annotations is None
            and delta.images is None
            and delta.audio is None
            and delta.executed_tools is None
        )
        content = delta.content
        if type(content) is str and not (has_more or delta.tool_calls):
            self.add_text(content)
        else:
            self._add_delta(delta, has_more=has_more)
        return True

    def add_text(self, text: str) -> None:
        """Add text of the answer."""
        blocks, tags = self.blocks, self._think_tags
        if (  # more of a text, in which no tag begins: nothing to split
            text
            and blocks.kind == "text"
            and tags.state in ("text", "plain")
            and "<" not in text
            and not (self.has_tool_calls or self._content or tags.pending)
        ):
            blocks.pending_text.append(text)
            tags.last_character = text[-1]
        else:
            self._add_content(text)

    def extend_text(self, text: str) -> TextDelta | None:
        """Return the delta of more text; None, and nothing is added, where `add_text` would do more."""
        tags = self._think_tags
        is_plain = tags.state in ("text", "plain") and not (tags.pending or self._content)
        if not is_plain or self.has_tool_calls or "<" in text:
            return None
        if not (text.isascii() or is_well_formed(text)):
            return None
        delta = self.blocks.extend(text)
        if delta is not None:
            tags.last_character = text[-1]
        return delta

    def _add_delta(self, delta: OpenAIDelta, *, has_more: bool = True) -> None:
        """Add any delta; one without `has_more` contains only content and tool calls."""
        if has_more:
            self._add_all_content(delta)
        else:
            self._add_content(delta.content)
        for fragment in delta.tool_calls or ():
            if not self._append_arguments(fragment):
                self._add_call(tool_call_fragment(fragment, self.provider))

    def add_chunk(self, chunk: OpenAIChunk) -> None:
        """Add any chunk."""
        self.model = self.model or chunk.model or ""
        self._set_usage(chunk.usage)
        if isinstance(chunk.service_tier, str):
            self._service_tier = chunk.service_tier
        if chunk.search_results or chunk.citations or chunk.web_search:
            self._insert_events(
                self._sources.new_sources(chunk.search_results, chunk.citations, chunk.web_search)
            )
        for choice in chunk.choices or ():
            if not choice.index:
                self._add_choice(choice)
        if chunk.x_groq is not None and isinstance(chunk.x_groq, Mapping):  # a slow check
            self._set_usage(chunk.x_groq.get("usage"))
            self.fail(chunk.x_groq.get("error"))
        self.fail(chunk.error)

    @property
    def usage(self) -> Usage | None:
        """The usage that the provider has reported so far."""
        return read_usage(self._usage, model=self.model or self.requested_model or "")

    def fail(self, error: Any) -> None:
        """See `AnswerBuilder`; None, and an empty error, is none."""
        if error:
            super().fail(error)

    def take_events(self) -> list[Event]:
        """Return the events since the last call."""
        if self._content:
            self._split_content()
        if self.has_tool_calls:
            self.blocks.insert(self.tool_calls.take_events())
        return self.blocks.take_events()

    def end(self, *, done: bool) -> None:
        """Close the answer, after `[DONE]` or without; it fails if the provider gave no finish reason."""
        reason = self.finish_reason
        if reason is None and done and (self._started or self._lenient_finish or has_counts(self._usage)):
            reason = "stop"  # some vendors send no finish reason, or lose it
        if reason is None:
            self.fail(incomplete_answer_error(started=self._started, saw_done=done))
        elif reason == "error":
            error = provider_error(
                {"message": "the provider ended the answer with the finish reason 'error'"}
            )
            self.fail(with_usage(error, self.usage))
        if self.failure is not None or reason is None:
            return
        self._flush_content()
        self.blocks.insert(self.tool_calls.flush())
        if self._reasoning.has_opaque and self.blocks.kind != "reasoning":
            self.blocks.open("reasoning")  # a late signature gets a block of its own
        self.blocks.close()
        calls = self.tool_calls.finish(truncated=reason == "length")
        self.blocks.insert(calls)
        if calls and reason == "stop":
            reason = "tool-calls"
        if self._audio:
            self.blocks.insert([audio_file(self._audio, self.audio_format)])
        model = self.model or self.requested_model
        finish = FinishStep(reason, self.usage, model, self.provider, service_tier=self._service_tier)
        self.blocks.insert([finish])

    def _add_choice(self, choice: OpenAIChoice) -> None:
        if choice.delta is not None:
            self._add_delta(choice.delta)
        if not self._started and (choice.delta is None or choice.finish_reason):
            # a complete answer in one event, perhaps with an empty delta, or the old completions API
            self._add_delta(
                _with_indexes(choice.message)
                if choice.message is not None
                else OpenAIDelta(content=choice.text)
            )
        if choice.finish_reason:
            reason = FINISH_REASONS.get(choice.finish_reason.strip().lower().replace("-", "_"), "other")
            if self.finish_reason is None or _FINISH_REASON_RANKS.get(reason, 0) > _FINISH_REASON_RANKS.get(
                self.finish_reason, 0
            ):
                self.finish_reason = reason
        self._set_usage(choice.usage)
        self.fail(choice.error)

    def _add_content(self, content: str | list[Any] | None) -> None:
        if not content:
            return
        if isinstance(content, list):
            for part in content:
                self._add_content_part(part)
            return
        if self.has_tool_calls:
            self.blocks.insert(self.tool_calls.flush())
        self._started = True
        self._content.append(content)

    def _add_all_content(self, delta: OpenAIDelta) -> None:
        """Add all of the delta except its tool calls."""
        self._add_reasoning(delta)
        self._add_content(delta.content)
        if delta.refusal:
            self._write_block("refusal", delta.refusal)
        if delta.annotations or delta.images or delta.audio or delta.executed_tools:
            self._add_attachments(delta)
        if delta.function_call:
            self._add_call(
                tool_call_fragment(
                    OpenAIToolCallDelta(function=lenient_function(delta.function_call)),
                    self.provider,
                    index="function_call",
                )
            )

    def _add_reasoning(self, delta: OpenAIDelta) -> None:
        has_details = delta.reasoning_details or delta.thinking_blocks or delta.reasoning_opaque
        if has_details:
            self._split_content()
        self._write_reasoning(self._reasoning.add_delta(delta), is_opaque=bool(has_details))

    def _write_reasoning(self, text: str, *, is_opaque: bool) -> None:
        """Write the text of a delta; one that is only opaque may open a block."""
        if text:
            self._write_block("reasoning", text)
        elif is_opaque and self._reasoning.has_opaque and not self._started:
            self._started = True
            self.blocks.open("reasoning")

    def _add_content_part(self, part: Any) -> None:
        """Add one part of a content list (Mistral, Databricks)."""
        part_type = part.get("type") if isinstance(part, Mapping) else "text"
        if part_type in ("thinking", "reasoning"):
            self._reasoning.add_summary(part.get("summary"))
            text = as_text(part.get("thinking") or part.get("reasoning")) or as_text(part) or ""
            self._write_reasoning(text, is_opaque=True)
        elif part_type == "refusal":
            self._write_block("refusal", as_text(part.get("refusal")) or "")
        elif part_type == "image_url":
            self._insert_events(self._sources.new_images([part]))
        else:
            self._add_content(as_text(part) or "")

    def _add_attachments(self, delta: OpenAIDelta) -> None:
        self._insert_events(
            [
                *self._sources.new_sources(delta.annotations, *_search_results(delta.executed_tools)),
                *self._sources.new_images(delta.images),
            ]
        )
        if isinstance(delta.audio, Mapping):
            if data := as_text(delta.audio.get("data")):
                self._started = True
                self._audio.append(data)
            self._add_content(as_text(delta.audio.get("transcript")) or "")

    def _append_arguments(self, fragment: OpenAIToolCallDelta) -> bool:
        """Append a fragment that contains only arguments, as most do; False for any other."""
        function_delta = fragment.function
        return (
            function_delta is not None
            and isinstance(function_delta.arguments, str)
            and not function_delta.name
            and not fragment.id
            and fragment.extra_content is None
            and not self._content
            and not self._think_tags.pending
            and self.blocks.kind is None
            and self.tool_calls.append_arguments(fragment.index, function_delta.arguments)
        )

    def _add_call(self, fragment: ToolCallFragment) -> None:
        if not (fragment.id or fragment.name or fragment.arguments or fragment.metadata):
            return
        self._flush_content()
        self.blocks.close()
        self.has_tool_calls = self._started = True
        self.tool_calls.add(fragment)

    def _write_block(self, kind: BlockKind, block_text: str) -> None:
        if not block_text:
            return
        self._flush_content()
        if self.has_tool_calls:
            self.blocks.insert(self.tool_calls.flush())
        self._started = True
        self.blocks.write(kind, block_text)

    def _insert_events(self, events: list[Event]) -> None:
        """Insert events at the current position."""
        if not events:
            return
        self._split_content()
        if self.has_tool_calls:
            self.blocks.insert(self.tool_calls.take_events())
        self.blocks.insert(events)

    def _split_content(self) -> None:
        """Split the text so far into text and reasoning; keep back the beginning of a tag."""
        if not self._content:
            return
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
                self.blocks.close()
            else:
                self.blocks.write(kind, text)

    def _set_usage(self, usage: Any) -> None:
        """Keep the last usage that has counts, wherever the chunk has it."""
        if usage and has_counts(usage):
            self._usage = usage


def tool_call_fragment(
    delta: OpenAIToolCallDelta, provider: str | None = None, *, index: str | None = None
) -> ToolCallFragment:
    """Convert a part of a call for `ToolCallAssembler`; its opaque content is bound to the provider."""
    function_delta, custom, extra_content = (
        delta.function or OpenAIFunctionCall(),
        delta.custom,
        delta.extra_content,
    )
    # Snowflake sends an empty `custom` beside each function
    is_freeform = isinstance(custom, Mapping) and not (function_delta.name or function_delta.arguments)
    if is_freeform:
        function_delta = OpenAIFunctionCall(
            name=as_text(custom.get("name")), arguments=as_text(custom.get("input"))
        )
    arguments = function_delta.arguments or ""
    return ToolCallFragment(
        index=delta.index if index is None else index,
        id=delta.id or "",
        name=function_delta.name or "",
        arguments=compact_json(arguments) if isinstance(arguments, dict) else arguments,
        complete=isinstance(arguments, dict),
        freeform=is_freeform,
        metadata=bind_to_provider({"extra_content": extra_content}, provider) if extra_content else None,
    )


def audio_file(pieces: Sequence[str], requested_format: str | None) -> File:
    """Return the sound of an answer from its pieces of base64.

    Some formats have no beginning that tells them: then it is in the format that was asked for, or raw (PCM).
    """
    requested_type = _AUDIO_TYPES.get(requested_format or "")
    media_type = None
    if requested_type != _RAW_AUDIO:
        media_type = detect_media_type(decode_base64(pieces[0][:AUDIO_START])) or requested_type
    media_type = media_type or _RAW_AUDIO
    if any(piece.endswith("=") or len(piece) % 4 for piece in pieces[:-1]):  # each is encoded by itself
        data = base64.b64encode(b"".join(map(decode_base64, pieces))).decode()
    else:
        data = "".join(pieces)
    return File(f"data:{media_type};base64,{data}", media_type)


def decode_base64(text: str) -> bytes:
    """Decode base64 leniently; nothing of what is none."""
    try:
        return base64.b64decode(text.encode(errors="replace"))
    except ValueError:
        return b""


def _search_results(executed_tools: Any) -> list[Any]:
    """Return the results of each search among the tools that Groq has run."""
    tools = executed_tools if isinstance(executed_tools, list) else []
    found = [tool.get("search_results") for tool in tools if isinstance(tool, Mapping)]
    return [results.get("results") for results in found if isinstance(results, Mapping)]


def _with_indexes(message: OpenAIDelta) -> OpenAIDelta:
    """Number the calls of a complete message, so that each is a call of its own."""
    for index, fragment in enumerate(message.tool_calls or ()):
        fragment.index = index if fragment.index is None else fragment.index
    return message
