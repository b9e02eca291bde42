"""The Responses API as a client dialect: one object per request, since an answer repeats its request."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.errors import DragomanError, ProviderError
from dragoman.events import Event
from dragoman.ids import new_id
from dragoman.providers.adapter import Family
from dragoman.providers.endpoint import UpstreamServer
from dragoman.wire.client_request import ClientRequest, RawRequestBody
from dragoman.wire.openai import encoder as openai_reply
from dragoman.wire.responses import encoder as responses_reply
from dragoman.wire.responses.client_request import ResponsesRequest, parse_responses_request
from dragoman.wire.responses.client_tools import ClientTools
from dragoman.wire.responses.compaction import open_compactions
from dragoman.wire.responses.encoder import ANNOUNCED_EVENTS, ResponseHead, ResponsesStreamEncoder
from dragoman.wire.responses.opaque_reasoning import PREFIX, drop_sealed_reasoning
from dragoman.wire.responses.tap import ResponsesTap, read_response
from dragoman.wire.tap import AnswerDefaults, AnswerSummary, AnswerTap

FINAL_STATUS = 424  # of an upstream failure that clients would retry: the hub has done so already
HUB_IDS = ("previous_response_id", "conversation")  # not sent on: their items are in the input
RETRIED_STATUSES = (408, 409, 425, 429)  # and all from 500: what clients send again by themselves


class ResponsesDialect:
    """OpenAI's Responses. `response_id` is the id of the response that is being made."""

    family: Family = "responses"
    endpoint = "responses"
    forwarded_headers: Sequence[str] = ("openai-organization", "openai-project", "openai-beta")

    def __init__(self) -> None:
        self.response_id = new_id("resp")
        self.created_at = int(time.time())
        self.response_fields: Mapping[str, Any] = {}
        """What the response repeats of its request in another way than the parsed body has it."""
        self.queued = False
        self.announced = False
        """Whether the client has the first events of a queued response already."""
        self.relays = True
        self.compaction: str | None = None
        """The content of the compaction that the answer follows."""
        self._parsed: ResponsesRequest | None = None
        self._tap: ResponsesTap | None = None

    def make_queued(self) -> None:
        """Make a response in the background: translated, since its id is known before its answer."""
        self.queued, self.relays = True, False

    def url(self, server: UpstreamServer) -> str:
        """See `ClientDialect`."""
        return server.url("/responses")

    def parse_request(self, raw: bytes) -> ClientRequest:
        """See `ClientDialect`."""
        self._parsed = parse_responses_request(raw)
        return self._parsed

    def replaced_fields(self, head: RawRequestBody) -> Mapping[str, bytes]:
        """See `ClientDialect`: ids of the hub's responses, and what only the hub can read in its items."""
        items = head.raw_field("input")
        replaced = {name: b"null" for name in HUB_IDS if head.raw_field(name)}
        readable = open_compactions(drop_sealed_reasoning(items) if PREFIX.encode() in items else items)
        return replaced if readable is items else {**replaced, "input": readable}

    def head(self, model: str) -> ResponseHead:
        """Return what is known of the response before its answer."""
        parsed = self._parsed
        fields = {} if parsed is None else parsed.response_fields
        return ResponseHead(
            id=self.response_id,
            model=model,
            created_at=self.created_at,
            tools=ClientTools() if parsed is None else parsed.tools,
            fields={**fields, **self.response_fields},
            queued=self.queued,
            next_event=ANNOUNCED_EVENTS if self.announced else 0,
            compaction=self.compaction,
            compacts=parsed is not None and parsed.compacts,
        )

    def stream_encoder(
        self, parsed: ClientRequest, *, id: str, model: str, input_tokens: int
    ) -> ResponsesStreamEncoder:
        """See `ClientDialect`."""
        return ResponsesStreamEncoder(self.head(model))

    def encode_document(
        self, parsed: ClientRequest, events: Sequence[Event], *, id: str, model: str, input_tokens: int
    ) -> bytes:
        """See `ClientDialect`."""
        return responses_reply.encode_document(events, self.head(model))

    def tap(self, defaults: AnswerDefaults, *, hide_usage: bool, lenient: bool) -> AnswerTap:
        """See `ClientDialect`."""
        self._tap = ResponsesTap(defaults=defaults)
        return self._tap

    def parse_document(self, raw: bytes, defaults: AnswerDefaults) -> AnswerSummary:
        """See `ClientDialect`."""
        return read_response(raw, defaults)

    def error_status(self, error: DragomanError) -> int:
        """See `ClientDialect`: no status that makes a client repeat what the hub has retried."""
        status = openai_reply.error_status(error)
        is_retried = status in RETRIED_STATUSES or status >= 500
        return FINAL_STATUS if is_retried and isinstance(error, ProviderError) else status

    def error_body(self, error: DragomanError, request_id: str) -> dict[str, Any]:
        """See `ClientDialect`."""
        return openai_reply.error_body(error)

    def error_frame(self, error: DragomanError, request_id: str) -> bytes:
        """See `ClientDialect`. A response that is relayed fails under its own id, with its next event."""
        tap, relayed = self._tap, None if self._tap is None else self._tap.announced
        if tap is None or relayed is None:
            return self.failed_stream(error)
        head = replace(
            self.head(relayed.model),
            id=relayed.id,
            created_at=relayed.created_at,
            next_event=tap.passed_events,
        )
        return ResponsesStreamEncoder(head).encode_error(error)

    def failed_stream(self, error: DragomanError) -> bytes:
        """Return a stream of a response that failed before any of it was sent."""
        return ResponsesStreamEncoder(self.head("")).encode_error(error)
