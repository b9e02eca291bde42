"""What a provider has done is paid for once, even if its answer came to nothing; what it refused is free."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import Agent, OpenAIProvider, PriceOverride
from dragoman.events import Usage
from dragoman.providers.retry import RetryPolicy
from dragoman.usage_limits import Limits
from tests.providers.servers import Peer, Received, ok
from tests.waiting import until
from tests.wire.anthropic_streams import OVERLOADED, start, text
from tests.wire.anthropic_streams import sse as anthropic_sse
from tests.wire.openai_streams import chunk as openai_chunk
from tests.wire.openai_streams import sse as openai_sse

from .metered_hub import Desk, Reply, Site, chunked, completion, desk, message, refusal, tokens, usage

LATER = refusal(429, "slow down", "retry-after: 30")
RICH = Limits(usd_total=1.0)


async def spent(at: Desk) -> tuple[int, int]:
    """The nano-dollars that the only key has spent and reserved."""
    await at.rows()
    (key,) = await at.hub.store.keys.list()
    return await at.hub.store.budgets.get_balance(f"key:{key.id}", "total")


async def cut_off(peer: Peer, _: Received) -> None:
    """Says 40 characters, and ends the connection."""
    await peer.send(tokens("eight ch" * 5, over=False))
    peer.writer.close()


class Endless:
    """Says more than a document may have, and waits until the hub has gone."""

    def __init__(self) -> None:
        self.left = 0

    async def __call__(self, peer: Peer, _: Received) -> None:
        await peer.send(tokens("eight ch" * 2_000, over=False))
        await peer.gone()
        self.left += 1


async def test_a_request_that_is_given_up_while_it_waits_for_a_retry_is_free(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(LATER, retries=3)) as at:
        key = await at.key(limits=RICH, scopes=["admin", "gateway"])
        asking = asyncio.create_task(at.chat("up/m", key))

        async def is_refused() -> bool:
            metrics = await at.http.get("/metrics", headers=key)
            return "dragoman_provider_errors_total{" in metrics.text

        await until(is_refused)
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: not at.hub.gateway.active)
        row = await at.row()
        assert (row.status, row.tokens, row.cost) == ("aborted", Usage(), None)
        assert await spent(at) == (0, 0)


async def test_a_run_that_is_stopped_while_it_waits_for_a_retry_is_free(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(LATER)) as at:
        url: Any = at.sites["up"].provider["base_url"]
        async with OpenAIProvider(base_url=url, api_key="sk-1", retries=0) as provider:
            failed = asyncio.Event()
            provider.on_failure = lambda *_: failed.set()
            prices = {"*": PriceOverride(input=1, output=2)}
            run = Agent(provider.model("m"), prices=prices, retries=RetryPolicy(3)).spawn("hi")
            await failed.wait()
            await asyncio.sleep(0)
            run.abort()
            result = await run.result
    assert (result.exit_reason, result.usage.input_tokens, result.cost) == ("aborted", None, None)


@pytest.mark.parametrize("first", [cut_off, Endless()], ids=["cut off", "too long"])
async def test_a_half_answer_that_another_provider_replaces_is_paid_and_closed(
    tmp_path: Path, first: Reply
) -> None:
    second = Site(tokens("ok", counts=usage(10, 5)))
    limits = {"document": 10_000}
    async with desk(
        tmp_path, keys=True, one=Site(first), two=second, aliases={"a": ["one/m", "two/m"]}, limits=limits
    ) as at:
        reply = await at.message("a", await at.key(limits=RICH))
        assert (reply.status_code, reply.json()["content"][0]["text"]) == (200, "ok")
        failed, finished = await at.rows(2)
        assert (failed.provider, failed.status, failed.tokens.estimated) == ("one", "failed", True)
        assert (failed.tokens.output_tokens or 0) >= 10
        assert (finished.provider, finished.status, finished.tokens) == ("two", "finished", Usage(10, 5, 15))
        assert (failed.cost or 0) > 0
        assert await spent(at) == (round(((failed.cost or 0) + (finished.cost or 0)) * 1e9), 0)
        if isinstance(first, Endless):
            await until(partial(getattr, first, "left"))


ESSAY = "eight ch" * 50
ENDINGS = ["length", "chunks", "clean"]


def cut_document(family: str, ending: str) -> bytes:
    """A document with half of its text, whose connection ends too early or as if it were whole."""
    whole = completion(ESSAY) if family == "openai" else message(ESSAY)
    body = whole.partition(b"\r\n\r\n")[2]
    half = body[: body.find(ESSAY.encode()) + len(ESSAY) // 2]
    if ending == "length":
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n"
        return head + half
    return chunked(half, over=ending == "clean")


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("family", ["openai", "anthropic"])
async def test_a_document_that_is_cut_off_is_paid_as_far_as_it_came(
    tmp_path: Path, family: str, ending: str
) -> None:
    """At the endpoint of its own family, where it is relayed, and at the other, streamed or not."""

    async def say(peer: Peer, _: Received) -> None:
        await peer.send(cut_document(family, ending))
        peer.writer.close()

    async with desk(tmp_path, keys=True, up=Site(say, type=family)) as at:
        key = await at.key(limits=RICH)
        for ask in (at.chat, at.message):
            for stream in (False, True):
                assert (await ask("up/m", key, stream=stream)).status_code == 502
        rows = await at.rows(4)
        assert {(row.status, row.tokens.estimated) for row in rows} == {("failed", True)}
        assert {row.tokens.output_tokens for row in rows} == {50}  # 200 characters
        assert all(row.tokens.input_tokens and row.cost for row in rows)
        assert await spent(at) == (round(sum(row.cost or 0 for row in rows) * 1e9), 0)


BROKEN_STREAMS: Sequence[tuple[str, bytes]] = [
    ("openai", openai_sse(openai_chunk({"content": ESSAY}), {"error": {"message": "overheated"}})),
    ("anthropic", anthropic_sse(start(), *text(0, ESSAY), OVERLOADED)),
]


@pytest.mark.parametrize(("family", "stream"), BROKEN_STREAMS)
async def test_a_stream_that_fails_is_paid_also_where_a_document_was_wanted(
    tmp_path: Path, family: str, stream: bytes
) -> None:
    async with desk(tmp_path, keys=True, up=Site(chunked(stream), type=family)) as at:
        key = await at.key(limits=RICH)
        for ask in (at.chat, at.message):
            assert (await ask("up/m", key)).status_code in (502, 529)
        rows = await at.rows(2)
        assert {(row.tokens.output_tokens, row.tokens.estimated) for row in rows} == {(100, True)}


async def test_an_answer_that_its_provider_gave_up_costs_what_it_reports(tmp_path: Path) -> None:
    finish = openai_chunk(finish="insufficient_system_resource", usage=usage(10, 5))
    stream = chunked(openai_sse(openai_chunk({"content": ESSAY}), finish))
    async with desk(tmp_path, keys=True, up=Site(stream)) as at:
        assert (await at.message("up/m", await at.key(limits=RICH))).status_code == 502
        row = await at.row()
        assert (row.status, row.tokens) == ("failed", Usage(10, 5, 15))


async def test_a_fallback_is_asked_only_if_the_budget_can_pay_for_it(tmp_path: Path) -> None:
    prices = {"cheap/*": {"input": 0.001, "output": 0.001}, "dear/*": {"input": 1.0, "output": 1000.0}}
    cheap, dear = Site(refusal(500)), Site(completion())
    async with desk(
        tmp_path, keys=True, cheap=cheap, dear=dear, prices=prices, aliases={"a": ["cheap/m", "dear/m"]}
    ) as at:
        key = await at.key(limits=Limits(usd_total=0.05))
        refused = await at.chat("a", key, max_tokens=100)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
        assert (len(cheap.requests), len(dear.requests)) == (1, 0)
        assert await spent(at) == (0, 0)
        answered = await at.chat("a", key, max_tokens=10)
        assert (answered.status_code, len(dear.requests)) == (200, 1)
        assert await spent(at) == (10 * 1000 + 5 * 1_000_000, 0)


def lines(*chunks: dict[str, Any]) -> bytes:
    return ok(b"\n".join(map(msgspec.json.encode, chunks)) + b"\n", "content-type: application/x-ndjson")


SAID = {"model": "m", "message": {"role": "assistant", "content": "eight ch"}, "done": False}
LAST = {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}
ODD_COUNTS: Sequence[tuple[str, bytes]] = [
    ("ollama", lines(SAID, {**LAST, "prompt_eval_count": 10, "eval_count": -1_000_000})),
    ("ollama", lines(SAID, {**LAST, "prompt_eval_count": -10, "eval_count": -5})),
    ("openai", completion(counts={**usage(10, 5), "completion_tokens_details": {"reasoning_tokens": -4}})),
    ("openai", completion(counts=usage(-10, 15))),
    ("openai", tokens("eight ch", counts=usage(10, -5))),
    ("openai", tokens("eight ch", counts={**usage(10, 5), "prompt_tokens_details": {"cached_tokens": -9}})),
]


@pytest.mark.parametrize(("family", "reply"), ODD_COUNTS)
async def test_counts_below_zero_give_nobody_money(tmp_path: Path, family: str, reply: bytes) -> None:
    async with desk(tmp_path, keys=True, up=Site(reply, type=family)) as at:
        response = await at.chat("up/m", await at.key(limits=RICH), stream=reply.find(b"data:") > 0)
        assert response.status_code == 200
        row = await at.row()
        counts = msgspec.structs.astuple(row.tokens)
        assert all(count is None or count >= 0 for count in counts), row.tokens
        assert (await spent(at))[0] > 0
