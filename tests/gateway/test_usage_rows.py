"""Usage rows: what is recorded of each request, and its cost."""

from __future__ import annotations

import asyncio
import csv
import gc
import io
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from genai_prices import Usage as TheirUsage
from genai_prices import calc_price

from dragoman.events import Usage
from tests.cli.program import run
from tests.databases import BACKENDS, database_variables
from tests.providers.servers import ok
from tests.waiting import until
from tests.wire import anthropic_streams
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

COMMENT = re.compile(r"^: x-dragoman-cost (\S+)\n\n", re.MULTILINE)
FULL = {
    **usage(1000, 200),
    "prompt_tokens_details": {"cached_tokens": 400},
    "completion_tokens_details": {"reasoning_tokens": 150},
}


def anthropic_stream(last: dict[str, Any] | None = None, **counts: Any) -> bytes:
    events = [
        anthropic_streams.start(input_tokens=100, output_tokens=1, **counts),
        *anthropic_streams.text(0, "hello"),
        anthropic_streams.stop("end_turn", last or {"output_tokens": 50}),
        anthropic_streams.STOP,
    ]
    return chunked(anthropic_streams.sse(*events))


def cost_of(response: httpx2.Response, *, stream: bool) -> Decimal:
    """What a client is told that it cost: in a header, or behind a stream."""
    if not stream:
        return Decimal(response.headers["x-dragoman-cost"])
    assert "x-dragoman-cost" not in response.headers
    [reply] = COMMENT.findall(response.text)
    assert response.text.endswith(f": x-dragoman-cost {reply}\n\n")
    return Decimal(reply)


@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_a_row_holds_all_that_is_known_of_a_request(tmp_path: Path) -> None:
    up = Site(completion(counts=FULL), keys=[{"name": "first", "api_key_env": "UP_KEY"}])
    async with desk(tmp_path, keys=True, environ={"UP_KEY": "sk-up"}, up=up, aliases={"fast": "up/m"}) as at:
        key = await at.key("ada")
        response = await at.chat("fast", key)
        [api_key] = await at.hub.store.keys.list()
        row = await at.row()
        assert row.first_byte is not None
        assert row.duration is not None
        assert 0 < row.first_byte <= row.duration < 20
        fields = msgspec.structs.asdict(row)
        for varies in ("id", "started_at", "first_byte", "duration"):
            assert fields.pop(varies)
        assert fields == {
            "owner": "ada",
            "status": "finished",
            "run_id": None,
            "session_id": None,
            "key_id": api_key.id,
            "step": None,
            "provider": "up",
            "model_asked": "fast",
            "model_served": "served-1",
            "tokens": Usage(1000, 200, 1200, reasoning_tokens=150, cached_input_tokens=400),
            "cost": 0.0014,
            "finish_reason": "stop",
            "request_id": response.headers["x-dragoman-request-id"],
            "door": "openai",
            "key_name": "first",
            "upstream_status": None,
            "error": None,
            "price_model": "*",
            "call_id": None,
        }


SHAPES: dict[str, tuple[Site, str, bool, Usage]] = {
    "openai": (Site(completion(counts=FULL)), "chat", False, Usage(1000, 200, 1200, 150, 400)),
    "openai stream": (Site(tokens("a", counts=FULL)), "chat", True, Usage(1000, 200, 1200, 150, 400)),
    "openai as anthropic": (
        Site(tokens("a", counts=FULL)),
        "message",
        False,
        Usage(1000, 200, 1200, 150, 400),
    ),
    "openai as anthropic stream": (
        Site(tokens("a", counts=FULL)),
        "message",
        True,
        Usage(1000, 200, 1200, 150, 400),
    ),
    "anthropic": (
        Site(
            message(
                input_tokens=100,
                output_tokens=50,
                cache_read_input_tokens=800,
                cache_creation_input_tokens=30,
            ),
            type="anthropic",
        ),
        "message",
        False,
        Usage(930, 50, 980, cached_input_tokens=800, cache_write_tokens=30),
    ),
    "anthropic stream": (
        Site(anthropic_stream(cache_read_input_tokens=800, cache_creation_input_tokens=30), type="anthropic"),
        "message",
        True,
        Usage(930, 50, 980, cached_input_tokens=800, cache_write_tokens=30),
    ),
    "anthropic as openai stream": (
        Site(anthropic_stream(cache_read_input_tokens=800, cache_creation_input_tokens=30), type="anthropic"),
        "chat",
        True,
        Usage(930, 50, 980, cached_input_tokens=800, cache_write_tokens=30),
    ),
}


async def test_every_way_through_counts_the_same_and_costs_the_same(tmp_path: Path) -> None:
    """The client's header or comment, the row, and the price to the nano-dollar."""
    sites: dict[str, Any] = {f"up{number}": site for number, (site, *_) in enumerate(SHAPES.values())}
    prices = {"*": {"input": 3.0, "output": 15.0, "cache_read": 0.3, "cache_write": 3.75}}
    async with desk(tmp_path, prices=prices, **sites) as at:
        for name, (case, (_, door, stream, counted)) in zip(sites, SHAPES.items(), strict=True):
            ask = at.chat if door == "chat" else at.message
            response = await ask(f"{name}/m", stream=stream)
            assert response.status_code == 200, response.text
            row = (await at.rows())[-1]
            assert (case, row.tokens) == (case, counted)
            read, written = counted.cached_input_tokens or 0, counted.cache_write_tokens or 0
            fresh = (counted.input_tokens or 0) - read - written
            nanos = fresh * 3000 + read * 300 + written * 3750 + (counted.output_tokens or 0) * 15_000
            assert row.cost == nanos / 10**9
            assert cost_of(response, stream=stream) == Decimal(nanos) / 10**9
            assert row.door == ("openai" if door == "chat" else "anthropic")
            assert response.headers["x-dragoman-model"] == f"{name}/m"
            assert response.headers["x-dragoman-request-id"] == row.request_id


async def test_costs_are_those_of_the_price_list(tmp_path: Path) -> None:
    """The names of the providers say whose prices they are."""
    sites: dict[str, Any] = {
        "openai": Site(completion(counts=FULL)),
        "anthropic": Site(
            message(
                input_tokens=101,
                output_tokens=53,
                cache_read_input_tokens=877,
                cache_creation_input_tokens=31,
            ),
            type="anthropic",
        ),
    }
    async with desk(tmp_path, prices={}, **sites) as at:
        await at.chat("openai/gpt-4o")
        await at.message("anthropic/claude-sonnet-4-5")
        rows = await at.rows(2)
        theirs = [
            calc_price(
                TheirUsage(input_tokens=1000, output_tokens=200, cache_read_tokens=400),
                "gpt-4o",
                provider_id="openai",
            ),
            calc_price(
                TheirUsage(input_tokens=1009, output_tokens=53, cache_read_tokens=877, cache_write_tokens=31),
                "claude-sonnet-4-5",
                provider_id="anthropic",
            ),
        ]
        for row, price in zip(rows, theirs, strict=True):
            assert row.cost is not None
            assert abs(Decimal(str(row.cost)) - price.total_price) <= Decimal("0.5e-9")


async def test_an_hour_in_the_cache_and_searches_have_prices_of_their_own(tmp_path: Path) -> None:
    """At every endpoint, streamed or not; searches of the Responses API are items of its answer."""
    price = {"input": 1.0, "output": 2.0, "cache_write": 1.25, "hour_cache_write": 2.0, "web_search": 10.0}
    counts: dict[str, Any] = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 100,
        "cache_creation": {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 60},
        "output_tokens": 5,
        "server_tool_use": {"web_search_requests": 3},
    }
    sites: dict[str, Any] = {
        "one": Site(message("hi", **counts), type="anthropic"),
        "two": Site(anthropic_stream(counts), type="anthropic"),
        "three": Site(chunked(RESPONSES["tools"]), type="responses"),
    }
    nanos = 10 * 1_000 + 40 * 1_250 + 60 * 2_000 + 5 * 2_000 + 3 * 10_000_000
    async with desk(tmp_path, prices={"*": price}, **sites) as at:
        for name in sites:
            for ask in (at.chat, at.message):
                for stream in (False, True):
                    assert (await ask(f"{name}/m", stream=stream)).status_code == 200
        rows = await at.rows(12)
        assert {round((row.cost or 0) * 1e9) for row in rows[:8]} == {nanos}
        searched = {round((row.cost or 0) * 1e9) for row in rows[8:]}
        assert len(searched) == 1
        assert 10_000_000 <= searched.pop() < 11_000_000


async def test_the_advice_of_another_model_is_counted_and_paid_at_its_own_price(tmp_path: Path) -> None:
    """At both endpoints, streamed or not; without a price for it, the cost is unknown."""
    advice: dict[str, Any] = {
        "type": "advisor_message",
        "model": "large",
        "input_tokens": 800,
        "output_tokens": 500,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
    }
    counts: dict[str, Any] = {"input_tokens": 10, "output_tokens": 5, "iterations": [advice]}
    sites: dict[str, Any] = {
        "one": Site(message("hi", **counts), type="anthropic"),
        "two": Site(anthropic_stream(counts), type="anthropic"),
    }
    prices = {"*/m": {"input": 1.0, "output": 2.0}, "one/large": {"input": 10.0, "output": 20.0}}
    async with desk(tmp_path, prices=prices, **sites) as at:
        for name in sites:
            for ask in (at.chat, at.message):
                for stream in (False, True):
                    assert (await ask(f"{name}/m", stream=stream)).status_code == 200
        rows = await at.rows(8)
        assert {(row.tokens.input_tokens, row.tokens.output_tokens) for row in rows} == {(810, 505)}
        nanos = 10 * 1_000 + 5 * 2_000 + 800 * 10_000 + 500 * 20_000
        assert {round((row.cost or 0) * 1e9) for row in rows[:4]} == {nanos}
        assert {row.cost for row in rows[4:]} == {None}


async def test_absent_counts_stay_absent_and_estimates_are_marked(tmp_path: Path) -> None:
    sites: dict[str, Any] = {
        "some": Site(completion(counts=usage(10, 5))),
        "none": Site(tokens("x" * 40)),
        "half": Site(completion(counts={"prompt_tokens": 7})),
    }
    async with desk(tmp_path, **sites) as at:
        for name in sites:
            assert (await at.chat(f"{name}/m", stream=name == "none")).status_code == 200
        some, none, half = await at.rows(3)
        assert some.tokens == Usage(10, 5, 15)
        assert half.tokens == Usage(input_tokens=7)
        assert half.cost is None
        assert (none.tokens.estimated, none.tokens.output_tokens) == (True, 10)
        assert none.tokens.reasoning_tokens is None


async def test_embeddings_have_rows(tmp_path: Path) -> None:
    body = {"object": "list", "data": [{"embedding": [0.1]}], "model": "e-1", "usage": {"prompt_tokens": 9}}
    prices = {"*": {"input": 100, "output": 0}}
    async with desk(tmp_path, up=Site(ok(msgspec.json.encode(body))), prices=prices) as at:
        response = await at.http.post("/v1/embeddings", json={"model": "up/e", "input": "hello"})
        assert response.status_code == 200, response.text
        assert response.json() == body
        row = await at.row()
        assert (row.door, row.model_served, row.tokens, row.cost) == (
            "embeddings",
            "e-1",
            Usage(input_tokens=9),
            0.0009,
        )
        assert response.headers["x-dragoman-cost"] == "0.0009"


async def test_failures_have_rows_without_counts(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(refusal(400, "bad"), refusal(500), b"garbage\r\n\r\n")) as at:
        for _ in range(3):
            response = await at.chat()
            assert response.is_error
            assert response.headers["x-dragoman-model"] == "up/m"
            assert response.headers["x-dragoman-request-id"]
        rows = await at.rows(3)
        assert [(row.status, row.error, row.upstream_status) for row in rows] == [
            ("failed", "bad_request", 400),
            ("failed", "api_error", 500),
            ("failed", "network", None),
        ]
        assert {row.tokens for row in rows} == {Usage()}
        assert {row.cost for row in rows} == {None}
        assert {(row.provider, row.model_served) for row in rows} == {("up", "m")}


async def test_who_left_has_a_row(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(holding(b""))) as at:
        task = asyncio.ensure_future(at.chat())
        await until(lambda: at.sites["up"].requests)
        task.cancel()
        await until(lambda: not at.hub.gateway.active)
        row = await at.row()
        assert (row.status, row.first_byte, row.tokens.output_tokens, row.tokens.estimated) == (
            "aborted",
            None,
            0,
            True,
        )  # the provider has the prompt


async def test_the_usage_chunk_is_the_hubs_own_business_unless_the_client_wants_it(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(tokens("ok", counts=usage(10, 5)))) as at:
        plain = await at.chat(stream=True)
        wanted = await at.chat(stream=True, stream_options={"include_usage": True})
        assert "prompt_tokens" not in plain.text
        assert '"prompt_tokens":10' in wanted.text
        assert [body["stream_options"] for body in at.sites["up"].bodies] == [{"include_usage": True}] * 2
        assert [row.tokens for row in await at.rows()] == [Usage(10, 5, 15)] * 2


async def test_what_a_server_says_of_tokens_unasked_is_not_hidden(tmp_path: Path) -> None:
    unknown = refusal(400, "Unrecognized request argument supplied: stream_options")
    async with desk(tmp_path, up=Site(unknown, tokens("ok", counts=usage(10, 5)))) as at:
        for _ in range(2):
            assert '"prompt_tokens":10' in (await at.chat(stream=True)).text
        assert ["stream_options" in body for body in at.sites["up"].bodies] == [True, False, False]


async def test_a_clients_request_id_is_kept(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion())) as at:
        body = {"model": "up/m", "messages": HI}
        for sent, stored in (("mine-1", True), ("a b\tc", False), ("x" * 500, False)):
            response = await at.http.post("/v1/chat/completions", json=body, headers={"x-request-id": sent})
            text = response.headers["x-dragoman-request-id"]
            assert (text == sent) is stored
            assert response.headers["x-request-id"] == text
            assert (await at.rows())[-1].request_id == text


# ---- the report ----------------------------------------------------------------------------------------


async def used(at: Desk) -> dict[str, dict[str, str]]:
    """Some usage of two owners, over both doors, one of it failed; the keys."""
    keys = {owner: await at.key(owner) for owner in ("ada", "bob")}
    for owner, times in (("ada", 3), ("bob", 1)):
        for _ in range(times):
            assert (await at.chat("one/a", keys[owner])).status_code == 200
    assert (await at.message("two/b", keys["bob"])).status_code == 200
    assert (await at.chat("gone/c", keys["bob"])).status_code == 500
    keys["boss"] = await at.key("boss", scopes=["admin"])
    return keys


def sites() -> dict[str, Any]:
    return {
        "one": Site(completion(counts=usage(1000, 100))),
        "two": Site(message(input_tokens=10, output_tokens=5), type="anthropic"),
        "gone": Site(refusal(500)),
    }


async def test_usage_is_summed_up_for_those_who_may_see_it(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, **sites()) as at:
        keys = await used(at)

        async def sums(query: str, who: str = "boss") -> dict[tuple[str, ...], tuple[Any, ...]]:
            answer = await at.http.get(f"/api/usage?{query}", headers=keys[who])
            assert answer.status_code == 200, answer.text
            return {
                tuple(row["group"].values()): (row["calls"], row["failed"], row["cost"])
                for row in answer.json()["rows"]
            }

        assert await sums("group_by=owner") == {
            ("ada",): (3, 0, pytest.approx(0.0036)),
            ("bob",): (3, 1, pytest.approx(0.00122)),
        }
        assert await sums("group_by=provider,door&owner=bob") == {
            ("one", "openai"): (1, 0, 0.0012),
            ("two", "anthropic"): (1, 0, 0.00002),
            ("gone", "openai"): (1, 1, None),
        }
        assert await sums("group_by=owner", "ada") == {("ada",): (3, 0, pytest.approx(0.0036))}
        refused = await at.http.get("/api/usage?owner=bob", headers=keys["ada"])
        assert refused.status_code == 403


async def test_the_export_and_the_command_tell_the_same_as_the_rows(
    tmp_path: Path,
) -> None:
    placedsites = sites()
    async with placed(*placedsites.values()), served(tmp_path, configured(placedsites), keys=True) as at:
        keys = await used(at)
        answer = await at.http.get("/api/usage?format=csv", headers=keys["boss"])
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        table = list(csv.DictReader(io.StringIO(answer.text)))
        rows = await at.rows(6)
        assert [(line["request_id"], line["owner"], line["status"], line["door"]) for line in table] == [
            (row.request_id, row.owner, row.status, row.door) for row in rows
        ]
        assert [line["cost"] for line in table] == ["" if row.cost is None else str(row.cost) for row in rows]
        assert [line["input_tokens"] for line in table] == ["1000"] * 4 + ["10", ""]
    command = ("usage", "--data", tmp_path, "--by", "owner", "--csv")
    reply = await asyncio.to_thread(run, *command, env=database_variables(tmp_path))
    assert reply.code == 0, reply.err
    summed = {line["owner"]: line for line in csv.DictReader(io.StringIO(reply.out))}
    assert {owner: (line["calls"], line["failed"]) for owner, line in summed.items()} == {
        "ada": ("3", "0"),
        "bob": ("3", "1"),
    }
    assert float(summed["ada"]["cost"]) == pytest.approx(0.0036)


@pytest.mark.parametrize("concurrent", [False, True], ids=["one by one", "at once"])
async def test_a_request_leaves_nothing_for_the_garbage_collector(
    tmp_path: Path, *, concurrent: bool
) -> None:
    """A leak is there in every round, so one without it is enough.

    What else the hub does meanwhile may leave objects: its first poll for approvals builds SQLAlchemy
    statements, once, and on Postgres the queue of the hosts does at each look.
    """
    rounds, requests = 12, 10
    async with desk(tmp_path, up=Site(*[completion()] * ((1 + rounds) * requests))) as at:

        async def serve() -> None:
            size = requests if concurrent else 1
            for _ in range(0, requests, size):
                for response in await asyncio.gather(*(at.chat() for _ in range(size))):
                    assert response.status_code == 200

        await serve()
        gc.disable()
        try:
            left = []
            for _ in range(rounds):
                gc.collect()
                await serve()
                left.append(gc.collect())
                if not left[-1]:
                    break
            assert left[-1] == 0, "reference cycles cost the gateway a fifth of its throughput"
        finally:
            gc.enable()
