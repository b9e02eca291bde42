"""The HTTP exchange, keep-alive comments, and the drain of requests in flight."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from starlette.types import Message

from dragoman.errors import TooLarge, Unavailable
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.in_flight import InFlightRequests
from dragoman.http.sse_keepalive import KeepAlive
from dragoman.server.streaming import PIECE, send_large
from tests.waiting import LIMIT


def exchange_with(headers: list[tuple[bytes, bytes]], *messages: Message) -> tuple[Exchange, list[Message]]:
    queue, sent = list(messages), list[Message]()

    async def receive() -> Message:
        return queue.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    return Exchange(scope, receive, send), sent


def test_repeated_headers_are_joined_and_spaces_around_values_are_removed() -> None:
    exchange, _ = exchange_with([(b"accept", b" a"), (b"host", b"h "), (b"accept", b"b")])
    assert exchange.headers == {"accept": "a, b", "host": "h"}


async def test_a_body_over_the_limit_is_refused_with_and_without_a_declared_length() -> None:
    declared, _ = exchange_with([(b"content-length", b"11")])
    streamed, _ = exchange_with([], {"type": "http.request", "body": b"x" * 11, "more_body": True})
    for exchange in (declared, streamed):
        with pytest.raises(TooLarge):
            await exchange.read_body(10)


async def test_headers_for_all_responses_are_on_json_and_on_messages_of_other_apps() -> None:
    for answer in ("respond", "app"):
        exchange, sent = exchange_with([])
        exchange.response_headers = {"x-request-id": "1"}
        if answer == "respond":
            await exchange.respond(200, {"a": 1})
        else:
            await exchange.send_from_app({"type": "http.response.start", "status": 200, "headers": []})
        assert exchange.response_started
        assert (b"x-request-id", b"1") in sent[0]["headers"]


async def test_a_drain_waits_for_requests_and_aborts_those_that_do_not_end() -> None:
    in_flight, release, ends = InFlightRequests(), asyncio.Event(), dict[str, str]()

    async def serve(name: str, until: asyncio.Event) -> None:
        try:
            with in_flight.track():
                await until.wait()
            ends[name] = "answered"
        except Unavailable:
            ends[name] = "unavailable"

    tasks = [
        asyncio.create_task(serve("short", release)),
        asyncio.create_task(serve("hung", asyncio.Event())),
    ]
    while len(in_flight) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    release.set()
    async with asyncio.timeout(LIMIT):
        aborted = await in_flight.drain(0.05)
        await asyncio.gather(*tasks)
    assert (aborted, ends, len(in_flight)) == (1, {"short": "answered", "hung": "unavailable"}, 0)


async def test_a_drain_calls_the_abort_of_a_request_that_has_its_own() -> None:
    in_flight, stop = InFlightRequests(), asyncio.Event()

    async def serve() -> str:
        with in_flight.track(stop.set):
            await stop.wait()
            return "last frame sent"

    task = asyncio.create_task(serve())
    while not len(in_flight):  # noqa: ASYNC110
        await asyncio.sleep(0)
    async with asyncio.timeout(LIMIT):
        assert await in_flight.drain(0) == 1
        assert await task == "last frame sent"


async def test_a_cancellation_that_is_not_the_drain_s_stays_one() -> None:
    in_flight = InFlightRequests()

    async def serve() -> None:
        with in_flight.track():
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    while not len(in_flight):  # noqa: ASYNC110
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_idle_stream_gets_comments_and_an_unfinished_one_is_waited_for() -> None:
    comments, writable = list[str](), asyncio.Event()
    writable.set()
    sending = asyncio.Event()

    async def send_comment() -> None:
        sending.set()
        await writable.wait()
        comments.append("comment")

    async with asyncio.timeout(LIMIT):
        async with KeepAlive(send_comment, 0.001):
            await sending.wait()
            while not comments:  # noqa: ASYNC110
                await asyncio.sleep(0)
            writable.clear()
            sending.clear()
            await sending.wait()
            count = len(comments)
            asyncio.get_running_loop().call_soon(writable.set)
    assert len(comments) == count + 1


async def test_no_comment_comes_between_the_pieces_of_a_large_event() -> None:
    exchange, sent = exchange_with([])
    frames = b"x" * (6 * PIECE)
    async with KeepAlive(partial(exchange.send_chunk, b": comment"), 0.0) as timer:
        while not sent:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await send_large(exchange, frames, timer=timer)
        count = len(sent)
        while len(sent) == count:  # noqa: ASYNC110 # comments go on afterwards
            await asyncio.sleep(0)
    assert frames in b"".join(message["body"] for message in sent)
