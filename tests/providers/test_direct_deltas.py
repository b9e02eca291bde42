"""Deltas of text that are passed on from the read of a socket: the same answer, in the same order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import pytest
from msgspec.structs import replace

from dragoman import events as e
from dragoman.errors import ProviderError
from dragoman.http.connection import HttpConnection, HttpRequest, Timeouts
from dragoman.http.transport import Response
from dragoman.providers.adapter import AnswerLimits
from dragoman.providers.decoded_response import DecodedResponse, read_answer
from dragoman.providers.key_pool import KeyPool
from dragoman.wire.anthropic.decoder import AnthropicDecoder
from dragoman.wire.openai.decoder import OpenAIDecoder
from tests.effort import rounds
from tests.wire import anthropic_streams, openai_streams
from tests.wire.test_openai_plain_chunks import make_stream

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = openai_streams.sse(openai_streams.chunk({}, "stop"))
LIMIT = 4_000  # bytes of a stream, above which an answer fails


class Wire:
    """A transport that nobody listens to."""

    closing = False

    def write(self, data: bytes) -> None: ...

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True


def word(text: str) -> bytes:
    return openai_streams.sse(openai_streams.chunk({"content": text}), done=False)


async def open_response() -> tuple[HttpConnection, Response]:
    """A response whose head has arrived; its body comes by `data_received`."""
    connection = HttpConnection("the server")
    connection.connection_made(cast(asyncio.Transport, Wire()))
    sending = asyncio.create_task(connection.send(HttpRequest(b"", b"", Timeouts())))
    await asyncio.sleep(0)
    connection.data_received(HEAD)
    return connection, Response(await sending, connection, release=lambda _: None)


def text_of(reading: Reading) -> str:
    return "".join(event.delta for event in reading.events if isinstance(event, e.TextDelta))


def chunked(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def joined(events: Sequence[Any]) -> list[Any]:
    """The events, with the deltas of a block or of a call as one: reads that come together are merged."""
    whole, places = list[Any](), dict[str, int]()
    for event in events:
        if isinstance(event, e.ToolInputDelta):
            place = places.setdefault(event.tool_call_id, len(whole))
            text = whole[place].input_text_delta if place < len(whole) else ""
            whole[place : place + 1] = [
                replace(event, input_text_delta=text + event.input_text_delta),
            ]
        elif isinstance(event, e.TEXT_DELTAS):
            place = places.setdefault(event.id, len(whole))
            text = whole[place].delta if place < len(whole) else ""
            whole[place : place + 1] = [replace(event, delta=text + event.delta)]
        else:
            whole.append(event)
    return whole


class Reading:
    """Reads an answer to its end: `events` are all of it, its failure last, `taken` counts its direct deltas.

    `takes` says for each delta whether it is taken from the read of the socket.
    """

    def __init__(self, takes: Callable[[], bool] | None) -> None:
        self.takes = takes
        self.events: list[Any] = []
        self.taken = 0

    def take(self, batch: Sequence[e.Event]) -> bool:
        assert len(batch) == 1
        is_taken = self.takes is not None and self.takes()
        if is_taken:
            self.events.extend(batch)
            self.taken += 1
        return is_taken

    async def consume(self, answer: DecodedResponse) -> None:
        async def open_answer() -> DecodedResponse:
            await answer.start()
            return answer

        on_delta = None if self.takes is None else self.take
        try:
            async for batch in read_answer(open_answer, redact=lambda error: error, on_delta=on_delta):
                self.events.extend(batch)
        except ProviderError as error:
            self.events.append((error.category, error.message))


async def read(
    pieces: Sequence[bytes],
    decoder: Callable[[], Any] = OpenAIDecoder,
    *,
    takes: Callable[[], bool] | None,
    pause: Callable[[], int] = lambda: 4,
    limit: int = 1_000_000,
    end_with_last: bool = False,
) -> Reading:
    """Read an answer that comes in these pieces, with so many turns of the event loop after each.

    `end_with_last`: the end of the body comes in the same read as the last piece.
    """
    connection, response = await open_response()
    limits = AnswerLimits(stream=limit, document=limit)
    answer = DecodedResponse(response, decoder(), lease=KeyPool().acquire(), limits=limits)
    reading = Reading(takes)
    task = asyncio.create_task(reading.consume(answer))
    reads = [*map(chunked, pieces), b"0\r\n\r\n"]
    if end_with_last:
        reads[-2:] = [b"".join(reads[-2:])]
    for piece in reads:
        connection.data_received(piece)
        for _ in range(pause()):
            await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert task.done(), "it still waits for a body that has ended"
    await task
    return reading


ANTHROPIC = anthropic_streams.sse(
    anthropic_streams.start(),
    *anthropic_streams.block(
        0,
        {"type": "thinking", "thinking": ""},
        *[{"type": "thinking_delta", "thinking": "hm "}] * 3,
    ),
    anthropic_streams.PING,
    *anthropic_streams.text(1, *["wörd "] * 6),
    anthropic_streams.stop("end_turn", {"output_tokens": 9}),
    anthropic_streams.STOP,
)
STREAMS: dict[str, Callable[[random.Random], tuple[Callable[[], Any], bytes]]] = {
    "plain": lambda chance: (OpenAIDecoder, make_stream(chance)),
    "vendor": lambda chance: (
        OpenAIDecoder,
        openai_streams.recording(chance.choice(openai_streams.NAMES)),
    ),
    "anthropic": lambda _: (AnthropicDecoder, ANTHROPIC),
}


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("seed", range(rounds(quick=40, thorough=2_000)))
async def test_an_answer_is_the_same_whatever_is_taken_from_the_reads(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    decoder, stream = STREAMS[kind](chance)
    cuts = {chance.randrange(len(stream)) for _ in range(chance.randrange(8))}
    if chance.random() < 0.7:  # most reads of real servers are whole frames
        cuts |= {at + 2 for at in range(len(stream)) if stream.startswith(b"\n\n", at)}
    places = sorted({0, *cuts, len(stream)})
    pieces = [stream[start:end] for start, end in pairwise(places)]
    limit = chance.choice([LIMIT, 1_000_000])
    pauses = [chance.randrange(4) for _ in range(len(pieces) + 1)]
    end_with_last = chance.random() < 0.5
    if chance.random() < 0.3:  # an answer that is cut off
        pieces = pieces[: chance.randrange(1, len(pieces) + 1)]
    usual = await read(
        pieces,
        decoder,
        takes=None,
        pause=iter(pauses).__next__,
        limit=limit,
        end_with_last=end_with_last,
    )
    direct = await read(
        pieces,
        decoder,
        takes=lambda: chance.random() < 0.7,
        pause=iter(pauses).__next__,
        limit=limit,
        end_with_last=end_with_last,
    )
    assert joined(direct.events) == joined(usual.events)


async def test_a_delta_is_taken_from_the_read_that_brings_it() -> None:
    reading = await read([word("A"), *[word(" word")] * 20, END], takes=lambda: True)
    assert (reading.taken, text_of(reading)) == (20, "A" + " word" * 20)


@pytest.mark.parametrize(
    ("last", "category"),
    [(word(" end"), "network"), (word(" end")[:-9], "api_error")],
    ids=["a whole frame", "part of a frame"],
)
async def test_a_body_that_ends_in_the_read_of_a_delta_has_ended(last: bytes, category: str) -> None:
    reading = await read([word("A"), word(" b"), last], takes=lambda: True, end_with_last=True)
    assert (text_of(reading)[:3], reading.events[-1][0]) == ("A b", category)


async def test_what_is_not_taken_keeps_its_place_before_what_comes_in_the_same_moment() -> None:
    answers = iter([False, *[True] * 20])
    pieces = [word("A"), *[word(f" {number}") for number in range(9)], END]
    pauses = iter([4, 0, 0, 4, *[1] * 20])
    reading = await read(pieces, takes=answers.__next__, pause=pauses.__next__)
    assert text_of(reading) == "A 0 1 2 3 4 5 6 7 8"


async def test_an_error_of_what_takes_a_delta_is_raised_to_the_reader() -> None:
    def fail() -> bool:
        raise RuntimeError("out of order")

    with pytest.raises(RuntimeError, match="out of order"):
        await read([word("A"), word(" b")], takes=fail)
