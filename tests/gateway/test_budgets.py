"""Budgets over HTTP: held under concurrency, kept over a restart, refunded."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.store.store import Store
from dragoman.usage_limits import Limits
from tests.faults.process import started
from tests.providers.servers import Peer, Received, serving
from tests.waiting import until
from tests.wire.responses_streams import STREAMS as RESPONSES

from .metered_hub import (
    HI,
    Desk,
    Site,
    chunked,
    completion,
    configured,
    desk,
    holding,
    message,
    placed,
    refusal,
    served,
    tokens,
    usage,
)

RUSH = 500
ROOM = 100
PROMPT = len(msgspec.json.encode({"model": "up/m", "messages": HI, "max_tokens": 100})) // 4
DOLLAR = 1_000_000_000


async def standing(at: Desk, window: str = "total") -> tuple[int, int]:
    """What the only key has spent and reserved, in nano-dollars, when all is written."""
    await until(lambda: at.hub.gateway.active == 0)
    await at.hub.meter.ledger.flush()
    await at.hub.store.flush()
    [key] = await at.hub.store.keys.list()
    return await at.hub.store.budgets.get_balance(f"key:{key.id}", window)


@pytest.mark.parametrize("used", [100, 60], ids=["as reserved", "less than reserved"])
async def test_of_500_at_once_no_more_pass_than_a_budget_has_room_for(tmp_path: Path, used: int) -> None:
    prices = {"*": {"input": 0, "output": 10}}
    each, room = used * 10_000, ROOM * 100 * 10_000  # nano-dollars
    up = Site(completion(counts=usage(PROMPT, used)))
    async with desk(tmp_path, keys=True, up=up, prices=prices) as at:
        key = await at.key(limits=Limits(usd_total=room / DOLLAR))
        found = Counter(await at.rush(RUSH, key, max_tokens=100))
        assert set(found) == {200, 429}
        assert found[200] == len(up.requests)
        assert (found[200] == ROOM) if used == 100 else (ROOM <= found[200] <= room // each)
        assert await standing(at) == (found[200] * each, 0)
        rows = await at.rows(found[200])
        assert {row.cost for row in rows} == {each / DOLLAR}
        more = 0  # one after the other: each is settled before the next
        while (await at.chat(key=key, max_tokens=100)).status_code == 200:
            more += 1
        left = (room - found[200] * each - 100 * 10_000) // each + 1
        assert more == max(0, left)
        assert (await standing(at))[0] <= room


async def test_a_budget_survives_a_restart(tmp_path: Path) -> None:
    up = Site(completion(counts=usage(1000, 0)))
    async with placed(up):
        config = configured({"up": up})
        async with served(tmp_path, config, keys=True) as at:
            key = await at.key(limits=Limits(usd_per_month=0.003))
            assert [(await at.chat(key=key, max_tokens=1)).status_code for _ in range(2)] == [200, 200]
        async with served(tmp_path, config, keys=True) as at:
            assert [(await at.chat(key=key, max_tokens=1)).status_code for _ in range(2)] == [200, 429]
            assert (await standing(at))[1] == 0


async def test_a_crash_leaves_nothing_reserved(tmp_path: Path) -> None:
    """The hub is killed while an answer for which money is reserved is under way."""
    up = Site(holding(tokens("hel", over=False)), completion(counts=usage(1000, 0)))
    async with serving(up.script) as server:
        up.url = server.url
        config = tmp_path / "dragoman.yaml"
        config.write_bytes(
            msgspec.json.encode(
                {
                    "providers": {"up": up.provider},
                    "prices": {"*": {"input": 1, "output": 2}},
                    "limits": {"owner": {"usd_total": 0.003}},
                }
            )
        )
        body = {"model": "up/m", "messages": HI, "max_tokens": 1000}
        async with started(config, tmp_path / "data") as hub:
            task = asyncio.ensure_future(
                hub.http.post("/v1/chat/completions", json={**body, "stream": True}, timeout=10)
            )
            await until(lambda: len(up.requests) == 1)
            assert (await hub.http.post("/v1/chat/completions", json=body)).status_code == 429
            await hub.kill(signal.SIGKILL)
            await asyncio.gather(task, return_exceptions=True)
        async with await Store.open(tmp_path / "data", exclusive=False) as store:
            assert (await store.budgets.get_balance("owner:local", "total"))[1] > 0
        async with started(config, tmp_path / "data") as hub:
            assert (await hub.http.post("/v1/chat/completions", json=body)).status_code == 200
            await hub.kill(signal.SIGTERM)
        async with await Store.open(tmp_path / "data", exclusive=False) as store:
            assert await store.budgets.get_balance("owner:local", "total") == (1_000_000, 0)


async def test_a_request_that_fails_gives_all_of_its_reservation_back(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site()) as at:
        key = await at.key(limits=Limits(usd_total=0.01))
        for reply in (refusal(400, "bad"), refusal(500), b"garbage\r\n\r\n"):
            at.sites["up"].replies(reply)
            for stream in (False, True):
                assert (await at.chat(key=key, max_tokens=1000, stream=stream)).is_error
                assert await standing(at) == (0, 0)
        assert (await at.chat(key=key, n="x", max_tokens=1000, messages=7)).is_error
        odd = await at.http.post("/v1/chat/completions?dialect=x", json={"model": "up/m"}, headers=key)
        assert odd.status_code == 400
        assert await standing(at) == (0, 0)


async def test_a_stream_that_its_client_leaves_is_paid_by_estimate(tmp_path: Path) -> None:
    up = Site(holding(tokens("x" * 4000, over=False)))
    async with desk(tmp_path, keys=True, up=up) as at:
        key = await at.key(limits=Limits(usd_total=1.0))
        body = {"model": "up/m", "messages": HI, "stream": True, "max_tokens": 5000}
        async with at.http.stream("POST", "/v1/chat/completions", json=body, headers=key) as answer:
            async for piece in answer.aiter_text():
                if "xxx" in piece:
                    break
        spent, reserved = await standing(at)
        row = await at.row()
        assert (row.status, row.tokens.estimated, row.tokens.output_tokens) == ("aborted", True, 1000)
        assert row.tokens.input_tokens == len(msgspec.json.encode(body)) // 4
        assert (spent, reserved) == (row.tokens.input_tokens * 1000 + 1000 * 2000, 0)
        assert row.cost == spent / DOLLAR


async def test_usage_that_comes_just_behind_the_finish_is_waited_for_when_the_client_leaves(
    tmp_path: Path,
) -> None:
    gate = asyncio.Event()
    whole = tokens("hello", counts=usage(77, 33))
    at_usage = whole.index(b'data: {"model":"m-1","choices":[],')

    async def late(peer: Any, _: Any) -> None:
        head, body = whole.split(b"\r\n\r\n", 1)
        size, frames = body.split(b"\r\n", 1)
        cut = at_usage - len(whole) + len(frames)
        first, rest = frames[:cut], frames[cut : int(size, 16)]
        await peer.send(head + b"\r\n\r\n" + b"%x\r\n%b\r\n" % (len(first), first))
        await gate.wait()
        await peer.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest))

    async with desk(tmp_path, up=Site(late)) as at:
        body = {"model": "up/m", "messages": HI, "stream": True}
        async with at.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for piece in answer.aiter_text():
                if 'finish_reason":"stop' in piece:
                    break
        gate.set()
        await until(lambda: at.hub.gateway.active == 0)
        row = await at.row()
        assert (row.tokens.input_tokens, row.tokens.output_tokens, row.tokens.estimated) == (77, 33, False)


async def test_a_model_without_a_price_is_refused_where_money_is_limited_unless_that_is_allowed(
    tmp_path: Path,
) -> None:
    up = Site(completion())
    async with desk(tmp_path / "a", keys=True, up=up, prices={}) as at:
        limited, free = await at.key(limits=Limits(usd_per_day=1.0)), await at.key("bob")
        refused = await at.chat("up/own", limited)
        assert refused.status_code == 400
        assert "'up/own' has no price" in refused.json()["error"]["message"]
        assert refused.json()["error"]["param"] == "model"
        assert (await at.chat("up/own", free)).status_code == 200
        assert (await at.row()).cost is None
    up = Site(completion())
    async with desk(tmp_path / "b", keys=True, up=up, prices={}, limits={"unpriced": "allow"}) as at:
        limited = await at.key(limits=Limits(usd_per_day=1.0))
        response = await at.chat("up/own", limited)
        assert response.status_code == 200
        assert "x-dragoman-cost" not in response.headers
        assert await standing(at) == (0, 0)


async def test_a_fallback_is_paid_at_its_own_price_and_reserved_at_that_of_the_first(tmp_path: Path) -> None:
    prices = {"one/*": {"input": 1, "output": 1}, "two/*": {"input": 10, "output": 10}}
    sites: dict[str, Any] = {"one": Site(refusal(503)), "two": Site(completion(counts=usage(100, 100)))}
    async with desk(tmp_path, keys=True, fallbacks={"*": ["two/b"]}, prices=prices, **sites) as at:
        key = await at.key(limits=Limits(usd_total=0.002))
        assert (await at.chat("one/a", key, max_tokens=100)).status_code == 200
        assert await standing(at) == (2_000_000, 0)
        assert (await at.chat("one/a", key, max_tokens=100)).status_code == 429


SEARCH = {"type": "web_search_20250305", "name": "web_search"}
SEARCHES: Sequence[tuple[str, Mapping[str, Any], int]] = [  # the family, fields of the request, its answer
    ("anthropic", {"tools": [{**SEARCH, "max_uses": 2}]}, 200),
    ("anthropic", {"tools": [{**SEARCH, "max_uses": 3}]}, 429),
    ("anthropic", {"tools": [SEARCH]}, 429),
    ("anthropic", {}, 200),
    ("responses", {"tools": [{"type": "web_search"}], "max_tool_calls": 2}, 200),
    ("responses", {"tools": [{"type": "web_search"}], "max_tool_calls": 3}, 429),
    ("responses", {"tools": [{"type": "web_search"}]}, 429),
]


@pytest.mark.parametrize(("family", "fields", "status"), SEARCHES)
async def test_searches_of_the_provider_are_reserved_before_they_are_made(
    tmp_path: Path, family: str, fields: Mapping[str, Any], status: int
) -> None:
    """Ten dollars for a thousand: a budget of two cents has room for two."""
    balances: list[tuple[int, int]] = []

    async def answer(peer: Peer, _: Received) -> None:
        balances.append(await standing_now(at))
        await peer.send(message("hi") if family == "anthropic" else chunked(RESPONSES["text"]))

    prices = {"*": {"input": 0, "output": 0, "web_search": 10.0}}
    async with desk(tmp_path, keys=True, up=Site(answer, type=family), prices=prices) as at:
        key = await at.key(limits=Limits(usd_total=0.02))
        if family == "anthropic":
            response = await at.message("up/m", key, **fields)
        else:
            body = {"model": "up/m", "input": "hi", "store": False, **fields}
            response = await at.http.post("/v1/responses", json=body, headers=key)
        assert response.status_code == status, response.text
        reserved = 20_000_000 if fields else 0
        assert balances == ([(0, reserved)] if status == 200 else [])
        assert await standing(at) == (0, 0)


async def standing_now(at: Desk) -> tuple[int, int]:
    """What the only key has spent and reserved, while a request is under way."""
    [key] = await at.hub.store.keys.list()
    return await at.hub.store.budgets.get_balance(f"key:{key.id}", "total")
