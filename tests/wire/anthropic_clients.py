"""Read encoded answers with Anthropic's own client."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import anthropic
import httpx2

from dragoman import events as e
from dragoman.wire.anthropic.encoder import AnthropicStreamEncoder

ASKED: Mapping[str, Any] = {
    "model": "m",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Hi"}],
}


def client(body: bytes, *, status: int = 200, kind: str = "application/json") -> anthropic.Anthropic:
    """A client whose server responds with this body."""
    answer = httpx2.MockTransport(
        lambda _: httpx2.Response(status, content=body, headers={"content-type": kind})
    )
    return anthropic.Anthropic(
        api_key="test-key",
        http_client=httpx2.Client(transport=answer),
        max_retries=0,
        base_url="http://hub.test",
    )


def streamed(raw: bytes) -> dict[str, Any]:
    """The message that the SDK accumulates from a stream; warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with client(raw, kind="text/event-stream").messages.stream(**ASKED) as stream:
            message: dict[str, Any] = stream.get_final_message().to_dict(mode="json")
    return message


def raw_events(raw: bytes) -> list[dict[str, Any]]:
    """The events of the SDK's raw stream."""
    with client(raw, kind="text/event-stream").messages.create(**ASKED, stream=True) as stream:
        return [event.to_dict(mode="json") for event in stream]


def created(raw: bytes) -> dict[str, Any]:
    """The message that the SDK reads from a document."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        message: dict[str, Any] = client(raw).messages.create(**ASKED).to_dict(mode="json")
    return message


def written(batches: Sequence[Sequence[e.Event]], *, input_tokens: int | None = 7) -> bytes:
    """The complete stream of an answer."""
    stream = AnthropicStreamEncoder(id="msg_1", model="m", input_tokens=input_tokens)
    return b"".join([*(stream.encode(batch) for batch in batches), stream.end()])
