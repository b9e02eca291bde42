"""The official SDKs' clients, straight at the upstream or through the hub."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import anthropic
import httpx2
import msgspec
import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.gateway.upstream import Stage

HI: Any = [{"role": "user", "content": "Hi"}]
USAGE: Any = {"include_usage": True}
STUMBLES = (  # how the SDKs fail: with errors of their own, and over what they did not expect
    openai.OpenAIError,
    anthropic.AnthropicError,
    ValueError,
    AttributeError,
    AssertionError,
    TypeError,
    LookupError,
    RuntimeError,
)


class Failed(msgspec.Struct, frozen=True):
    """What a client raised."""

    kind: str
    status: int | None
    message: str


class Pair(msgspec.Struct, frozen=True):
    """Two clients of the same SDK: straight at the upstream, and at the hub."""

    straight: Any
    hub: Any
    family: str


@contextmanager
def openai_pair(stage: Stage, **options: Any) -> Iterator[Pair]:
    """OpenAI's clients."""
    settings = {"max_retries": 0, **options}
    with (
        openai.OpenAI(base_url=f"{stage.upstream.url}/v1", api_key="x", **settings) as straight,
        openai.OpenAI(base_url=f"{stage.url}/v1", api_key=stage.key, **settings) as hub,
    ):
        yield Pair(straight, hub, "oai")


@contextmanager
def anthropic_pair(stage: Stage, **options: Any) -> Iterator[Pair]:
    """Anthropic's clients."""
    settings = {"max_retries": 0, **options}
    with (
        anthropic.Anthropic(base_url=stage.upstream.url, api_key="x", **settings) as straight,
        anthropic.Anthropic(base_url=stage.url, api_key=stage.key, **settings) as hub,
    ):
        yield Pair(straight, hub, "ant")


def heard(read: Callable[..., Any], client: Any, model: str, **request: Any) -> Any:
    """What a reader makes of the answer, or how the client failed; vendors' odd types are not warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            return read(client, model, **request)
        except STUMBLES as error:
            return failed(error)


def failed(error: Exception) -> Failed:
    """The failure in an exception; what an SDK puts around the message of a server is dropped."""
    message = getattr(error, "message", str(error))
    body = getattr(error, "body", None)
    for _ in range(2):
        if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
            body = body["error"]
    if isinstance(body, Mapping) and body.get("message"):
        message = str(body["message"])
    return Failed(type(error).__name__, getattr(error, "status_code", None), message)


# ---- chat.completions -----------------------------------------------------------------------------------


def chunks(client: openai.OpenAI, model: str, **request: Any) -> list[Any]:
    """Plain iteration; a failure in the stream comes last."""
    messages: list[Any] = []
    with client.chat.completions.create(model=model, messages=HI, stream=True, **request) as stream:
        try:
            messages += (chunk.to_dict() for chunk in stream)
        except (openai.APIError, ValueError, AttributeError) as error:
            messages.append(failed(error))
    return messages


def folded(client: openai.OpenAI, model: str, **request: Any) -> Any:
    """The completion that the `.stream()` helper folds."""
    with ExitStack() as stack:
        stream = stack.enter_context(client.chat.completions.stream(model=model, messages=HI, **request))
        for _ in stream:
            pass
        return stream.get_final_completion().model_dump()


def snapshot(client: openai.OpenAI, model: str, **request: Any) -> Any:
    """The completion that the accumulator holds at the end, whatever its finish."""
    state: Any = ChatCompletionStreamState()
    request = {"messages": HI, **request}
    with client.chat.completions.create(model=model, stream=True, stream_options=USAGE, **request) as stream:
        for chunk in stream:
            state.handle_chunk(chunk)
    return state.current_completion_snapshot


def completion(client: openai.OpenAI, model: str, **request: Any) -> Any:
    """A plain completion."""
    return client.chat.completions.create(**{"model": model, "messages": HI, **request})


def chunks_in_a_loop(client: openai.OpenAI, model: str, **request: Any) -> list[Any]:
    """What an asynchronous client iterates over."""

    async def read() -> list[Any]:
        messages: list[Any] = []
        other = openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0)
        async with other:
            stream = await other.chat.completions.create(model=model, messages=HI, stream=True, **request)
            try:
                messages += [chunk.to_dict() async for chunk in stream]
            except (openai.APIError, ValueError, AttributeError) as error:
                messages.append(failed(error))
            await stream.close()
        return messages

    return asyncio.run(read())


# ---- messages -------------------------------------------------------------------------------------------


def events(client: anthropic.Anthropic, model: str, **request: Any) -> list[Any]:
    """Plain iteration; a failure in the stream comes last."""
    messages: list[Any] = []
    request = {"max_tokens": 99, "messages": HI, **request}
    with client.messages.create(model=model, stream=True, **request) as stream:
        try:
            messages += (event.to_dict() for event in stream)
        except (anthropic.APIError, ValueError) as error:
            messages.append(failed(error))
    return messages


def final(client: anthropic.Anthropic, model: str, **request: Any) -> Any:
    """The message that the `.stream()` helper folds."""
    with client.messages.stream(**{"model": model, "max_tokens": 99, "messages": HI, **request}) as stream:
        return stream.get_final_message()


def message(client: anthropic.Anthropic, model: str, **request: Any) -> Any:
    """A plain message."""
    return client.messages.create(**{"model": model, "max_tokens": 99, "messages": HI, **request})


def final_in_a_loop(client: anthropic.Anthropic, model: str, **request: Any) -> Any:
    """What an asynchronous client folds."""

    async def read() -> Any:
        other = anthropic.AsyncAnthropic(base_url=client.base_url, api_key=client.api_key, max_retries=0)
        async with (
            other,
            other.messages.stream(model=model, max_tokens=99, messages=HI, **request) as stream,
        ):
            return await stream.get_final_message()

    return asyncio.run(read())


def said_status(client: Any, status: int) -> str:
    """What a client raises for a status."""
    response = httpx2.Response(status, request=httpx2.Request("POST", "http://test"), json={})
    return type(client._make_status_error_from_response(response)).__name__
