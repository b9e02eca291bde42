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
from tests.waiting import LIMIT, until
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
                hub.http.post("/v1/chat/completions", json={**body, "stream": True}, timeout=LIMIT)
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = "dragoman.server.gateway.answer.USAGE_WAIT"
    monkeypatch.setattr(wait, LIMIT)  # a busy machine may stand still for longer than it is
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


DOCUMENT = {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}}
IMAGE = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
PART: Mapping[str, Any] = {"type": "input_file", "file_id": "file_1"}
NAMED_FILES: Sequence[tuple[str, Any, int]] = [  # the protocol, the content, tokens beside those of the text
    ("anthropic", "hi", 0),
    ("anthropic", [DOCUMENT], 5_000),
    ("anthropic", [DOCUMENT, IMAGE, DOCUMENT, IMAGE], 5_000 + 2 * 1_600),
    ("anthropic", [{"type": "tool_result", "tool_use_id": "t", "content": [DOCUMENT]}], 5_000),
    ("anthropic", [{"type": "text", "text": '{"type": "input_file", "file_id": "file_1"}'}], 0),
    ("anthropic", [{"type": "document", "source": {"type": "text", "data": "hi"}}], 0),
    ("openai", [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}], 1_600),
    ("openai", [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}], 0),
    ("openai", [{"type": "file", "file": {"file_id": "file_1"}}], 5_000),
    ("openai", [{"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk="}}], 0),
    ("responses", [{"role": "user", "content": [PART]}], 5_000),
    (
        "responses",
        [{"content": [{"type": "input_image", "image_url": "https://a/b"}], "role": "user"}],
        1_600,
    ),
    ("responses", [{"type": "function_call_output", "call_id": "c", "output": [PART]}], 5_000),
]


@pytest.mark.parametrize(("family", "content", "tokens"), NAMED_FILES)
async def test_files_that_a_request_only_names_are_reserved(
    tmp_path: Path, family: str, content: Any, tokens: int
) -> None:
    """A thousand dollars for a million tokens; what the body itself has is far less than a file."""
    reserved: list[int] = []

    async def answer(peer: Peer, _: Received) -> None:
        reserved.append((await standing_now(at))[1])
        await peer.send(refusal(400))

    prices = {"up/m": {"input": 1000.0, "output": 0.0}}
    config = {"named_documents": 5_000}
    up = Site(answer, type=family)
    async with desk(tmp_path, keys=True, up=up, prices=prices, limits=config) as at:
        key = await at.key(limits=Limits(usd_total=100.0))
        turn = [{"role": "user", "content": content}]
        if family == "responses":
            body = {"model": "up/m", "input": content, "store": False}
            await at.http.post("/v1/responses", json=body, headers=key)
        else:
            await (at.chat if family == "openai" else at.message)("up/m", key, messages=turn)
        [nanos] = reserved
        assert tokens <= nanos / 1_000_000 < tokens + 400
        assert await standing(at) == (0, 0)


ADVISOR = {"type": "advisor_20260301", "name": "advisor", "model": "large"}
ADVICE: Sequence[tuple[Sequence[Mapping[str, Any]], int, int]] = [  # tools, the answer, thousands of tokens
    ([{**ADVISOR, "max_uses": 2, "max_tokens": 1_000}], 200, 2),
    ([{**ADVISOR, "max_uses": 3, "max_tokens": 1_000}], 429, 0),
    ([{**ADVISOR, "max_uses": 1, "max_tokens": 1_000}] * 2, 200, 2),
    ([ADVISOR], 429, 0),
    ([{**ADVISOR, "max_uses": 1, "max_tokens": 10, "model": "unknown"}], 400, 0),
    ([{**ADVISOR, "max_uses": 0}], 200, 0),
    ([{"type": "advisor_20260301", "model": f"m{n}", "max_uses": 1} for n in range(9)], 400, 0),
]


@pytest.mark.parametrize(("tools", "status", "thousands"), ADVICE)
async def test_advice_of_another_model_is_reserved_at_its_price_before_it_is_asked_for(
    tmp_path: Path, tools: Sequence[Mapping[str, Any]], status: int, thousands: int
) -> None:
    """Ten dollars for a million tokens: a budget of two cents has room for two thousand."""
    balances: list[tuple[int, int]] = []

    async def answer(peer: Peer, _: Received) -> None:
        balances.append(await standing_now(at))
        await peer.send(message("hi"))

    prices = {"up/m": {"input": 0, "output": 0}, "up/large": {"input": 0, "output": 10.0}}
    async with desk(tmp_path, keys=True, up=Site(answer, type="anthropic"), prices=prices) as at:
        key = await at.key(limits=Limits(usd_total=0.02))
        response = await at.message("up/m", key, tools=tools)
        assert response.status_code == status, response.text
        assert balances == ([(0, thousands * 10_000_000)] if status == 200 else [])
        assert await standing(at) == (0, 0)


async def test_a_key_for_one_model_gets_no_advice_of_another(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(message("hi"), type="anthropic")) as at:
        key = await at.key(models=["up/m"])
        assert (await at.message("up/m", key, tools=[{**ADVISOR, "model": "m"}])).status_code == 200
        assert (await at.message("up/m", key, tools=[ADVISOR])).status_code == 403


@pytest.mark.parametrize(
    ("alias", "models", "status"),
    [
        ("expert", ["up/large"], 200),
        ("expert", ["expert-2"], 200),
        ("expert", ["up/m", "up/large"], 403),  # it answers only if the first fails
        ("other", ["up/large"], 403),
    ],
)
async def test_a_key_for_an_alias_gets_advice_of_its_model(
    tmp_path: Path, alias: str, models: Sequence[str], status: int
) -> None:
    aliases = {alias: models, "expert-2": ["up/large"]}
    async with desk(tmp_path, keys=True, up=Site(message("hi"), type="anthropic"), aliases=aliases) as at:
        key = await at.key(models=["up/m", "expert"])
        assert (await at.message("up/m", key, tools=[ADVISOR])).status_code == status


@pytest.mark.parametrize(
    ("limits", "status"), [(Limits(usd_total=1.0), 400), (Limits(tokens_per_minute=10_000), 400), (None, 200)]
)
async def test_a_thread_is_not_continued_where_the_prompt_counts(
    tmp_path: Path, limits: Limits | None, status: int
) -> None:
    prices = {"up/m": {"input": 1.0, "output": 1.0}}
    async with desk(tmp_path, keys=True, up=Site(message("hi"), type="anthropic"), prices=prices) as at:
        key = await at.key(limits=limits)
        thread = {"type": "continue", "previous_message_id": "msg_1"}
        response = await at.message("up/m", key, thread=thread)
        assert response.status_code == status, response.text
        if status == 400:
            assert response.json()["error"]["details"] == {"error_code": "thread_not_found"}
        assert (await at.message("up/m", key, thread={"type": "create"})).status_code == 200


async def test_a_field_named_thread_of_another_protocol_is_passed_on(tmp_path: Path) -> None:
    prices = {"up/m": {"input": 1.0, "output": 1.0}}
    async with desk(tmp_path, keys=True, up=Site(completion("hi")), prices=prices) as at:
        key = await at.key(limits=Limits(usd_total=1.0))
        body = {"model": "up/m", "messages": [{"role": "user", "content": "hi"}], "thread": {"type": "mine"}}
        response = await at.http.post("/v1/chat/completions", json=body, headers=key)
        assert response.status_code == 200, response.text


async def standing_now(at: Desk) -> tuple[int, int]:
    """What the only key has spent and reserved, while a request is under way."""
    [key] = await at.hub.store.keys.list()
    return await at.hub.store.budgets.get_balance(f"key:{key.id}", "total")


FILES: Sequence[tuple[str, str, int]] = [  # media type, URL, tokens beside the text
    ("application/pdf", "https://example.org/a.pdf", 5_000),
    ("application/pdf", "data:application/pdf;base64,aGk=", 0),
    ("image/png", "https://example.org/a.png", 0),
]


@pytest.mark.parametrize(("media_type", "url", "tokens"), FILES)
async def test_documents_that_a_message_to_an_agent_only_names_are_reserved(
    tmp_path: Path, media_type: str, url: str, tokens: int
) -> None:
    reserved: list[int] = []

    async def answer(peer: Peer, _: Received) -> None:
        reserved.append((await standing_now(at))[1])
        await peer.send(refusal(400))

    prices = {"up/m": {"input": 1000.0, "output": 0.0}}
    config = {"named_documents": 5_000}
    async with desk(tmp_path, keys=True, up=Site(answer), prices=prices, limits=config, model="up/m") as at:
        key = await at.key(limits=Limits(usd_total=100.0))
        parts = [{"type": "text", "text": "hi"}, {"type": "file", "mediaType": media_type, "url": url}]
        body = {"id": "s", "messages": [{"id": "u", "role": "user", "parts": parts}]}
        await at.http.post("/api/chat", json=body, headers=key)
        [nanos] = reserved
        assert tokens <= nanos / 1_000_000 < tokens + 4_000
        assert await standing(at) == (0, 0)
