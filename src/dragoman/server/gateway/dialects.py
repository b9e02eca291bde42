"""The tongues of the gateway's clients: how a request is read and an answer spelled, for each family."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dragoman.errors import BadRequest, DragomanError
from dragoman.events import Event
from dragoman.providers.language import Family
from dragoman.providers.server import Server
from dragoman.wire.anthropic import reply as anthropic_reply
from dragoman.wire.anthropic.door import read_messages
from dragoman.wire.anthropic.reply import MessageStream
from dragoman.wire.anthropic.tap import MessageTap, read_message
from dragoman.wire.head import Asked
from dragoman.wire.openai import reply as openai_reply
from dragoman.wire.openai.door import read_chat
from dragoman.wire.openai.reply import ChatStream
from dragoman.wire.openai.tap import ChatTap, read_embeddings, read_whole
from dragoman.wire.tap import Tap, Whole


class Reply(Protocol):
    """Spells one answer for a client: a stream dialect that can also fail."""

    headers: Mapping[str, str]

    def encode(self, batch: Sequence[Event]) -> bytes:
        """The frames of a batch."""

    def fail(self, error: DragomanError) -> bytes:
        """The last frame, when the answer broke off."""

    def end(self) -> bytes:
        """The last frames of a complete answer."""


class Tongue(Protocol):
    """One family's protocol, as a door speaks it."""

    family: Family
    door: str
    passed: Sequence[str]  # headers of the client that are for a server of the same family

    def url(self, server: Server) -> str:
        """Where a server of the same family is asked."""

    def read(self, raw: bytes) -> Asked:
        """A request for a provider of another family."""

    def reply(self, asked: Asked, *, id: str, model: str, tokens: int) -> Reply:
        """The answer to a streaming client; `tokens` estimates the prompt."""

    def whole(self, events: Sequence[Event], *, id: str, model: str, tokens: int) -> bytes:
        """The answer to any other."""

    def tap(self, *, hide_usage: bool, lenient: bool) -> Tap:
        """A tap on an answer that is relayed as a stream."""

    def read_whole(self, raw: bytes) -> Whole:
        """What an answer that is relayed as a document says of itself."""

    def status(self, error: DragomanError) -> int:
        """The HTTP status of an error."""

    def body(self, error: DragomanError, request_id: str) -> dict[str, Any]:
        """The body of an error."""

    def fail(self, error: DragomanError, request_id: str) -> bytes:
        """The frame of an error inside a relayed stream."""


class Completions:
    """OpenAI's chat.completions."""

    family: Family = "openai"
    door = "openai"
    passed: Sequence[str] = ("openai-organization", "openai-project", "openai-beta", "idempotency-key")

    def url(self, server: Server) -> str:
        """See `Tongue`."""
        return server.at("/chat/completions")

    def read(self, raw: bytes) -> Asked:
        """See `Tongue`."""
        return read_chat(raw)

    def reply(self, asked: Asked, *, id: str, model: str, tokens: int) -> ChatStream:
        """See `Tongue`."""
        created = int(time.time())
        return ChatStream(
            id=f"chatcmpl-{id}", model=model, created=created, include_usage=asked.include_usage
        )

    def whole(self, events: Sequence[Event], *, id: str, model: str, tokens: int) -> bytes:
        """See `Tongue`."""
        return openai_reply.whole(events, id=f"chatcmpl-{id}", model=model, created=int(time.time()))

    def tap(self, *, hide_usage: bool, lenient: bool) -> Tap:
        """See `Tongue`."""
        return ChatTap(hide_usage=hide_usage, lenient=lenient)

    def read_whole(self, raw: bytes) -> Whole:
        """See `Tongue`."""
        return read_whole(raw)

    def status(self, error: DragomanError) -> int:
        """See `Tongue`."""
        return openai_reply.status_of(error)

    def body(self, error: DragomanError, request_id: str) -> dict[str, Any]:
        """See `Tongue`."""
        return openai_reply.error_body(error)

    def fail(self, error: DragomanError, request_id: str) -> bytes:
        """See `Tongue`."""
        return ChatStream(id="", model="", created=0, include_usage=False).fail(error)


class Embeddings(Completions):
    """OpenAI's embeddings: one document for another, never a stream."""

    door = "embeddings"

    def read(self, raw: bytes) -> Asked:
        """See `Tongue`: no other family has a word for it. BadRequest."""
        raise BadRequest(
            "the provider of this model gives no embeddings",
            field="model",
            hint="those of the type openai do",
        )

    def url(self, server: Server) -> str:
        """See `Tongue`."""
        return server.at("/embeddings")

    def read_whole(self, raw: bytes) -> Whole:
        """See `Tongue`."""
        return read_embeddings(raw)


class Messages:
    """Anthropic's Messages."""

    family: Family = "anthropic"
    door = "anthropic"
    passed: Sequence[str] = ("anthropic-version", "anthropic-beta")

    def url(self, server: Server) -> str:
        """See `Tongue`."""
        return server.at("/messages", root="/v1")

    def read(self, raw: bytes) -> Asked:
        """See `Tongue`."""
        return read_messages(raw)

    def reply(self, asked: Asked, *, id: str, model: str, tokens: int) -> MessageStream:
        """See `Tongue`."""
        return MessageStream(id=f"msg_{id}", model=model, input_tokens=tokens, request_id=id)

    def whole(self, events: Sequence[Event], *, id: str, model: str, tokens: int) -> bytes:
        """See `Tongue`."""
        return anthropic_reply.whole(events, id=f"msg_{id}", model=model, input_tokens=tokens)

    def tap(self, *, hide_usage: bool, lenient: bool) -> Tap:
        """See `Tongue`."""
        return MessageTap()

    def read_whole(self, raw: bytes) -> Whole:
        """See `Tongue`."""
        return read_message(raw)

    def status(self, error: DragomanError) -> int:
        """See `Tongue`."""
        return anthropic_reply.status_of(error)

    def body(self, error: DragomanError, request_id: str) -> dict[str, Any]:
        """See `Tongue`."""
        return anthropic_reply.error_body(error, request_id=request_id)

    def fail(self, error: DragomanError, request_id: str) -> bytes:
        """See `Tongue`."""
        return MessageStream(id="", model="", input_tokens=None).fail(error, request_id=request_id)
