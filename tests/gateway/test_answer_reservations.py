"""How much of a budget is reserved for an answer: before it begins, and while it grows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.usage_limits import Limits
from tests.providers.servers import Peer, Received, chunk
from tests.waiting import until
from tests.wire import openai_streams

from .metered_hub import Site, completion, desk, tokens, usage
from .test_budgets import DOLLAR, standing, standing_now

LONG = "word " * 800  # 4,000 characters: a thousand tokens by estimate
OUTPUT_PRICE = {"*": {"input": 0, "output": 10.0}}  # a cent for a thousand tokens
PACKET = int(0.2 * DOLLAR)  # more than what the hub reads of one answer at a time costs


def endless(count: int) -> Site:
    """A server that answers once it has so many requests, each with a million tokens."""

    async def reply(peer: Peer, _: Received) -> None:
        await until(lambda: len(site.requests) >= count)
        await peer.send(tokens("", over=False))
        piece = chunk(openai_streams.sse(openai_streams.chunk({"content": LONG}), done=False))
        with suppress(ConnectionError):
            for _number in range(1_000):
                await peer.send(piece)

    site = Site(reply)
    return site


async def test_streams_without_a_limit_end_when_the_budget_of_their_key_has_no_room_for_more(
    tmp_path: Path,
) -> None:
    """Ten at once, of ten dollars each, cost what the budget has."""
    async with desk(tmp_path, keys=True, up=endless(10), prices=OUTPUT_PRICE) as at:
        key = await at.key(limits=Limits(usd_total=4.0))
        answers = await asyncio.gather(*(at.chat(key=key, stream=True) for _ in range(10)))
        assert [answer.status_code for answer in answers] == [200] * 10
        assert all('"insufficient_quota"' in answer.text for answer in answers)
        spent, reserved = await standing(at)
        assert reserved == 0
        assert spent <= 4 * DOLLAR + 10 * PACKET
        assert {row.status for row in await at.rows(10)} == {"aborted"}


async def test_an_answer_of_an_agent_ends_when_the_budget_of_its_owner_has_no_room_for_more(
    tmp_path: Path,
) -> None:
    limits = {"owner": {"usd_per_day": 1}}
    async with desk(
        tmp_path, keys=True, up=endless(1), prices=OUTPUT_PRICE, model="up/m", limits=limits
    ) as at:
        frames = await at.run("hi", await at.key())
        notice = [frame["delta"] for frame in frames if frame.get("id") == "notice" and "delta" in frame]
        assert "may spend $1.00 this day" in "".join(notice)
        assert "longer than what is left" in "".join(notice)
        row = await at.row()
        assert row.status == "aborted"
        assert row.cost is not None
        assert 0.9 < row.cost < 1.2


async def test_documents_without_a_limit_share_what_a_budget_has_left(tmp_path: Path) -> None:
    """Each costs a dime, and has no limit: 35 cents have room for one and a part of another."""

    async def answer(peer: Peer, _: Received) -> None:
        await until(lambda: len(refused) + len(up.requests) >= 20)
        await peer.send(completion(counts=usage(1, 10_000)))

    async def ask() -> int:
        response = await at.chat(key=key)
        if response.status_code == 429:
            refused.append(response.json()["error"]["message"])
        return response.status_code

    refused: list[str] = []
    up = Site(answer)
    async with desk(tmp_path, keys=True, up=up, prices=OUTPUT_PRICE) as at:
        key = await at.key(limits=Limits(usd_total=0.35))
        found = Counter(await asyncio.gather(*(ask() for _ in range(20))))
        assert found == {200: 2, 429: 18}
        assert all("reserved by active requests" in message for message in refused)
        assert await standing(at) == (200_000_000, 0)
        assert [await ask() for _ in range(3)] == [200, 200, 429]  # one after the other, to the end
        assert await standing(at) == (400_000_000, 0)


OUTPUT_LIMITS: Sequence[tuple[Mapping[str, Any], Mapping[str, Any], int]] = [  # fields, options, tokens
    ({"max_tokens": 50}, {}, 50),
    ({"max_completion_tokens": 50, "max_tokens": 7_000}, {}, 7_000),  # the server may know either
    ({"max_tokens": 50, "max_completion_tokens": 7_000}, {}, 7_000),
    ({"max_tokens": "7000"}, {}, 7_000),  # as servers read them that are not strict
    ({"max_tokens": 7_000.0}, {}, 7_000),
    ({"max_tokens": 50, "n": "20"}, {}, 1_000),
    ({"max_tokens": 50, "n": 20.0}, {}, 1_000),
    ({"n": 10}, {}, 10 * 1_024),
    ({}, {}, 32_768),  # of a document, if there is room
    ({}, {"max_tokens": 7_000}, 7_000),
    ({"max_tokens": 50}, {"max_tokens": 7_000}, 50),
    ({"max_tokens": None}, {"max_tokens": 50}, 32_768),  # null is sent, and means no limit
    ({"max_tokens": "much"}, {}, 32_768),
    ({"max_tokens": True}, {}, 32_768),
]


@pytest.mark.parametrize(("fields", "options", "most"), OUTPUT_LIMITS)
async def test_the_longest_answer_that_a_server_may_read_in_a_request_is_reserved(
    tmp_path: Path, fields: Mapping[str, Any], options: Mapping[str, Any], most: int
) -> None:
    balances: list[tuple[int, int]] = []

    async def answer(peer: Peer, _: Received) -> None:
        balances.append(await standing_now(at))
        await peer.send(completion())

    async with desk(tmp_path, keys=True, up=Site(answer, options=options), prices=OUTPUT_PRICE) as at:
        key = await at.key(limits=Limits(usd_total=1.0))
        assert (await at.chat(key=key, **fields)).status_code == 200
        assert balances == [(0, most * 10_000)]
