"""Languages: how the servers of one family are asked, and how their answers are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from dragoman.errors import ProviderError
from dragoman.events import Event
from dragoman.messages import Message, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.providers.upstream import UpstreamServer
from dragoman.wire.provider_errors import describe_error, find_error

Family: TypeAlias = Literal["openai", "anthropic", "ollama"]


class AnswerDecoder(Protocol):
    """Reads one answer; see `dragoman.wire.openai.decoder.Decoder`."""

    done: bool

    @property
    def failure(self) -> ProviderError | None:
        """Why the answer failed, if it did."""

    def feed(self, raw: bytes) -> list[Event]:
        """The events in one read."""

    def close(self) -> list[Event]:
        """The last events; ProviderError when the answer has no end."""

    def decode_document(self, raw: bytes) -> list[Event]:
        """The events of an answer that came as one document."""


class ProviderAdapter(Protocol):
    """What one family of servers speaks."""

    family: Family

    def url(self, server: UpstreamServer) -> str:
        """Where an answer is asked for."""

    def headers(self, secret: str | None) -> Mapping[str, str]:
        """What a request says beside its body; names in lower case."""

    def encode(self, request: ModelRequest, *, drop: Collection[str]) -> bytes:
        """The body of a request, without the fields in `drop`."""

    def decoder(self, request: ModelRequest) -> AnswerDecoder:
        """A reader of the answer."""

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""

    def rejected_field(self, request: ModelRequest, *, status: int, body: bytes) -> str | None:
        """The field that a request was refused for, without which it may pass; None when there is none."""

    def learn_from_rejection(self, status: int, body: bytes) -> bool:
        """The same for a request that was relayed, of which only what the hub put into it may change."""


def call_ids(history: Sequence[Message]) -> set[str]:
    """The ids of the calls in a history, which a new call must not have."""
    return {part.tool_call_id for message in history for part in message.parts if isinstance(part, ToolPart)}


def error_text(body: bytes) -> str:
    """What an error body says in words."""
    try:
        return describe_error(find_error(msgspec.json.decode(body)))
    except (msgspec.DecodeError, RecursionError):
        return ""
