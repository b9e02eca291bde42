"""Build events from the chunks of one Anthropic message: blocks, tool calls, sources, finish.

Blocks are identified by their `index`. Server tools become calls that the provider executed; blocks of
unknown types are kept unchanged. Source: wire notes on providers, §6.3 to §6.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from dragoman.errors import ProviderError
from dragoman.events import (
    Event,
    FinishReason,
    FinishStep,
    SourceDocument,
    ToolOutputAvailable,
    ToolOutputError,
    Usage,
)
from dragoman.wire.answer_decoder import AnswerBuilder, AnswerOptions
from dragoman.wire.anthropic.block_decoders import (
    BlockDecoder,
    RawBlockDecoder,
    TextBlockDecoder,
    ThinkingBlockDecoder,
    ToolUseBlockDecoder,
)
from dragoman.wire.anthropic.chunk import AnthropicChunk, AnthropicDelta, anthropic_error
from dragoman.wire.anthropic.provider_metadata import FAMILY, bind_to_provider
from dragoman.wire.anthropic.usage import AnthropicUsage
from dragoman.wire.json_codec import drop_non_finite
from dragoman.wire.provider_errors import incomplete_answer_error, restarted_answer_error
from dragoman.wire.source_tracker import SourceTracker
from dragoman.wire.tool_calls import MAX_ARGUMENTS, MAX_CALLS, too_many_calls_error

FINISH_REASONS: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool-calls",
    "refusal": "content-filter",
}
_FINISH_METADATA = {
    "stop_reason": "stopReason",
    "stop_sequence": "stopSequence",
    "stop_details": "stopDetails",
    "container": "container",
    "id": "id",
}
_IMPLIED_BLOCKS = {"text_delta": "text", "thinking_delta": "thinking"}


class AnthropicEventBuilder(AnswerBuilder):
    """Builds the events of one message."""

    def __init__(self, **options: Unpack[AnswerOptions]) -> None:
        super().__init__(**options)
        self._max_arguments = MAX_ARGUMENTS
        self.started = False
        self.stop_reason: str | None = None
        self._id: Any = None
        self._has_blocks = False
        self._model = self.requested_model
        self._used_ids = set(options.get("used_ids", ()))
        self._events: list[Event] = []
        self._open_blocks: dict[int, BlockDecoder] = {}
        self._unflushed: BlockDecoder | None = None  # the block that may have pending text
        self._server_calls: dict[str, ToolUseBlockDecoder] = {}  # those without a result, by Anthropic's id
        self._has_tool_calls = False
        self._call_count = 0
        self._citations = CitationTracker()
        self._usage = AnthropicUsage()
        self._metadata: dict[str, Any] = {}

    def add_delta(self, index: int | None, delta: AnthropicDelta) -> None:
        """Add a delta to its block; a delta without an index belongs to the first."""
        index = index or 0
        block = self._open_blocks.get(index)
        if block is None:
            block = self._implied_block(index, delta)
            if block is None:
                return
        if block is not self._unflushed:
            self._flush()
            self._unflushed = block
        if delta.type == "text_delta" and type(block) is TextBlockDecoder:  # the common case
            block.pending.append(delta.text or "")
            return
        try:
            events = block.add_delta(delta)
        except ProviderError as error:
            self.fail(error)
            return
        if events:
            self._append_events(events)

    def add_chunk(self, chunk: AnthropicChunk) -> None:
        """Add any chunk; one of an unknown type is ignored."""
        match chunk.type:
            case "content_block_delta":
                if chunk.delta is not None:
                    self.add_delta(chunk.index, chunk.delta)
            case "content_block_start":
                self._start_block(chunk.index, chunk.content_block)
            case "content_block_stop":
                self._end_block(chunk.index or 0)
            case "message_delta":
                self._usage.update(chunk.usage)
                self._add_message_delta(chunk.delta)
            case "message_start":
                self.add_message(chunk.message)
            case _:
                pass

    def add_message(self, message: Any) -> None:
        """Add the message from `message_start`: empty, or complete."""
        self.started = True
        if not isinstance(message, Mapping):
            return
        if self._has_blocks and message.get("id") != self._id:
            self.fail(restarted_answer_error())
            return
        self._id = message.get("id")
        if isinstance(model := message.get("model"), str) and model:
            self._model = model
        content = message.get("content")
        for index, content_block in enumerate(content if isinstance(content, list) else ()):
            self._start_block(index, content_block)
            self._end_block(index)
        self._store_metadata(message)
        self._usage.start(message.get("usage"), complete=bool(self.stop_reason))

    @property
    def pending_arguments(self) -> int:
        """The number of characters of arguments that are not decoded yet."""
        block = self._unflushed
        return block.length if isinstance(block, ToolUseBlockDecoder) else 0

    @property
    def usage(self) -> Usage | None:
        """The usage that the provider has reported so far."""
        return self._usage.to_usage()

    def limit_arguments(self, characters: int) -> None:
        """See `AnswerBuilder`."""
        self._max_arguments = characters

    def _read_error(self, error: Any) -> ProviderError:
        return anthropic_error(error)

    def take_events(self) -> list[Event]:
        """Return the events since the last call."""
        self._flush()
        events, self._events = self._events, []
        return events

    def finish(self) -> None:
        """Close the answer at `message_stop`. It fails if there was no stop reason."""
        if self.stop_reason is None:
            self.fail(incomplete_answer_error("stopped without a stop reason", started=self.started))
            return
        for index in list(self._open_blocks):
            self._end_block(index)
        reason = FINISH_REASONS.get(self.stop_reason, "other")
        if self._has_tool_calls and self.stop_reason == "end_turn":
            reason = "tool-calls"
        self._append_events(
            [
                FinishStep(
                    reason,
                    self.usage,
                    self._model,
                    self.provider,
                    provider_metadata={FAMILY: self._metadata},
                    service_tier=self._usage.service_tier,
                )
            ]
        )

    def _start_block(self, index: int | None, content_block: Any) -> None:
        if not isinstance(content_block, Mapping):
            return
        index = index or 0
        self.started = self._has_blocks = True
        self._end_block(index)
        block_type = content_block.get("type")
        if (
            isinstance(block_type, str)
            and block_type.endswith("_tool_result")
            and self._add_server_result(content_block)
        ):
            return
        self._call_count += str(block_type).endswith("tool_use")
        if self._call_count > MAX_CALLS:
            self.fail(too_many_calls_error())
            return
        block = self._block_decoder(index, content_block)
        self._open_blocks[index] = block
        self._append_events(block.start(content_block))
        self._unflushed = block
        if block_type == "redacted_thinking":
            self._end_block(index)

    def _block_decoder(self, index: int, content_block: Mapping[str, Any]) -> BlockDecoder:
        provider = self.provider
        match content_block.get("type"):
            case "text":
                return TextBlockDecoder(
                    f"text-{index}", provider=provider, on_citation=self._citations.new_sources
                )
            case "thinking" | "redacted_thinking":
                return ThinkingBlockDecoder(f"reasoning-{index}", provider=provider)
            case "tool_use":
                self._has_tool_calls = True
                return ToolUseBlockDecoder(
                    self._unique_id(content_block.get("id")),
                    client_executed=True,
                    provider=provider,
                    max_arguments=self._max_arguments,
                )
            case "server_tool_use" | "mcp_tool_use":
                call = ToolUseBlockDecoder(
                    self._unique_id(content_block.get("id")),
                    client_executed=False,
                    provider=provider,
                    max_arguments=self._max_arguments,
                )
                self._server_calls[str(content_block.get("id"))] = call
                return call
            case _:
                return RawBlockDecoder()

    def _implied_block(self, index: int, delta: AnthropicDelta) -> BlockDecoder | None:
        """Open a block for a delta that has none, if the delta's type tells the block's type."""
        block_type = _IMPLIED_BLOCKS.get(delta.type or "")
        if block_type is None:
            return None
        self._start_block(index, {"type": block_type})
        return self._open_blocks.get(index)

    def _add_server_result(self, result_block: Mapping[str, Any]) -> bool:
        """Add the result of a server tool; False if its call is not part of this answer."""
        call = self._server_calls.pop(str(result_block.get("tool_use_id")), None)
        if call is None:
            return False
        for index, block in list(self._open_blocks.items()):
            if block is call:
                self._end_block(index)
        if call.is_invalid:  # its error event is the result
            return True
        metadata = bind_to_provider({"block": result_block}, self.provider)
        content = drop_non_finite(result_block.get("content"))
        code = content.get("error_code") if isinstance(content, Mapping) else None
        if code or result_block.get("is_error"):
            text = str(code or "the call failed")
            self._append_events(
                [ToolOutputError(call.id, text, provider_executed=True, provider_metadata=metadata)]
            )
        else:
            self._append_events(
                [ToolOutputAvailable(call.id, content, provider_executed=True, provider_metadata=metadata)]
            )
        return True

    def _end_block(self, index: int) -> None:
        block = self._open_blocks.pop(index, None)
        if block is None:
            return
        if self._unflushed is not block:
            self._flush()
        self._unflushed = None
        try:
            self._events += block.end()
        except ProviderError as error:
            self._events += block.flush()
            self.fail(error)

    def _add_message_delta(self, delta: AnthropicDelta | None) -> None:
        if delta is not None:
            self._store_metadata(
                {
                    "stop_reason": delta.stop_reason,
                    "stop_sequence": delta.stop_sequence,
                    "stop_details": delta.stop_details,
                    "container": delta.container,
                }
            )

    def _store_metadata(self, fields: Mapping[str, Any]) -> None:
        """Store the fields that `finish-step` reports; null values are skipped."""
        self._metadata |= {
            key: fields[name] for name, key in _FINISH_METADATA.items() if fields.get(name) is not None
        }
        stop_reason = fields.get("stop_reason")
        if isinstance(stop_reason, str) and stop_reason:
            self.stop_reason = stop_reason

    def _unique_id(self, provider_id: Any) -> str:
        id = provider_id if isinstance(provider_id, str) else ""
        while not id or id in self._used_ids:
            id = self.new_id()
        self._used_ids.add(id)
        return id

    def _append_events(self, events: list[Event]) -> None:
        """Append events after the text added so far."""
        if events:
            self._flush()
            self._events += events

    def _flush(self) -> None:
        if self._unflushed is not None and self._unflushed.pending:
            self._events += self._unflushed.flush()


# ---- Citations

_MEDIA_TYPES = {"page_location": "application/pdf"}


class CitationTracker:
    """Tracks which sources of one answer have been reported."""

    def __init__(self) -> None:
        self._urls = SourceTracker()
        self._documents: set[str] = set()

    def new_sources(self, citation: Mapping[str, Any]) -> list[Event]:
        """Return the source of a citation if it is new: a web page, or a document of the conversation."""
        title = citation.get("title")
        for name in ("url", "source"):
            link = citation.get(name)
            if isinstance(link, str) and link.startswith(("http://", "https://")):
                return self._urls.new_sources([{"url": link, "title": title}])
        index = citation.get("document_index", citation.get("search_result_index"))
        if type(index) is not int:
            return []
        source_id = f"{'document' if 'document_index' in citation else 'search-result'}-{index}"
        if source_id in self._documents:
            return []
        self._documents.add(source_id)
        media_type = _MEDIA_TYPES.get(str(citation.get("type")), "text/plain")
        label = citation.get("document_title") or title or citation.get("source")
        return [SourceDocument(source_id, media_type, label if isinstance(label, str) else source_id)]
