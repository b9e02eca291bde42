"""The adapter of a provider family: how to encode its requests and decode its answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from dragoman.errors import ProviderError
from dragoman.ids import new_id
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.messages import Message, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.providers.endpoint import UpstreamServer
from dragoman.wire.answer_decoder import AnswerDecoder, AnswerOptions
from dragoman.wire.json_codec import BodyEncoder, encode_body
from dragoman.wire.provider_errors import describe_error, find_error
from dragoman.wire.tool_calls import MAX_ARGUMENTS

Family: TypeAlias = Literal["openai", "anthropic", "ollama", "responses"]


class AnswerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an answer: bytes of a `stream` and of a JSON `document`, characters of a call's arguments."""

    stream: int = 256 * 1024 * 1024
    document: int = 32_000_000
    arguments: int = MAX_ARGUMENTS

    def check_size(self, size: int, *, is_document: bool) -> None:
        """Raise ProviderError for an answer with too many bytes."""
        if is_document and size > self.document:
            raise ProviderError(
                f"the answer is one JSON document of more than {self.document} bytes",
                category="api_error",
                hint="`limits.document` sets the limit; a streamed answer may be longer",
            )
        if size > self.stream:
            raise ProviderError(f"the answer is longer than {self.stream} bytes", category="api_error")


def new_call_id() -> str:
    """Return an id for a call that came without one."""
    return new_id("call")


def answer_options(provider: str | None, request: ModelRequest) -> AnswerOptions:
    """Return the arguments for the decoder of the answer to a request."""
    audio = request.options.get("audio")
    audio_format = audio.get("format") if isinstance(audio, Mapping) else None
    return {
        "provider": provider,
        "model": request.model,
        "new_id": new_call_id,
        "used_ids": call_ids(request.messages) or (),
        "audio_format": audio_format if isinstance(audio_format, str) else None,
    }


class ProviderAdapter(Protocol):
    """The protocol of one family of servers."""

    family: Family

    def url(self, server: UpstreamServer) -> str:
        """Return the URL of requests for an answer."""

    def models_url(self, server: UpstreamServer) -> str:
        """Return the URL of the list of the server's models."""

    def headers(self, secret: str | None) -> Mapping[str, str]:
        """Return the headers of a request, names in lower case."""

    def encode(
        self, request: ModelRequest, *, drop: Collection[str], encode: BodyEncoder = encode_body
    ) -> bytes:
        """Encode the body of a request with `encode`, without the fields in `drop`."""

    def decoder(self, request: ModelRequest) -> AnswerDecoder[Any]:
        """Return a decoder for the answer."""

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""

    def rejected_options(self, request: ModelRequest) -> Sequence[str]:
        """Return the options of a request that are not sent, since its model has rejected them before."""

    def rejected_field(self, request: ModelRequest, *, status: int, body: bytes) -> str | None:
        """Return the field that the server rejected, so that the request is retried without it, or None."""

    def learn_from_rejection(self, status: int, body: bytes) -> bool:
        """Learn from the rejection of a relayed request; return whether to retry it.

        Only fields that the hub added to a relayed body may change.
        """


def call_ids(history: Sequence[Message]) -> set[str]:
    """Return the ids of all tool calls in a history; a new call needs another one."""
    return {part.tool_call_id for message in history for part in message.parts if isinstance(part, ToolPart)}


def error_text(body: bytes) -> str:
    """Return the message of an error body; empty if it has none."""
    try:
        return describe_error(find_error(decode_json(body)))
    except DECODE_ERRORS:
        return ""
