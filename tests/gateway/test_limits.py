"""Limits over HTTP: requests, tokens and parallel requests, of keys, owners and the hub."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from dragoman.accounts.price import Price, TokenRates
from dragoman.usage_limits import Limits
from tests.providers.servers import Peer
from tests.waiting import until

from .metered_hub import Desk, Site, completion, desk, holding, refusal, tokens, usage

OWN: dict[str, Any] = {"limits": {"owners": {"ada": {"requests_per_minute": 2}}}}


def collect(response: httpx2.Response, code: int = 429) -> str:
    assert response.status_code == code, response.text
    text: str = response.json()["error"]["message"]
    return text


async def test_a_key_asks_so_often_a_minute_and_is_told_when_to_come_again(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        key = await at.key(limits=Limits(requests_per_minute=2))
        assert [(await at.chat(key=key)).status_code for _ in range(2)] == [200, 200]
        openai, anthropic = await at.chat(key=key), await at.message(key=key)
        [api_key] = await at.hub.store.keys.list()
        text = f"the key '{api_key.id}' is limited to 2 requests a minute"
        assert openai.status_code == anthropic.status_code == 429
        body = openai.json()["error"]
        assert (body["message"], body["type"], body["code"]) == (
            text,
            "rate_limit_error",
            "rate_limit_exceeded",
        )
        assert anthropic.json()["type"] == "error"
        assert anthropic.json()["error"] == {"type": "rate_limit_error", "message": text}
        for response in (openai, anthropic):
            assert 50 <= int(response.headers["retry-after"]) <= 60
            assert response.headers["x-should-retry"] == "true"
            assert response.headers["x-dragoman-request-id"]
        assert len(at.sites["up"].requests) == 2
        await at.rows(2)  # a refused request uses nothing
        assert (await at.chat(key=await at.key())).status_code == 200


async def test_an_owner_has_limits_over_all_keys(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion()), **OWN) as at:
        keys = [await at.key("ada") for _ in range(3)]
        found = [(await at.chat(key=key)).status_code for key in keys]
        assert found == [200, 200, 429]
        assert collect(await at.chat(key=keys[0])) == "the owner 'ada' is limited to 2 requests a minute"
        assert (await at.chat(key=await at.key("bob"))).status_code == 200


async def test_the_hubs_usual_limits_stand_where_a_key_and_an_owner_have_none_of_their_own(
    tmp_path: Path,
) -> None:
    limits = {"key": {"requests_per_minute": 1}, "owner": {"requests_per_minute": 3}}
    async with desk(tmp_path, keys=True, up=Site(completion()), limits=limits) as at:
        usual, own = await at.key(), await at.key(limits=Limits(requests_per_minute=9))
        assert [(await at.chat(key=usual)).status_code for _ in range(2)] == [200, 429]
        assert [(await at.chat(key=own)).status_code for _ in range(3)] == [200, 200, 429]
        assert "the owner 'ada'" in collect(await at.chat(key=own))


async def test_without_keys_the_owner_local_has_limits(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion()), limits={"owner": {"requests_per_minute": 1}}) as at:
        assert (await at.chat()).status_code == 200
        assert collect(await at.chat()) == "the owner 'local' is limited to 1 requests a minute"


async def test_tokens_a_minute_are_those_that_were_used(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion(counts=usage(600, 300)))) as at:
        key = await at.key(limits=Limits(tokens_per_minute=1000))
        assert (await at.chat(key=key)).status_code == 200
        assert (await at.chat(key=key)).status_code == 200  # 900 were used, and this prompt is short
        refused = await at.chat(key=key)
        assert "is limited to 1000 tokens a minute" in collect(refused)
        assert 50 <= int(refused.headers["retry-after"]) <= 60
        failing = await at.key(limits=Limits(tokens_per_minute=40))
        at.sites["up"].replies(refusal(400, "bad"))
        assert [(await at.chat(key=failing)).status_code for _ in range(5)] == [400] * 5  # they used none


async def test_a_prompt_that_is_longer_than_a_minutes_tokens_is_not_worth_another_try(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        key = await at.key(limits=Limits(tokens_per_minute=100))
        long = [{"role": "user", "content": "word " * 1000}]
        for refused in (await at.chat(key=key, messages=long), await at.message(key=key, messages=long)):
            assert "is limited to 100 tokens a minute, and this request alone has about 12" in collect(
                refused
            )
            assert refused.headers["x-should-retry"] == "false"
            assert "retry-after" not in refused.headers
        assert (await at.chat(key=key)).status_code == 200


async def test_so_many_requests_are_under_way_at_once(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def gated(peer: Any, _: Any) -> None:
        await gate.wait()
        await peer.send(completion())

    async with desk(tmp_path, keys=True, up=Site(gated)) as at:
        key = await at.key(limits=Limits(parallel=3))
        requests = [asyncio.ensure_future(at.chat(key=key)) for _ in range(10)]
        await until(lambda: sum(task.done() for task in requests) == 7)
        gate.set()
        found = [response.status_code for response in await asyncio.gather(*requests)]
        assert sorted(found) == [200] * 3 + [429] * 7
        refused = next(task.result() for task in requests if task.result().status_code == 429)
        assert "is limited to 3 requests at the same time" in collect(refused)
        assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("1", "true")
        assert (await at.chat(key=key)).status_code == 200


async def leaving(peer: Peer, _: Any) -> None:
    peer.writer.close()


ENDS: dict[str, Any] = {
    "an answer": completion(),
    "a stream": tokens("ok"),
    "a refusal": refusal(400, "bad"),
    "a broken stream": tokens("ok", over=False) + b"0\r\n\r\n",
    "nobody": leaving,
}


async def test_however_a_request_ends_there_is_room_for_the_next(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site()) as at:
        key = await at.key(limits=Limits(parallel=1))
        for reply in ENDS.values():
            at.sites["up"].replies(reply, completion())
            assert (await at.chat(key=key, stream=reply == ENDS["a stream"])).status_code != 429
            await ended(at)
        assert (await at.chat(key=key, n="wrong", model="nowhere/x")).status_code == 404
        assert (
            await at.http.post("/v1/chat/completions?dialect=x", json={"model": "up/m"}, headers=key)
        ).is_error
        assert (await at.chat(key=key)).status_code == 200


async def ended(at: Desk) -> None:
    """Return when no request is under way."""
    await until(lambda: at.hub.gateway.active == 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_makes_room(tmp_path: Path, *, stream: bool) -> None:
    start = tokens("hel", over=False) if stream else b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"
    async with desk(tmp_path, keys=True, up=Site(holding(start), completion())) as at:
        key = await at.key(limits=Limits(parallel=1))
        task = asyncio.ensure_future(at.chat(key=key, stream=stream))
        await until(lambda: at.hub.gateway.active == 1 and len(at.sites["up"].requests) == 1)
        assert (await at.chat(key=key)).status_code == 429
        task.cancel()
        await ended(at)
        assert (await at.chat(key=key)).status_code == 200


MONEY = [("usd_per_day", "this day"), ("usd_per_month", "this month"), ("usd_total", "in total")]


@pytest.mark.parametrize(("field", "span"), MONEY)
async def test_money_is_limited_by_the_day_the_month_and_in_all(
    tmp_path: Path, field: str, span: str
) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion(counts=usage(1000, 0)))) as at:
        key = await at.key(limits=msgspec.convert({field: 0.002}, Limits))
        fields: dict[str, Any] = {"max_tokens": 1}
        assert [(await at.chat(key=key, **fields)).status_code for _ in range(2)] == [200, 200]
        [api_key] = await at.hub.store.keys.list()
        openai, anthropic = await at.chat(key=key, **fields), await at.message(key=key, **fields)
        text = f"the key '{api_key.id}' may spend $0.002 {span} and has spent $0.002"
        assert collect(openai).startswith(text)
        assert collect(anthropic).startswith(text)
        assert (openai.json()["error"]["type"], openai.json()["error"]["code"]) == ("insufficient_quota",) * 2
        for refused in (openai, anthropic):
            assert refused.headers["x-should-retry"] == "false"
            assert "retry-after" not in refused.headers
        assert (await at.chat(key=await at.key())).status_code == 200


async def test_an_owners_money_is_that_of_all_keys(tmp_path: Path) -> None:
    limits = {"owner": {"usd_per_month": 0.002}}
    async with desk(tmp_path, keys=True, up=Site(completion(counts=usage(1000, 0))), limits=limits) as at:
        keys = [await at.key("ada") for _ in range(3)]
        assert [(await at.chat(key=key, max_tokens=1)).status_code for key in keys] == [200, 200, 429]
        assert (await at.chat(key=await at.key("bob"), max_tokens=1)).status_code == 200


async def test_what_others_have_reserved_is_worth_another_try(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(holding(tokens("hel", over=False)), completion())) as at:
        key = await at.key(limits=Limits(usd_total=0.003))
        task = asyncio.ensure_future(at.chat(key=key, stream=True, max_tokens=1000))
        await until(lambda: len(at.sites["up"].requests) == 1)
        refused = await at.chat(key=key, max_tokens=1000)
        assert "is reserved by active requests" in collect(refused)
        assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("1", "true")
        task.cancel()
        await ended(at)
        assert (await at.chat(key=key, max_tokens=1000)).status_code == 200


async def test_no_length_of_an_answer_makes_room_or_an_accident(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(refusal(400, "max_tokens is wrong"))) as at:
        key = await at.key(limits=Limits(usd_total=1.0))
        [api_key] = await at.hub.store.keys.list()
        for most in (-1, -(10**9), 0, 10**30, 2**63):
            response = await at.chat(key=key, max_tokens=most)
            assert response.status_code == (429 if most > 0 else 400)
            await at.hub.meter.ledger.flush()
            assert await at.hub.store.budgets.get_balance(f"key:{api_key.id}", "total") == (0, 0)


def test_a_ceiling_is_never_below_nothing_nor_beyond_the_database() -> None:
    price = Price(name="m", rates=(TokenRates(input=1_000_000, output=2_000_000),))
    assert price.max_cost(10, -5) == price.max_cost(10, None) == 10_000 + 1024 * 2000
    assert price.max_cost(10, 10**40) == 2**62
