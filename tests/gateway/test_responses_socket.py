"""The WebSocket of the Responses API, as Codex and OpenAI's client use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from dragoman.json_decoding import decode_fields
from dragoman.server.gateway.responses import socket
from tests.gateway.metered_hub import Desk, Site, chunked, completion, desk, holding, refusal, tokens, usage
from tests.waiting import LIMIT
from tests.wire import responses_streams

LAST = ("response.completed", "response.incomplete", "response.failed", "error")


@asynccontextmanager
async def connected(at: Desk, key: Mapping[str, str] | None = None) -> AsyncIterator[ClientConnection]:
    url = str(at.http.base_url).replace("http://", "ws://")
    async with (
        asyncio.timeout(LIMIT),
        connect(f"{url}/v1/responses", additional_headers=dict(key or {}), proxy=None) as client,
    ):
        yield client


async def send(client: ClientConnection, **fields: Any) -> None:
    body = {"type": "response.create", "model": "up/m", "store": False, **fields}
    await client.send(msgspec.json.encode(body).decode())


async def answer(client: ClientConnection) -> list[dict[str, Any]]:
    """The messages of one response."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["type"] not in LAST:
        found.append(msgspec.json.decode(await client.recv()))
    return found


async def ask(client: ClientConnection, **fields: Any) -> dict[str, Any]:
    """The last message of a response."""
    await send(client, **fields)
    return (await answer(client))[-1]


def prompt(at: Desk) -> list[str]:
    return [message["content"] for message in at.sites["up"].bodies[-1]["messages"]]


async def test_a_connection_remembers_responses_that_are_not_stored(tmp_path: Path) -> None:
    """As Codex: a warm-up that asks no model, then the new items of each turn."""
    answers = tokens("one", counts=usage(3, 1)), tokens("two"), tokens("three")
    async with desk(tmp_path, up=Site(*answers)) as at, connected(at) as client:
        warm = await ask(client, input=[{"role": "developer", "content": "rules"}], generate=False)
        assert (warm["type"], warm["response"]["output"]) == ("response.completed", [])
        assert at.sites["up"].requests == []
        first = await ask(client, input="a", previous_response_id=warm["response"]["id"])
        assert first["response"]["usage"]["total_tokens"] == 4
        assert prompt(at) == ["rules", "a"]
        second = await ask(client, input="b", previous_response_id=first["response"]["id"])
        assert prompt(at) == ["rules", "a", "one", "b"]
        assert second["response"]["status"] == "completed"
        rows = await at.rows(2)
        assert {row.door for row in rows} == {"responses"}
    async with desk(tmp_path / "again", up=Site(tokens("x"))) as at, connected(at) as client:
        unknown = await ask(client, input="b", previous_response_id=first["response"]["id"])
        assert (unknown["type"], unknown["status"]) == ("error", 400)
        assert unknown["error"]["code"] == "previous_response_not_found"
        assert (await ask(client, input="b"))["type"] == "response.completed"


async def test_a_client_that_leaves_with_its_answer_leaves_no_connection_to_the_provider(
    tmp_path: Path,
) -> None:
    """The provider has sent the last event, and not the end of the body."""
    left = asyncio.Event()

    async def reply(peer: Any, _: Any) -> None:
        await peer.send(chunked(responses_streams.STREAMS["text"], over=False))
        await peer.gone()
        left.set()

    async with desk(tmp_path, up=Site(reply, type="responses")) as at:
        async with connected(at) as client:
            assert (await ask(client, input="a"))["type"] == "response.completed"
        async with asyncio.timeout(LIMIT):
            await left.wait()


async def test_a_relayed_answer_with_a_part_of_a_character_is_sent_and_stored(tmp_path: Path) -> None:
    stream = responses_streams.STREAMS["text"].replace("🦜".encode(), "🦜".encode()[:3])
    async with desk(tmp_path, up=Site(chunked(stream), type="responses")) as at:
        async with connected(at) as client:
            last = await ask(client, input="a", store=True)
        assert (last["type"], last["response"]["output"][0]["content"][0]["text"]) == (
            "response.completed",
            "Hello wörld \ufffd",
        )
        body = {"model": "up/m", "input": "a", "stream": True}
        async with at.http.stream("POST", "/v1/responses", json=body) as response:
            assert b"response.completed" in await response.aread()
        stored = (await at.http.get(f"/v1/responses/{last['response']['id']}")).json()
        assert stored["output"] == last["response"]["output"]


async def test_a_stored_response_that_continues_one_that_is_not_is_complete(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(tokens("one"), tokens("two"), completion("three"))) as at:
        async with connected(at) as client:
            first = await ask(client, input="a")
            second = await ask(client, input="b", store=True, previous_response_id=first["response"]["id"])
        body = {"model": "up/m", "input": "c", "previous_response_id": second["response"]["id"]}
        assert (await at.http.post("/v1/responses", json=body)).status_code == 200
        assert prompt(at) == ["a", "one", "b", "two", "c"]


async def test_a_response_that_is_too_large_to_be_stored_is_part_of_the_next_one(tmp_path: Path) -> None:
    answers = Site(tokens("one"), tokens("two"), completion("three"))
    async with desk(tmp_path, up=answers, limits={"stored_response": 6_000}) as at:
        async with connected(at) as client:
            first = await ask(client, input="a", store=True, instructions="x" * 6_000)
            second = await ask(client, input="b", store=True, previous_response_id=first["response"]["id"])
        body = {"model": "up/m", "input": "c", "previous_response_id": second["response"]["id"]}
        assert (await at.http.post("/v1/responses", json=body)).status_code == 200
        assert prompt(at) == ["a", "one", "b", "two", "c"]


async def test_an_agent_is_warmed_up_and_then_asked_with_what_that_had(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(tokens("one")), model="up/m") as at, connected(at) as client:
        agent: dict[str, Any] = {"model": "agent/default"}
        warm = await ask(client, input=[{"role": "user", "content": "a"}], generate=False, **agent)
        assert (warm["type"], warm["response"]["output"]) == ("response.completed", [])
        last = await ask(client, input="b", previous_response_id=warm["response"]["id"], **agent)
        assert last["type"] == "response.completed"
        assert prompt(at) == ["a\nb"]
        unknown = await ask(client, input="a", generate=False, model="agent/none")
        assert (unknown["type"], unknown["status"]) == ("error", 404)


async def test_lanes_are_answered_side_by_side_and_a_lane_in_its_order(tmp_path: Path) -> None:
    async with (
        desk(tmp_path, up=Site(holding(tokens("slow", over=False)), tokens("quick"), tokens("next"))) as at,
        connected(at) as client,
    ):
        await send(client, input="a", stream_id="one")
        while msgspec.json.decode(await client.recv())["type"] != "response.output_text.delta":
            pass
        await send(client, input="b", stream_id="two")
        await send(client, input="c", stream_id="two")
        for text in ("quick", "next"):
            last = (await answer(client))[-1]
            assert last["stream_id"] == "two"
            assert last["response"]["output"][0]["content"][0]["text"] == text


async def test_a_connection_that_closes_ends_what_it_has_asked_for(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def hold(peer: Any, _: Any) -> None:
        await peer.send(tokens("slow", over=False))
        await peer.gone()
        gone.set()

    async with desk(tmp_path, up=Site(hold)) as at:
        async with connected(at) as client:
            await send(client, input="a")
            await client.recv()
        async with asyncio.timeout(LIMIT):
            await gone.wait()


async def test_what_the_hub_cannot_do_is_said_and_the_connection_goes_on(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(tokens("one"))) as at, connected(at) as client:
        await client.send('{"type": "response.steer", "previous_response_id": "resp_1", "input": "hm"}')
        failed = msgspec.json.decode(await client.recv())
        assert (failed["type"], failed["error"]["code"]) == (
            "response.steer.failed",
            "steering_not_supported",
        )
        for message in ("{", "[]", '{"type": "x"}', b"\x00"):
            await client.send(message)
            assert msgspec.json.decode(await client.recv())["status"] == 400
        assert (await ask(client, input=5))["error"]["param"] == "input"
        assert (await ask(client, input="a", model="nope/x"))["status"] == 404
        assert (await ask(client, input="a"))["type"] == "response.completed"


async def test_a_failure_of_the_provider_is_a_failed_response(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(refusal(429))) as at, connected(at) as client:
        last = await ask(client, input="a")
        assert (last["type"], last["response"]["error"]["code"]) == (
            "response.failed",
            "invalid_prompt",
        )


async def test_a_connection_needs_a_key_and_ends_when_that_is_revoked(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(holding(tokens("slow", over=False)))) as at:
        for headers in ({}, await at.key("eve", scopes=("chat",))):
            with pytest.raises(InvalidStatus) as refused:
                async with connected(at, headers):
                    pass
            assert refused.value.response.status_code == (401 if not headers else 403)
        key = await at.key("ada")
        async with connected(at, key) as client:
            await send(client, input="a")
            await client.recv()
            [stored] = [each for each in await at.hub.store.keys.list() if each.owner == "ada"]
            await at.hub.store.keys.revoke(stored.id)
            messages: list[Any] = []
            with suppress(ConnectionClosedError):
                async for message in client:
                    messages.append(message)  # noqa: PERF401 - the loop ends with an error
            last = msgspec.json.decode(messages[-1])
            assert (last["type"], last["status"]) == ("error", 401)


async def test_a_request_that_fails_by_an_internal_error_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, up=Site(tokens("one"))) as at, connected(at) as client:
        decode = decode_fields

        def fail(raw: bytes) -> Any:
            if b"poison" in raw:
                raise RuntimeError("sk-not-to-be-seen")
            return decode(raw)

        monkeypatch.setattr(socket, "decode_fields", fail)
        for text in ("poison", "poison again", "a"):
            await send(client, input=text, stream_id="lane")
        for _ in range(2):
            failed = (await answer(client))[-1]
            assert (failed["type"], failed["status"], failed["stream_id"]) == ("error", 500, "lane")
            assert "sk-" not in str(failed)
        assert (await answer(client))[-1]["type"] == "response.completed"


async def test_what_waits_on_a_connection_is_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "MAX_WAITING_SIZE", 10_000)
    async with desk(tmp_path, up=Site(holding(tokens("slow", over=False)))) as at, connected(at) as client:
        await send(client, input="a", stream_id="one")
        while msgspec.json.decode(await client.recv())["type"] != "response.output_text.delta":
            pass
        await send(client, input="x" * 20_000, stream_id="one")
        await send(client, input="x", stream_id="two")
        refused = (await answer(client))[-1]
        assert (refused["type"], refused["status"], refused["stream_id"]) == ("error", 429, "two")
