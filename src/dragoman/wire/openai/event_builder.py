"""Answer: the chunks of one chat.completions answer become blocks, tool calls, sources and a finish.

Reasoning comes before text and text before calls when one chunk holds several. A refusal is a text block
with the provider metadata `{"openai": {"refusal": true}}`; the finish reason stays what the provider says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dragoman.errors import ProviderError
from dragoman.events import Event, FinishReason, FinishStep
from dragoman.wire.openai.chunk import (
    OpenAIChoice,
    OpenAIChunk,
    OpenAIDelta,
    OpenAIFunctionCall,
    OpenAIToolCallDelta,
    as_text,
    has_only_content_and_calls,
    lenient_function,
)
from dragoman.wire.openai.quirks import Quirks
from dragoman.wire.openai.reasoning import ReasoningAccumulator, bind_to_provider
from dragoman.wire.openai.usage import has_counts, read_usage
from dragoman.wire.provider_errors import provider_error
from dragoman.wire.sources import SourceTracker
from dragoman.wire.text_blocks import BlockKind, TextBlockWriter
from dragoman.wire.think_tags import TaggedText, ThinkTagSplitter
from dragoman.wire.tool_calls import ToolCallAssembler, ToolCallFragment

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


class OpenAIEventBuilder:
    """One answer under way. `provider_error` is set when it failed; nothing may be added then.

    `provider` goes into the finish, and `model` when no chunk names one. `new_id` gives ids for tool calls
    that come without one, or with one that is `taken`.
    """

    def __init__(
        self,
        quirks: Quirks,
        *,
        provider: str | None,
        model: str | None,
        new_id: Callable[[], str],
        used_ids: Collection[str],
    ) -> None:
        self.failure: ProviderError | None = None
        self.finish_reason: FinishReason | None = None
        self.model = ""
        self.has_tool_calls = False
        self._started = False
        self._lenient_finish = quirks.lenient_finish
        self._provider = provider
        self._reasoning = ReasoningAccumulator(provider)
        self._blocks = TextBlockWriter(self._reasoning.take_metadata)
        self._think_tags = ThinkTagSplitter(quirks.think_tags)
        self._content: list[str] = []  # pieces that Thinking has not seen yet
        self._tool_calls = ToolCallAssembler(new_id=new_id, used_ids=used_ids)
        self._sources = SourceTracker()
        self._usage: Any = None
        self._requested_model = model

    def add_delta(self, delta: OpenAIDelta) -> None:
        """Add what a chunk without anything else brings."""
        if has_only_content_and_calls(delta):
            self._add_content(delta.content)
        else:
            self._add_all_content(delta)
        for fragment in delta.tool_calls or ():
            if not self._append_arguments(fragment):
                self._add_call(self._call_fragment(fragment))

    def add_chunk(self, chunk: OpenAIChunk) -> None:
        """Add any chunk."""
        self.model = self.model or chunk.model or ""
        self._set_usage(chunk.usage)
        if chunk.search_results or chunk.citations or chunk.web_search:
            self._insert_events(
                self._sources.new_sources(chunk.search_results, chunk.citations, chunk.web_search)
            )
        for choice in chunk.choices or ():
            if not choice.index:
                self._add_choice(choice)
        if isinstance(chunk.x_groq, Mapping):
            self._set_usage(chunk.x_groq.get("usage"))
            self.fail(chunk.x_groq.get("error"))
        self.fail(chunk.error)

    def fail(self, error: Any) -> None:
        """Note the provider's error, if it is one; the first stays."""
        if error and self.failure is None:
            self.failure = error if isinstance(error, ProviderError) else provider_error(error)

    def take_events(self) -> list[Event]:
        """The events since the last time."""
        self._split_content()
        if self.has_tool_calls:
            self._blocks.insert(self._tool_calls.take_events())
        return self._blocks.take_events()

    def end(self, *, done: bool) -> None:
        """Close the answer, after `[DONE]` or without; it fails when the provider gave no finish reason."""
        reason = self.finish_reason
        if reason is None and done and self._lenient_finish:
            reason = "stop"
        if reason is None:
            self.fail(_unfinished_error(done, self._started))
        elif reason == "error":
            self.fail(provider_error({"message": "the provider broke the answer off: finish reason 'error'"}))
        if self.failure is not None or reason is None:
            return
        self._flush_content()
        self._blocks.insert(self._tool_calls.flush())
        if self._reasoning.has_opaque and self._blocks.kind != "reasoning":
            self._blocks.open("reasoning")  # a signature that came late, in a block of its own
        self._blocks.close()
        calls = self._tool_calls.finish(truncated=reason == "length")
        self._blocks.insert(calls)
        if calls and reason == "stop":
            reason = "tool-calls"
        model = self.model or self._requested_model
        usage = read_usage(self._usage, model=model or "")
        self._blocks.insert([FinishStep(reason, usage, model, self._provider)])

    def _add_choice(self, choice: OpenAIChoice) -> None:
        if choice.delta is not None:
            self.add_delta(choice.delta)
        if not self._started and (choice.delta is None or choice.finish_reason):
            # a whole answer in one event, perhaps with an empty delta beside it, or the old completions API
            self.add_delta(
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
        self.fail(choice.error)

    def _add_content(self, content: str | list[Any] | None) -> None:
        if not content:
            return
        if isinstance(content, list):
            for part in content:
                self._add_content_part(part)
            return
        if self.has_tool_calls:
            self._blocks.insert(self._tool_calls.flush())
        self._started = True
        self._content.append(content)

    def _add_all_content(self, delta: OpenAIDelta) -> None:
        """Add all of the delta but its tool calls."""
        self._add_reasoning(delta)
        self._add_content(delta.content)
        if delta.refusal:
            self._write_block("refusal", delta.refusal)
        if delta.annotations or delta.images or delta.audio:
            self._add_attachments(delta)
        if delta.function_call:
            self._add_call(
                self._call_fragment(
                    OpenAIToolCallDelta(function=lenient_function(delta.function_call)), index="function_call"
                )
            )

    def _add_reasoning(self, delta: OpenAIDelta) -> None:
        details = delta.reasoning_details or delta.thinking_blocks or delta.reasoning_opaque
        if details:
            self._split_content()
        piece = self._reasoning.add_delta(delta)
        if piece:
            self._write_block("reasoning", piece)
        elif details and self._reasoning.has_opaque and not self._started:
            self._started = True
            self._blocks.open("reasoning")

    def _add_content_part(self, part: Any) -> None:
        """Add one part of a content that is a list (Mistral, Databricks)."""
        kind = part.get("type") if isinstance(part, Mapping) else "text"
        if kind in ("thinking", "reasoning"):
            self._write_block(
                "reasoning", as_text(part.get("thinking") or part.get("reasoning")) or as_text(part) or ""
            )
        elif kind == "refusal":
            self._write_block("refusal", as_text(part.get("refusal")) or "")
        elif kind == "image_url":
            self._insert_events(self._sources.new_images([part]))
        else:
            self._add_content(as_text(part) or "")

    def _add_attachments(self, delta: OpenAIDelta) -> None:
        self._insert_events(
            [*self._sources.new_sources(delta.annotations), *self._sources.new_images(delta.images)]
        )
        if isinstance(delta.audio, Mapping):
            self._add_content(as_text(delta.audio.get("transcript")) or "")

    def _append_arguments(self, fragment: OpenAIToolCallDelta) -> bool:
        """Take a fragment that only brings more arguments, as most do; False for any other."""
        called = fragment.function
        return (
            called is not None
            and isinstance(called.arguments, str)
            and not called.name
            and not fragment.id
            and fragment.extra_content is None
            and not self._content
            and not self._think_tags.pending
            and self._blocks.kind is None
            and self._tool_calls.append_arguments(fragment.index, called.arguments)
        )

    def _add_call(self, fragment: ToolCallFragment) -> None:
        if not (fragment.id or fragment.name or fragment.arguments or fragment.metadata):
            return
        self._flush_content()
        self._blocks.close()
        self.has_tool_calls = self._started = True
        self._tool_calls.add(fragment)

    def _call_fragment(self, fragment: OpenAIToolCallDelta, *, index: str | None = None) -> ToolCallFragment:
        called, custom, extra = (
            fragment.function or OpenAIFunctionCall(),
            fragment.custom,
            fragment.extra_content,
        )
        raw = isinstance(custom, Mapping)
        if raw:
            called = OpenAIFunctionCall(
                name=as_text(custom.get("name")), arguments=as_text(custom.get("input"))
            )
        arguments = called.arguments or ""
        whole = isinstance(arguments, dict)
        return ToolCallFragment(
            index=fragment.index if index is None else index,
            id=fragment.id or "",
            name=called.name or "",
            arguments=_compact_json(arguments) if isinstance(arguments, dict) else arguments,
            complete=whole,
            freeform=raw,
            metadata=bind_to_provider({"extra_content": extra}, self._provider) if extra else None,
        )

    def _write_block(self, kind: BlockKind, block_text: str) -> None:
        if not block_text:
            return
        self._flush_content()
        if self.has_tool_calls:
            self._blocks.insert(self._tool_calls.flush())
        self._started = True
        self._blocks.write(kind, block_text)

    def _insert_events(self, events: list[Event]) -> None:
        """Put events where the stream has them."""
        if not events:
            return
        self._split_content()
        if self.has_tool_calls:
            self._blocks.insert(self._tool_calls.take_events())
        self._blocks.insert(events)

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

    def _set_usage(self, usage: Any) -> None:
        """The last usage that counts anything is the true one, wherever it stands."""
        if usage and has_counts(usage):
            self._usage = usage


def _compact_json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def _with_indexes(message: OpenAIDelta) -> OpenAIDelta:
    """The whole message, with numbers on its calls: each is one of its own."""
    for index, fragment in enumerate(message.tool_calls or ()):
        fragment.index = index if fragment.index is None else fragment.index
    return message


def _unfinished_error(done: bool, started: bool) -> ProviderError:
    what = "ended without a finish reason" if started else "is empty"
    return ProviderError(
        f"the provider's answer {what}{' although it said [DONE]' if done else ''}",
        category="network",
        transient=True,
        hint="the connection was cut, or the server hides its errors; look into its log",
    )
