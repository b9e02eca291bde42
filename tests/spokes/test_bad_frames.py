"""Frames of a spoke that cannot be used fail the call that they answer; calls of a spoke that left end."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from dragoman.spokes.hub.settings import SpokeSettings
from tests.spokes.hubs import LIMIT, house
from tests.spokes.test_endpoint import OFFER, raw

DEEP = '{"a":' * 5_000 + "{}" + "}" * 5_000
BAD_ANSWERS = [
    '{"type": "result", "id": "ID", "result": 7, "cost": "much"}',
    '{"type": "result", "id": "ID", "result": 7, "cost": -1}',
    '{"type": "result", "id": "ID", "result": 7, "cost": 1e308}',  # two of them add up to infinity
    '{"type": "result", "id": "ID", "result": {',
    f'{{"type": "result", "id": "ID", "result": {DEEP}}}',
    '{"type": "error", "id": "ID"}',
    '{"type": "error", "id": "ID", "error": "no"}',
    '{"type": "error", "id": "ID", "error": {"code": "No Code", "message": "x"}}',
    '{"type": "error", "id": "ID", "error": {"code": "no", "message": 7}}',
    '{"id": "ID", "result": 7, "type": "result", "cost": [1]}',
]
STRAY: list[str | bytes] = [
    *("", "{", "7", "null", "[]", '"x"', "{}", '{"type": 7}', '{"type": "nonsense", "id": "x"}', b"\x00\xff"),
    *("[" * 3_000, '{"type": "result", "id": "nothing", "result": ' + "[" * 3_000, "]" * 50 + "[" * 3_000),
    '{"type": "result"}',
    '{"type": "result", "id": 7, "result": 1}',
    '{"type": "result", "id": "", "result": 1}',
    '{"type": "result", "id": "nothing", "cost": -1}',
    '{"type": "progress", "id": {"a": 1}}',
    '{"type": "abort"}',
    '{"type": "pong", "n": "x"}',
    '{"type": "part"}',
    '{"type": "unregister", "operations": [7]}',
    '{"type": "hello", "protocol": 1, "id": "raw"}',
    '{"type": "welcome"}',
    DEEP,
]


async def test_an_answer_that_cannot_be_used_fails_its_call_and_nothing_else() -> None:
    async with house() as hub, raw(hub) as spoke:
        await spoke.join()
        beside = asyncio.create_task(hub.call("raw.work"))
        neighbour = await spoke.hear("call")
        for text in BAD_ANSWERS:
            calling = asyncio.create_task(hub.call("raw.work"))
            call = await spoke.hear("call")
            await spoke.socket.send(text.replace("ID", call["id"]), text=True)
            error = (await calling).error
            assert error is not None, text[:80]
            assert error.code == "call_failed", text[:80]
            assert "the answer of the spoke cannot be used" in error.message
        await spoke.say("result", id=neighbour["id"], result="fine")
        assert (await beside).result == "fine"
        assert hub.board.status()[0]["calls"] == 0


async def test_parts_over_the_size_of_a_message_fail_the_call_that_they_answer() -> None:
    settings = SpokeSettings(frame=10_000, message=20_000)
    async with house(settings=settings) as hub, raw(hub) as spoke:
        await spoke.join()
        for count in (3, 4):
            calling = asyncio.create_task(hub.call("raw.work"))
            call = await spoke.hear("call")
            await spoke.say("part", text=f'{{"type": "result", "id": "{call["id"]}", "result": "')
            for number in range(count):
                await spoke.say("part", text="x" * 9_000, last=number == count - 1)
            error = (await calling).error
            assert error is not None
            assert (error.code, "is over 20000 bytes" in error.message) == ("frame_too_long", True)
        calling = asyncio.create_task(hub.call("raw.work"))
        call = await spoke.hear("call")
        await spoke.say("part", text=f'{{"type": "result", "id": "{call["id"]}", "result": 7}}', last=True)
        assert (await calling).result == 7


@pytest.mark.parametrize("size", [20_001, 30_000, 39_900])
async def test_one_frame_over_the_size_of_a_message_fails_the_call_that_it_answers(size: int) -> None:
    settings = SpokeSettings(frame=10_000, message=20_000)
    async with house(settings=settings) as hub, raw(hub) as spoke:
        await spoke.join()
        beside = asyncio.create_task(hub.call("raw.work"))
        neighbour = await spoke.hear("call")
        for form in (
            '"type": "result", "id": "ID", "result": "{}"',
            '"result": "{}", "id": "ID", "type": "result"',
        ):
            calling = asyncio.create_task(hub.call("raw.work"))
            call = await spoke.hear("call")
            text = "{" + form.replace("ID", call["id"])
            await spoke.socket.send(text.replace("{}", "x" * (size - len(text) + 1)) + "}", text=True)
            error = (await calling).error
            assert error is not None
            assert (error.code, "and the hub takes 20000" in error.message) == ("frame_too_long", True)
        await spoke.say(
            "subcall", id="s1", parent=neighbour["id"], operation="x.y", input={"a": "x" * 25_000}
        )
        answer = await spoke.hear("error")
        assert (answer["id"], "the hub takes 20000" in answer["error"]["message"]) == ("s1", True)
        await spoke.say("result", id=neighbour["id"], result="x" * 15_000)
        assert (await beside).result == "x" * 15_000


async def test_frames_that_name_no_call_are_passed_over() -> None:
    async with house() as hub, raw(hub) as spoke:
        await spoke.join()
        calling = asyncio.create_task(hub.call("raw.work"))
        call = await spoke.hear("call")
        for frame in STRAY:
            await spoke.socket.send(frame)
        await spoke.socket.send(f'{{"type": "progress", "id": "{call["id"]}", "value": {DEEP}}}', text=True)
        await spoke.say("result", id=call["id"], result="fine")
        assert (await calling).result == "fine"


async def test_a_subcall_that_cannot_be_read_is_refused_with_the_reason() -> None:
    async with house() as hub, raw(hub) as spoke:
        await spoke.join()
        await spoke.say("subcall", id="s1", parent=7, operation="raw.work")
        answer = await spoke.hear("error")
        assert (answer["id"], answer["error"]["code"]) == ("s1", "bad_request")
        assert "parent" in answer["error"]["message"]


async def test_of_a_registration_what_can_be_read_is_taken() -> None:
    deep = {"type": "object", "properties": msgspec.json.decode('{"a":' * 100 + "{}" + "}" * 100)}
    bad: list[Any] = [
        7,
        {"namespace": "raw"},
        {**OFFER, "name": 7},
        {**OFFER, "name": "a", "effect": "maybe"},
        {**OFFER, "name": "b", "timeout": -1},
        {**OFFER, "name": "c", "inputSchema": "none"},
        {**OFFER, "name": "d", "inputSchema": deep},
    ]
    async with house() as hub, raw(hub) as spoke:
        await spoke.join()
        for more in (bad[-1:], bad):
            await spoke.say("register", id="more", operations=[*more, {**OFFER, "name": "good"}])
            answer = await spoke.hear("registered")
            assert (answer["id"], answer["operations"]) == ("more", ["raw.good"])
            assert len(answer["refused"]) == len(more)
        very_deep = f'{{"namespace": "raw", "name": "x", "inputSchema": {DEEP}}}'
        good = msgspec.json.encode({**OFFER, "name": "good"}).decode()
        await spoke.socket.send(
            f'{{"type": "register", "id": "deep", "operations": [{very_deep}, {good}]}}', text=True
        )
        answer = await spoke.hear("registered")
        assert (answer["operations"], answer["refused"][0]["operation"]) == (["raw.good"], "raw.x")


async def test_the_operations_of_an_owner_are_limited_over_all_its_spokes() -> None:
    async with house(settings=SpokeSettings(owner_operations=3)) as hub, raw(hub) as one, raw(hub) as two:
        await one.join()
        await two.say("hello", protocol=1, id="two", token="key-a")
        await two.hear("welcome")
        offers = [{**OFFER, "name": name} for name in ("a", "b", "c")]
        await two.say("register", id="r", operations=offers)
        answer = await two.hear("registered")
        assert answer["operations"] == ["raw.a", "raw.b"]
        assert answer["refused"][0]["error"]["code"] == "too_large"
        assert "3 operations together" in answer["refused"][0]["error"]["message"]
        await one.say("unregister", operations=["raw.work"])
        await hub.lacks("raw.work")
        await two.say("register", id="r", operations=offers)
        assert (await two.hear("registered"))["operations"] == ["raw.a", "raw.b", "raw.c"]


async def test_a_flood_of_progress_is_read_slowly_and_the_answer_arrives() -> None:
    async with house(settings=SpokeSettings(frame_rate=500)) as hub, raw(hub) as spoke:
        await spoke.join()
        calling = asyncio.create_task(hub.call("raw.work"))
        call = await spoke.hear("call")
        before = asyncio.get_running_loop().time()
        for number in range(700):
            await spoke.say("progress", id=call["id"], value=number)
        await spoke.say("result", id=call["id"], result="fine")
        assert (await calling).result == "fine"
        assert asyncio.get_running_loop().time() - before >= 0.3  # 200 more than come at once


@pytest.mark.parametrize("effect", ["read", "once"])
@pytest.mark.parametrize("leaving", ["bye", "1000", "key revoked", "flood"])
async def test_calls_of_a_spoke_that_does_not_come_back_fail_at_once(leaving: str, effect: str) -> None:
    settings = SpokeSettings(grace=3600, claim_timeout=3600, bad_frames=0)
    async with house(settings=settings) as hub, raw(hub) as spoke:
        await spoke.say("hello", protocol=1, id="raw", token="key-a")
        await spoke.hear("welcome")
        await spoke.say("register", id="r", operations=[{**OFFER, "effect": effect}])
        await spoke.hear("registered")
        calling = asyncio.create_task(hub.call("raw.work"))
        await spoke.hear("call")
        match leaving:
            case "bye":
                await spoke.say("bye")
                await spoke.socket.close(1000)
            case "1000":
                await spoke.socket.close(1000)
            case "key revoked":
                line = hub.board._spokes["raw"].connection
                assert line is not None
                hub.board.disconnect(line.socket, "revoked")
            case _:
                await spoke.socket.send("{")
        async with asyncio.timeout(LIMIT):
            outcome = await calling
        assert outcome.error is not None
        assert outcome.error.code == ("uncertain" if effect == "once" else "unavailable")
        await hub.lacks("raw.work")
