"""Convert events to the deltas of a chat.completions message.

A stream sends each delta; a document is their sum. Each list in a delta has objects with an `index` that
counts from 0 without gaps, since the SDKs merge by it. What OpenAI's format does not have (documents, files
other than images, calls that the provider ran itself) is omitted. Source: wire notes on providers, §10.2 and
§10.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from dragoman import events as e
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.messages import ProviderMetadata
from dragoman.wire.reasoning_metadata import reasoning_details
from dragoman.wire.source_tracker import cited_place

REASONING_FORMAT = "anthropic-claude-v1"

MessageDelta = dict[str, Any]
BlockEvent: TypeAlias = (
    e.TextStart | e.TextDelta | e.TextEnd | e.ReasoningStart | e.ReasoningDelta | e.ReasoningEnd
)
_BLOCK_EVENTS = (e.TextStart, e.TextDelta, e.TextEnd, e.ReasoningStart, e.ReasoningDelta, e.ReasoningEnd)


class _ReasoningBlock(msgspec.Struct):
    """An open reasoning block."""

    texts: list[str]
    metadata: ProviderMetadata


class DeltaEncoder:
    """Converts the events of one answer. `finish` is set once the answer is complete."""

    def __init__(self) -> None:
        self.finish: e.FinishStep | None = None
        self.text_length = 0  # characters so far
        self._step_start = 0  # of them, those before the step
        self.open_text_id: str | None = None  # the open text block, unless it is a refusal or still empty
        self._started = False
        self._refusal_ids: set[str] = set()
        self._has_refusal = False
        self._reasoning_blocks: dict[str, _ReasoningBlock] = {}
        self.tool_calls = ToolCallEncoder()
        self._list_lengths = dict.fromkeys(
            ("reasoning_details", "thinking_blocks", "annotations", "images"), 0
        )

    def encode(self, event: e.Event) -> MessageDelta | None:
        """Return the delta of the event; None if it has none. The first delta has the role."""
        if self.finish is not None:
            return None
        delta = self._encode_block(event) if isinstance(event, _BLOCK_EVENTS) else self._encode_other(event)
        if delta is None or self._started:
            return delta
        self._started = True
        return {"role": "assistant", "content": None} | delta

    def append_reasoning(self, event: e.ReasoningDelta) -> bool:
        """Append to an open reasoning block; False if `encode` must handle the event."""
        block = self._reasoning_blocks.get(event.id)
        if block is None or not self._started or not event.delta or event.provider_metadata is not None:
            return False
        block.texts.append(event.delta)
        return True

    def _encode_block(self, event: BlockEvent) -> MessageDelta | None:
        match event:
            case e.TextStart():
                self._start_text(event)
            case e.TextDelta():
                return self._encode_text(event)
            case e.TextEnd():
                self.open_text_id = None
            case e.ReasoningStart():
                self._reasoning_blocks[event.id] = _ReasoningBlock([], dict(event.provider_metadata or {}))
            case e.ReasoningDelta():
                return self._encode_reasoning(event)
            case e.ReasoningEnd():
                return self._end_reasoning(event)
        return None

    def _encode_other(self, event: e.Event) -> MessageDelta | None:
        if isinstance(event, CALL_EVENTS):
            fragments = self.tool_calls.encode(event)
            return {"tool_calls": fragments} if fragments else None
        match event:
            case e.StartStep():
                self._step_start = self.text_length
            case e.SourceUrl():
                return self._encode_source(event)
            case e.File():
                return self._encode_image(event)
            case e.FinishStep():
                return self._encode_finish(event)
            case _:
                pass
        return None

    def _start_text(self, event: e.TextStart) -> None:
        if (event.provider_metadata or {}).get("openai", {}).get("refusal"):
            self._refusal_ids.add(event.id)
        else:
            self._refusal_ids.discard(event.id)

    def _encode_text(self, event: e.TextDelta) -> MessageDelta | None:
        if not event.delta:
            return None
        if event.id in self._refusal_ids:
            self._has_refusal = True
            return {"refusal": event.delta}
        self.open_text_id = event.id
        self.text_length += len(event.delta)
        return {"content": event.delta}

    def _encode_reasoning(self, event: e.ReasoningDelta) -> MessageDelta | None:
        block = self._reasoning_blocks.setdefault(event.id, _ReasoningBlock([], {}))
        block.texts.append(event.delta)
        _merge_metadata(block.metadata, event.provider_metadata)
        return {"reasoning_content": event.delta} if event.delta else None

    def _end_reasoning(self, event: e.ReasoningEnd) -> MessageDelta | None:
        block = self._reasoning_blocks.pop(event.id, None) or _ReasoningBlock([], {})
        _merge_metadata(block.metadata, event.provider_metadata)
        openai_metadata = block.metadata.get("openai", {})
        entries = {
            "reasoning_details": _reasoning_details("".join(block.texts), block.metadata),
            "thinking_blocks": _objects(openai_metadata.get("thinking_blocks")),
        }
        delta: MessageDelta = {
            name: [self._with_index(name, entry) for entry in found]
            for name, found in entries.items()
            if found
        }
        if openai_metadata.get("reasoning_opaque"):
            delta["reasoning_opaque"] = openai_metadata["reasoning_opaque"]
        return delta or None

    def _encode_source(self, event: e.SourceUrl) -> MessageDelta:
        """The citation's position is where its provider places it, or else the current end of the text."""
        place = cited_place(event)
        start, end = (self._step_start + index for index in place) if place else (0, 0)
        if not self._step_start <= start < end <= self.text_length:
            start = end = self.text_length
        citation = {
            "url": event.url,
            "title": event.title or event.url,
            "start_index": start,
            "end_index": end,
        }
        entry = {"type": "url_citation", "url_citation": citation}
        return {"annotations": [self._with_index("annotations", entry)]}

    def _encode_image(self, event: e.File) -> MessageDelta | None:
        if not event.media_type.startswith("image/"):
            return None
        return {
            "images": [self._with_index("images", {"type": "image_url", "image_url": {"url": event.url}})]
        }

    def _encode_finish(self, event: e.FinishStep) -> MessageDelta | None:
        """Encode a finish; `error` and `aborted` are not finishes."""
        if event.finish_reason not in FINISH_REASONS:
            return None
        self.finish, self.open_text_id = event, None
        self._reasoning_blocks.clear()
        fragments = self.tool_calls.flush()
        delta: MessageDelta = {"tool_calls": fragments} if fragments else {}
        if event.finish_reason == "content-filter" and not self._has_refusal:
            details = (event.provider_metadata or {}).get("anthropic", {}).get("stopDetails")
            reason = details.get("explanation") if isinstance(details, Mapping) else None
            if isinstance(reason, str) and reason:
                self._has_refusal, delta["refusal"] = True, reason
        if not (self.text_length or self.tool_calls or self._has_refusal):
            delta["content"] = ""  # an empty answer has empty content, not none
        return delta

    def _with_index(self, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        index = self._list_lengths[name]
        self._list_lengths[name] += 1
        return {"index": index, **{key: value for key, value in entry.items() if key != "index"}}


FINISH_REASONS: Mapping[str | None, str] = {
    "stop": "stop",
    "length": "length",
    "max-steps": "length",
    "content-filter": "content_filter",
    "tool-calls": "tool_calls",
    "other": "stop",  # the provider ended the answer with a reason of its own
}


def _merge_metadata(metadata: ProviderMetadata, update: ProviderMetadata | None) -> None:
    for family, values in (update or {}).items():
        metadata[family] = {**metadata.get(family, {}), **values}


def _reasoning_details(text: str, metadata: ProviderMetadata) -> list[dict[str, Any]]:
    """The opaque parts that must be sent back with the block's text, as entries of `reasoning_details`."""
    anthropic_metadata = metadata.get("anthropic", {})
    origin = {
        "format": REASONING_FORMAT,
        **({"provider": anthropic_metadata["provider"]} if anthropic_metadata.get("provider") else {}),
    }
    if anthropic_metadata.get("redactedData"):
        return [{"type": "reasoning.encrypted", "data": anthropic_metadata["redactedData"], **origin}]
    if anthropic_metadata.get("signature"):
        return [
            {"type": "reasoning.text", "text": text, "signature": anthropic_metadata["signature"], **origin}
        ]
    return reasoning_details(metadata) or _objects(metadata.get("openai", {}).get("reasoning_details"))


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


# ---- Tool calls, one after the other
# OpenAI's SDK treats a call as complete once a fragment of another call arrives, so a second call's fragments
# wait until the first call is complete. Indexes count the calls that the client sees, from 0.
# Source: wire notes on providers, §4.3 and §10.5.

CallFragment = dict[str, Any]
NamedCallEvent: TypeAlias = e.ToolInputStart | e.ToolInputAvailable | e.ToolInputError
CallEvent: TypeAlias = NamedCallEvent | e.ToolInputDelta

CALL_EVENTS = (e.ToolInputStart, e.ToolInputDelta, e.ToolInputAvailable, e.ToolInputError)
_encoder = msgspec.json.Encoder()


class ToolCallEncoder:
    """Encodes the calls of one answer, except those that the provider runs itself."""

    def __init__(self) -> None:
        self._calls: list[_EncodedCall] = []
        self._by_id: dict[str, _EncodedCall] = {}
        self._current = 0  # index of the call whose fragments are sent

    def __len__(self) -> int:
        return len(self._calls)

    def encode(self, event: CallEvent) -> list[CallFragment]:
        """Return the fragments that can be sent now."""
        call = self._by_id.get(event.tool_call_id)
        if call is None:
            if isinstance(event, e.ToolInputDelta) or event.provider_executed:
                return []
            call = self._by_id[event.tool_call_id] = _EncodedCall(event, index=len(self._calls))
            self._calls.append(call)
        call.add_event(event)
        return call.take_fragments() if call.index < self._current else self._take_ready()

    def append_arguments(self, event: e.ToolInputDelta) -> int | None:
        """Append arguments to the current call and return its index; None if `encode` must handle the
        event.
        """
        call = self._by_id.get(event.tool_call_id)
        if call is None or call.is_blank or call.index != len(self._calls) - 1 or call.index != self._current:
            return None
        call.sent.append(event.input_text_delta)
        return call.index

    def flush(self) -> list[CallFragment]:
        """Return all pending fragments, at the end of the answer."""
        waiting = self._calls[self._current :]
        self._current = len(self._calls)
        return [fragment for call in waiting for fragment in call.take_fragments()]

    def _take_ready(self) -> list[CallFragment]:
        fragments: list[CallFragment] = []
        while self._current < len(self._calls):
            call = self._calls[self._current]
            fragments += call.take_fragments()
            if not call.is_ended and (call is self._calls[-1] or not call.is_complete()):
                break
            self._current += 1
        return fragments


class _EncodedCall:
    """A call whose fragments are being sent."""

    def __init__(self, event: NamedCallEvent, *, index: int) -> None:
        self.index = index
        self.is_blank = True  # only white space so far
        self.is_ended = False
        self.sent: list[str] = []
        self._header: CallFragment | None = {"index": index, "id": event.tool_call_id, "type": "function"}
        extra_content = (event.provider_metadata or {}).get("openai", {}).get("extra_content")
        if extra_content:
            self._header["extra_content"] = extra_content
        self._name = event.tool_name
        self._unsent: list[str] = []

    def add_event(self, event: CallEvent) -> None:
        """Add an event of the call; the last event provides the arguments if none were streamed."""
        match event:
            case e.ToolInputStart():
                pass
            case e.ToolInputDelta(input_text_delta=fragment):
                self._append(fragment)
            case e.ToolInputAvailable():
                self.is_ended = True
                if self.is_blank:
                    self._append(_arguments_text({} if event.input is None else event.input))
            case e.ToolInputError():
                self.is_ended = True
                if not (self.sent or self._unsent):
                    self._append(_arguments_text("" if event.input is None else event.input))

    def take_fragments(self) -> list[CallFragment]:
        """Return what has not been sent, as one fragment; the first has the call's id and name."""
        arguments = "".join(self._unsent)
        self.sent += self._unsent
        self._unsent = []
        header, self._header = self._header, None
        if header is not None:
            return [{**header, "function": {"name": self._name, "arguments": arguments}}]
        return [{"index": self.index, "function": {"arguments": arguments}}] if arguments else []

    def is_complete(self) -> bool:
        """Return whether the arguments are a complete JSON object, as far as can be seen."""
        text = "".join(self.sent)
        if not text.rstrip().endswith("}"):
            return False
        try:
            decode_json(text)
        except DECODE_ERRORS:
            return False
        return True

    def _append(self, text: str) -> None:
        if text:
            self._unsent.append(text)
            self.is_blank = self.is_blank and text.isspace()


def _arguments_text(arguments: Any) -> str:
    """Return the arguments as JSON text; a string is used unchanged."""
    return arguments if isinstance(arguments, str) else _encoder.encode(arguments).decode()
