"""The spoke endpoint and peers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from dragoman.operations import Context
from dragoman.spokes.hub.settings import SpokeSettings
from tests.loop_clock import LoopClock
from tests.spokes.hubs import LIMIT, PATIENT, House, house
from tests.waiting import until

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
OFFER = {"namespace": "raw", "name": "work", "effect": "read", "inputSchema": SCHEMA}


class Raw:
    """A spoke that says what it is told to."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def say(self, type: str, **fields: Any) -> None:
        await self.socket.send(msgspec.json.encode({"type": type, **fields}), text=True)

    async def hear(self, type: str) -> dict[str, Any]:
        """The next frame of this type; others are passed over."""
        async with asyncio.timeout(LIMIT):
            while True:
                frame: dict[str, Any] = msgspec.json.decode(await self.socket.recv())
                if frame["type"] == type:
                    return frame

    async def join(self, **more: Any) -> None:
        """Say hello and register an operation."""
        await self.say("hello", **{"protocol": 1, "id": "raw", "token": "key-a", **more})
        await self.hear("welcome")
        await self.register(OFFER)

    async def register(self, *offers: dict[str, Any]) -> dict[str, Any]:
        """Register these operations instead of the earlier ones; the hub's reply."""
        await self.say("register", id="r", operations=offers, all=True)
        return await self.hear("registered")

    async def end(self) -> int:
        """The code that it is closed with."""
        async with asyncio.timeout(LIMIT):
            try:
                while True:
                    await self.socket.recv()
            except ConnectionClosed as closed:
                return closed.rcvd.code if closed.rcvd else 1006


@asynccontextmanager
async def raw(hub: House, **headers: str) -> AsyncIterator[Raw]:
    url = f"{hub.url.replace('http', 'ws')}/api/spoke"
    async with connect(
        url, additional_headers=headers, compression=None, ping_interval=None, proxy=None, max_size=None
    ) as socket:
        yield Raw(socket)


async def test_a_token_in_the_hello_is_as_good_as_a_header() -> None:
    async with house() as hub, raw(hub) as spoke:
        await spoke.join()
        assert hub.board.status()[0]["owner"] == "local"


@pytest.mark.parametrize(
    ("first", "error", "code"),
    [
        ({"type": "hello", "protocol": 1, "id": "raw"}, "unauthorized", 4401),
        ({"type": "hello", "protocol": 1, "id": "raw", "token": "no"}, "unauthorized", 4401),
        ({"type": "hello", "protocol": 1, "id": "raw", "token": "key-chat"}, "forbidden", 4403),
        ({"type": "hello", "protocol": 7, "from": "the future"}, "bad_version", 4406),
        ({"type": "ping"}, "wire", 4400),
        ({"type": "nonsense"}, "wire", 4400),
        ([1, 2], "wire", 4400),
        ({"type": "hello", "protocol": 1, "id": "raw", "token": "x" * 70_000}, "wire", 4400),
    ],
)
async def test_a_wrong_first_word_is_refused_with_a_reason(first: Any, error: str, code: int) -> None:
    async with house() as hub, raw(hub) as spoke:
        await spoke.socket.send(msgspec.json.encode(first), text=True)
        assert (await spoke.hear("refused"))["error"]["code"] == error
        assert await spoke.end() == code
        assert hub.board.status() == []


async def test_a_wrong_key_in_a_header_is_an_http_401() -> None:
    async with house() as hub:
        with pytest.raises(InvalidStatus) as caught:
            async with raw(hub, Authorization="Bearer no"):
                pass
        assert caught.value.response.status_code == 401


async def test_pages_of_other_sites_are_kept_out_and_those_named_are_let_in() -> None:
    settings = SpokeSettings(origins=("https://console.example",))
    async with house(settings=settings) as hub:
        with pytest.raises(InvalidStatus) as caught:
            async with raw(hub, Origin="https://evil.example", Authorization="Bearer key-a"):
                pass
        assert caught.value.response.status_code == 403
        async with raw(hub, Origin="https://console.example") as spoke:
            await spoke.join()


async def test_a_spoke_that_sends_nothing_is_disconnected() -> None:
    async with house(settings=SpokeSettings(hello_timeout=0.2)) as hub, raw(hub) as spoke:
        assert (await spoke.hear("refused"))["error"]["message"] == "the spoke did not send its hello in time"
        assert await spoke.end() == 4400


async def test_a_spoke_that_never_answers_a_ping_is_disconnected_and_its_calls_fail() -> None:
    clock, settings = LoopClock(), replace(PATIENT, timeout=LIMIT / 2, grace=0.1)
    async with house(settings=settings) as hub, raw(hub) as spoke:
        await spoke.join()
        calling = asyncio.create_task(hub.call("raw.work"))
        await spoke.hear("call")
        clock.set_ahead(settings.timeout)
        outcome = await calling
        assert outcome.error is not None
        assert outcome.error.code == "unavailable"
        assert await spoke.end() == 4408
        await hub.lacks("raw.work")


@pytest.mark.parametrize(
    "frame",
    ["{", '{"type":"hello","protocol":1,"id":"raw"}', '{"type":"part","text":"[","last":true}', b"\x00"],
)
async def test_garbage_without_end_ends_the_connection_with_a_reason(frame: str | bytes) -> None:
    async with house(settings=SpokeSettings(bad_frames=3)) as hub, raw(hub) as spoke:
        await spoke.join()
        for _ in range(4):
            await spoke.socket.send(frame)
        bye = await spoke.hear("bye")
        assert bye["again"] is False
        assert "more than 3 frames in a minute could not be used" in bye["message"]
        assert await spoke.end() == 4400


async def test_a_frame_over_the_server_s_size_ends_the_connection() -> None:
    settings = SpokeSettings(frame=10_000, message=20_000, heartbeat=0.2)
    async with house(settings=settings) as hub, raw(hub) as spoke:
        await spoke.join()
        await spoke.say("result", id="x", result="x" * 50_000)
        assert await spoke.end() == 1009


async def test_answers_for_calls_that_there_are_not_are_passed_over() -> None:
    async with house() as hub, raw(hub) as spoke:
        await spoke.join()
        await spoke.say("result", id="nothing", result=1)
        await spoke.say("progress", id="nothing", value=1)
        await spoke.say("abort", id="nothing")
        await spoke.say("subcall", id="s", parent="nothing", operation="raw.work", input={})
        assert "has ended" in (await spoke.hear("error"))["error"]["message"]
        calling = asyncio.create_task(hub.result("raw.work"))
        call = await spoke.hear("call")
        await spoke.say("result", id=call["id"], result="ok")
        await spoke.say("result", id=call["id"], result="again")
        assert await calling == "ok"


async def test_an_input_over_what_a_spoke_takes_is_refused_and_the_place_is_free_again() -> None:
    async with house() as hub, raw(hub) as spoke:
        await spoke.join(message=2_000)
        error = (await hub.call("raw.work", {"text": "x" * 5_000})).error
        assert error is not None
        assert error.code == "too_large"
        assert hub.board.status()[0]["calls"] == 0


async def test_a_spoke_that_does_not_read_costs_no_more_than_its_room() -> None:
    clock = LoopClock()
    settings = replace(PATIENT, window=400, outbox_limit=200_000, timeout=LIMIT / 2, grace=0.1)
    async with house(settings=settings) as hub, raw(hub) as spoke:
        await spoke.join(message=1_000_000)
        spoke.socket.transport.pause_reading()
        calls = [
            asyncio.create_task(hub.calls.call("raw.work", {"text": "x" * 100_000}, context=Context()))
            for _ in range(200)
        ]
        remote = hub.board._spokes["raw"]
        assert remote.connection is not None
        outbox = remote.connection.outbox
        pending: list[int] = []

        def is_gone() -> bool:
            pending.append(outbox._queued_size)
            return remote.connection is None

        await until(lambda: is_gone() or len(hub.running()) == len(calls))
        clock.set_ahead(settings.timeout)
        await until(is_gone)
        assert 0 < max(pending) <= 200_000 + 101_000
        outcomes = await asyncio.gather(*calls)
        assert {each.error.code for each in outcomes if each.error} == {"unavailable"}
        spoke.socket.transport.abort()


async def test_operations_whose_names_or_schemas_are_no_good_are_refused_one_by_one() -> None:
    bad: list[dict[str, Any]] = [
        {**OFFER, "namespace": "no space"},
        {**OFFER, "name": "b", "inputSchema": {"type": "nothing"}},
        {**OFFER, "name": "c", "inputSchema": {"$ref": "http://127.0.0.1:1/x"}},
        {**OFFER, "name": "d", "description": "x" * 300_000},
        {**OFFER, "namespace": "hub"},
    ]
    async with house() as hub, raw(hub) as spoke:
        await spoke.join()
        await spoke.say("register", id="more", operations=[*bad, {**OFFER, "name": "good"}])
        answer = await spoke.hear("registered")
        assert answer["operations"] == ["raw.good"]
        assert len(answer["refused"]) == len(bad)
        assert [each.id for each in hub.registry.list()] == ["raw.good", "raw.work"]
