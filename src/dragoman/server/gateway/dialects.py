"""The dialects of the gateway's clients: parsing of requests and encoding of answers, for each family."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dragoman.errors import BadRequest, DragomanError
from dragoman.events import Event
from dragoman.providers.adapter import Family
from dragoman.providers.endpoint import UpstreamServer
from dragoman.wire.anthropic import encoder as anthropic_reply
from dragoman.wire.anthropic.client_request import parse_messages_request
from dragoman.wire.anthropic.encoder import AnthropicStreamEncoder
from dragoman.wire.anthropic.foreign_reasoning import drop_opaque_reasoning
from dragoman.wire.anthropic.tap import AnthropicTap, read_message
from dragoman.wire.client_request import ClientRequest, RawRequestBody
from dragoman.wire.openai import encoder as openai_reply
from dragoman.wire.openai.client_request import parse_chat_completions_request
from dragoman.wire.openai.document_tap import read_completion, read_embeddings
from dragoman.wire.openai.encoder import OpenAIStreamEncoder
from dragoman.wire.openai.tap import OpenAITap
from dragoman.wire.reasoning_metadata import drop_sealed_entries
from dragoman.wire.tap import AnswerDefaults, AnswerSummary, AnswerTap


class AnswerEncoder(Protocol):
    """Encodes one answer for a client: a stream dialect with frames for errors."""

    headers: Mapping[str, str]

    def encode(self, batch: Sequence[Event]) -> bytes:
        """Return the frames of a batch."""

    def encode_error(self, error: DragomanError) -> bytes:
        """Return the last frame of an answer that failed."""

    def end(self) -> bytes:
        """Return the last frames of a complete answer."""


class ClientDialect(Protocol):
    """The protocol of one family of clients, as an endpoint of the gateway speaks it."""

    family: Family
    relays: bool  # whether a server of the same family gets the request as it is
    endpoint: str
    forwarded_headers: Sequence[str]  # headers of the client that are for a server of the same family

    def url(self, server: UpstreamServer) -> str:
        """Return the URL at which a server of the same family answers such requests."""

    def parse_request(self, raw: bytes) -> ClientRequest:
        """Return the request for a provider of another family. Raises BadRequest."""

    def replaced_fields(self, head: RawRequestBody) -> Mapping[str, bytes]:
        """Return replacements for fields of a relayed request that its server would refuse."""

    def stream_encoder(
        self, parsed: ClientRequest, *, id: str, model: str, input_tokens: int
    ) -> AnswerEncoder:
        """Return the encoder of an answer to a streaming client; `input_tokens` estimates the prompt."""

    def encode_document(
        self, parsed: ClientRequest, events: Sequence[Event], *, id: str, model: str, input_tokens: int
    ) -> bytes:
        """Return the answer to a client that does not stream."""

    def tap(self, defaults: AnswerDefaults, *, hide_usage: bool, lenient: bool) -> AnswerTap:
        """Return a tap on an answer that is relayed as a stream; `defaults` fill in missing fields."""

    def parse_document(self, raw: bytes, defaults: AnswerDefaults) -> AnswerSummary:
        """Return usage, model and finish reason of an answer that is relayed as a document."""

    def error_status(self, error: DragomanError) -> int:
        """Return the HTTP status of an error."""

    def error_body(self, error: DragomanError, request_id: str) -> dict[str, Any]:
        """Return the body of an error."""

    def error_frame(self, error: DragomanError, request_id: str) -> bytes:
        """Return the frame of an error inside a relayed stream."""


class ChatCompletionsDialect:
    """OpenAI's chat.completions."""

    family: Family = "openai"
    relays = True
    endpoint = "openai"
    forwarded_headers: Sequence[str] = (
        "openai-organization",
        "openai-project",
        "openai-beta",
        "idempotency-key",
    )

    def url(self, server: UpstreamServer) -> str:
        """See `ClientDialect`."""
        return server.url("/chat/completions")

    def parse_request(self, raw: bytes) -> ClientRequest:
        """See `ClientDialect`."""
        return parse_chat_completions_request(raw)

    def replaced_fields(self, head: RawRequestBody) -> Mapping[str, bytes]:
        """See `ClientDialect`: encrypted reasoning of providers of the Responses API."""
        if not head.may_have_sealed_reasoning:
            return {}
        messages = head.raw_field("messages")
        cleaned = drop_sealed_entries(messages)
        return {} if cleaned is messages else {"messages": cleaned}

    def stream_encoder(
        self, parsed: ClientRequest, *, id: str, model: str, input_tokens: int
    ) -> OpenAIStreamEncoder:
        """See `ClientDialect`."""
        created = int(time.time())
        return OpenAIStreamEncoder(
            id=f"chatcmpl-{id}",
            model=model,
            created=created,
            include_usage=parsed.include_usage,
            calls_functions=parsed.calls_functions,
        )

    def encode_document(
        self, parsed: ClientRequest, events: Sequence[Event], *, id: str, model: str, input_tokens: int
    ) -> bytes:
        """See `ClientDialect`."""
        return openai_reply.encode_document(
            events,
            id=f"chatcmpl-{id}",
            model=model,
            created=int(time.time()),
            calls_functions=parsed.calls_functions,
        )

    def tap(self, defaults: AnswerDefaults, *, hide_usage: bool, lenient: bool) -> AnswerTap:
        """See `ClientDialect`."""
        return OpenAITap(hide_usage=hide_usage, lenient=lenient, defaults=defaults)

    def parse_document(self, raw: bytes, defaults: AnswerDefaults) -> AnswerSummary:
        """See `ClientDialect`."""
        return read_completion(raw, defaults)

    def error_status(self, error: DragomanError) -> int:
        """See `ClientDialect`."""
        return openai_reply.error_status(error)

    def error_body(self, error: DragomanError, request_id: str) -> dict[str, Any]:
        """See `ClientDialect`."""
        return openai_reply.error_body(error)

    def error_frame(self, error: DragomanError, request_id: str) -> bytes:
        """See `ClientDialect`."""
        return OpenAIStreamEncoder(id="", model="", created=0, include_usage=False).encode_error(error)


class EmbeddingsDialect(ChatCompletionsDialect):
    """OpenAI's embeddings: one document for another, never a stream."""

    endpoint = "embeddings"

    def parse_request(self, raw: bytes) -> ClientRequest:
        """See `ClientDialect`. Raises BadRequest: no other family supports embeddings."""
        raise BadRequest(
            "the provider of this model does not support embeddings",
            field="model",
            hint="use a provider of the type openai",
        )

    def url(self, server: UpstreamServer) -> str:
        """See `ClientDialect`."""
        return server.url("/embeddings")

    def parse_document(self, raw: bytes, defaults: AnswerDefaults) -> AnswerSummary:
        """See `ClientDialect`."""
        return read_embeddings(raw)


class MessagesDialect:
    """Anthropic's Messages."""

    family: Family = "anthropic"
    relays = True
    endpoint = "anthropic"
    forwarded_headers: Sequence[str] = ("anthropic-version", "anthropic-beta")

    def url(self, server: UpstreamServer) -> str:
        """See `ClientDialect`."""
        return server.url("/messages", root="/v1")

    def parse_request(self, raw: bytes) -> ClientRequest:
        """See `ClientDialect`."""
        return parse_messages_request(raw)

    def replaced_fields(self, head: RawRequestBody) -> Mapping[str, bytes]:
        """See `ClientDialect`: reasoning that another family's provider has sealed."""
        messages = head.raw_field("messages")
        cleaned = drop_opaque_reasoning(messages)
        return {} if cleaned is messages else {"messages": cleaned}

    def stream_encoder(
        self, parsed: ClientRequest, *, id: str, model: str, input_tokens: int
    ) -> AnthropicStreamEncoder:
        """See `ClientDialect`."""
        return AnthropicStreamEncoder(id=f"msg_{id}", model=model, input_tokens=input_tokens, request_id=id)

    def encode_document(
        self, parsed: ClientRequest, events: Sequence[Event], *, id: str, model: str, input_tokens: int
    ) -> bytes:
        """See `ClientDialect`."""
        return anthropic_reply.encode_document(events, id=f"msg_{id}", model=model, input_tokens=input_tokens)

    def tap(self, defaults: AnswerDefaults, *, hide_usage: bool, lenient: bool) -> AnswerTap:
        """See `ClientDialect`."""
        return AnthropicTap(defaults=defaults)

    def parse_document(self, raw: bytes, defaults: AnswerDefaults) -> AnswerSummary:
        """See `ClientDialect`."""
        return read_message(raw, defaults)

    def error_status(self, error: DragomanError) -> int:
        """See `ClientDialect`."""
        return anthropic_reply.error_status(error)

    def error_body(self, error: DragomanError, request_id: str) -> dict[str, Any]:
        """See `ClientDialect`."""
        return anthropic_reply.error_body(error, request_id=request_id)

    def error_frame(self, error: DragomanError, request_id: str) -> bytes:
        """See `ClientDialect`."""
        return AnthropicStreamEncoder(id="", model="", input_tokens=None).encode_error(
            error, request_id=request_id
        )
