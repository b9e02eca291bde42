"""Model calls of runs have usage records, limits and budgets as gateway requests have."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman.events import Usage
from dragoman.session_ids import hub_session_id
from dragoman.usage_limits import Limits
from tests.waiting import poll, until
from tests.wire.openai_streams import chunk, sse

from .metered_hub import PRICE, Desk, Site, chunked, desk, holding, refusal, tokens, usage

LAST = {"model": "m-1", "choices": [], "usage": usage(100, 20)}


def calling() -> bytes:
    """The model calls an operation."""
    call = {"id": "call_1", "type": "function", "function": {"name": "time_now", "arguments": "{}"}}
    reply = chunk({"role": "assistant", "tool_calls": [{"index": 0, **call}]})
    return chunked(sse(reply, chunk(finish="tool_calls"), LAST))


def error_of(frames: list[dict[str, Any]]) -> str:
    return "".join(frame["errorText"] for frame in frames if frame["type"] == "error")


async def test_each_model_call_of_a_run_is_one_row(tmp_path: Path) -> None:
    up = Site(calling(), tokens("noon", counts=usage(130, 5)))
    async with desk(
        tmp_path, keys=True, up=up, aliases={"fast": "up/m"}, model="fast", pinned=["time.now"]
    ) as at:
        key = await at.key("ada")
        frames = await at.run("what time is it?", key)
        assert frames[-1]["type"] == "finish"
        [api_key] = await at.hub.store.keys.list()
        first, second = await at.rows(2)
        for row in (first, second):
            assert (row.owner, row.key_id, row.door, row.status) == ("ada", api_key.id, "chat", "finished")
            assert (row.provider, row.model_asked, row.model_served) == ("up", "fast", "m-1")
            assert (row.session_id, row.error) == (hub_session_id("s", owner="ada"), None)
            assert row.run_id is not None
            assert row.first_byte is not None
            assert row.duration is not None
            assert row.first_byte <= row.duration
        assert [(row.step, row.finish_reason) for row in (first, second)] == [(1, "tool-calls"), (2, "stop")]
        assert [(row.tokens.input_tokens, row.tokens.output_tokens) for row in (first, second)] == [
            (100, 20),
            (130, 5),
        ]
        assert [row.cost for row in (first, second)] == [140e-6, 140e-6]
        assert first.run_id == second.run_id


async def test_a_request_that_is_shortened_and_asked_again_is_one_step(tmp_path: Path) -> None:
    up = Site(tokens("hello"), refusal(400, "maximum context length is 10 tokens"), calling(), tokens("noon"))
    agents = {"default": {"context": {"policy": "truncate", "limit": 32_000}}}
    config: dict[str, Any] = {"model": "up/m", "pinned": ["time.now"], "agents": agents}
    async with desk(tmp_path, up=up, **config) as at:
        for text in ("hi", "what time is it?"):
            frames = await at.run(text)
            assert frames[-1]["finishReason"] == "stop"
        rows = [(row.step, row.status) for row in await at.rows(4)]
        assert rows == [(1, "finished"), (1, "failed"), (1, "finished"), (2, "finished")]


async def test_the_price_is_that_of_the_model_that_was_asked_whatever_the_server_calls_it(
    tmp_path: Path,
) -> None:
    up = Site(tokens("ok", counts=usage(1000, 0)))
    prices = {"up/dear": {"input": 50, "output": 50}, "m-1": {"input": 1, "output": 1}}
    async with desk(tmp_path, up=up, model="up/dear", prices=prices) as at:
        await at.run("hi")
        row = await at.row()
        assert (row.model_served, row.cost, row.price_model) == ("m-1", 0.05, "up/dear")


async def test_a_fallback_is_paid_at_its_own_price(tmp_path: Path) -> None:
    prices = {"one/*": {"input": 50, "output": 50}, "two/*": {"input": 1, "output": 1}}
    second = Site(tokens("ok", counts=usage(1000, 0)))
    async with desk(
        tmp_path, one=Site(refusal(503)), two=second, model="one/a", fallbacks={"*": ["two/b"]}, prices=prices
    ) as at:
        await at.run("hi")
        row = await at.row()
        assert (row.provider, row.status, row.cost, row.price_model) == ("two", "finished", 0.001, "two/*")


async def test_a_call_that_failed_is_written_down_and_costs_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(refusal(500, "boom")), model="up/m") as at:
        assert "boom" in error_of(await at.run("hi"))
        row = await at.row()
        assert (row.status, row.error, row.upstream_status, row.cost) == ("failed", "api_error", 500, None)
        assert (row.tokens.input_tokens, row.tokens.output_tokens, row.first_byte) == (None, None, None)


async def test_an_answer_that_broke_off_is_estimated(tmp_path: Path) -> None:
    cut = tokens("x" * 400, over=False) + b"0\r\n\r\n"
    async with desk(tmp_path, up=Site(cut), model="up/m") as at:
        await at.run("hi")
        row = await at.row()
        assert (row.status, row.error, row.tokens.estimated, row.tokens.output_tokens) == (
            "failed",
            "network",
            True,
            100,
        )
        assert row.cost is not None


async def test_a_run_that_is_stopped_is_estimated_as_aborted(tmp_path: Path) -> None:
    up = Site(holding(tokens("x" * 400, over=False)))
    async with desk(tmp_path, up=up, model="up/m") as at:
        running = asyncio.ensure_future(at.run("hi"))
        await until(lambda: up.requests)
        await poll(lambda: collect(at))
        assert (await at.http.post("/api/chat/s/stop")).status_code == 200
        await running
        row = await at.row()
        assert (row.status, row.tokens.estimated, row.tokens.output_tokens) == ("aborted", True, 100)


async def collect(at: Desk) -> bool:
    """Whether something of the answer has been stored."""
    found = await at.http.get("/api/sessions/s/messages")
    return found.status_code == 200 and "xxx" in found.text


async def test_a_run_that_asks_too_often_fails_with_the_limit(tmp_path: Path) -> None:
    up = Site(tokens("ok", counts=usage(10, 5)))
    async with desk(tmp_path, keys=True, up=up, model="up/m") as at:
        key = await at.key(limits=Limits(requests_per_minute=1))
        assert error_of(await at.run("one", key)) == ""
        text = error_of(await at.run("two", key))
        assert "is limited to 1 requests a minute" in text
        assert len(up.requests) == 1
        assert (await at.chat(key=key)).status_code == 429  # it is the same limit
        await at.rows(1)


async def test_a_run_is_not_begun_on_a_spent_budget(tmp_path: Path) -> None:
    up = Site(tokens("ok", counts=usage(1000, 0)))
    limits = {"owners": {"ada": {"usd_total": 0.0015}}}
    async with desk(tmp_path, keys=True, up=up, model="up/m", limits=limits) as at:
        key = await at.key("ada")
        options: dict[str, Any] = {}
        assert error_of(await at.run("one", key, **options)) != ""  # up to 1024 tokens of answer are reserved
        up.replies(tokens("ok", counts=usage(1000, 0)))
        spent, reserved = await at.hub.store.budgets.get_balance("owner:ada", "total")
        assert (spent, reserved, up.requests) == (0, 0, [])


async def test_runs_and_requests_spend_the_same_budget(tmp_path: Path) -> None:
    up = Site(tokens("ok", counts=usage(1000, 0)))
    agents = {"default": {"model": "up/m", "options": {"max_tokens": 10}}}
    limits = {"owner": {"usd_per_day": 0.0021}}
    async with desk(tmp_path, keys=True, up=up, agents=agents, limits=limits, prices={"*": PRICE}) as at:
        key = await at.key("ada")
        assert error_of(await at.run("one", key)) == ""
        assert (await at.chat("up/m", key, stream=True, max_tokens=10)).status_code == 200
        assert "may spend $0.0021 this day" in error_of(await at.run("two", key))
        assert (await at.chat("up/m", key, stream=True, max_tokens=500)).status_code == 429
        assert [row.door for row in await at.rows()] == ["chat", "openai"]


@pytest.mark.parametrize("reply", [tokens("ok"), tokens("ok", counts={})])
async def test_the_usage_of_a_server_that_counts_nothing_is_estimated(tmp_path: Path, reply: bytes) -> None:
    async with desk(tmp_path, up=Site(reply), model="up/m") as at:
        await at.run("hi")
        row = await at.row()
        prompt = row.tokens.input_tokens or 0
        assert row.tokens == Usage(prompt, 1, prompt + 1, estimated=True)
        assert prompt > 0
        assert row.status == "finished"
        assert row.cost == pytest.approx((prompt + 2) / 1e6)
