"""A client disconnects: the provider's connection closes and the consumed usage is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from dragoman.events import Usage
from dragoman.providers.relayed_response import RelayedResponse
from dragoman.server.gateway import answer
from dragoman.usage_record import UsageRecord
from tests.faults.gateway_upstream import (
    END,
    MAIN,
    OPENAI,
    TEXT,
    WAYS,
    Baseline,
    Client,
    Watch,
    Way,
    ask,
    begun,
    house,
    median,
)
from tests.providers.servers import CHUNKED, Peer, Script, chunk
from tests.waiting import LIMIT

AT_ONCE = 0.1  # seconds
TIMES = 3
PIECES = 100

Wait = Callable[[Client], Awaitable[object]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def leave_again(
    folder: Path, way: Way, watch: Watch, script: Script, *, stream: bool, wait: Wait
) -> Sequence[UsageRecord]:
    """Ask, wait and leave, three times: in the median the provider is let go within 100 ms. The rows."""
    async with house(folder, way.family, script, prices={"m": {"input": 1, "output": 1}}) as it:
        baseline = Baseline.now()

        async def measure() -> float:
            client = await Client.ask(it.url, way.path, ask(stream=stream))
            await watch.requests.get()
            await wait(client)
            return await watch.delay(client.leave())

        assert await median(measure, TIMES) < AT_ONCE
        await baseline.back()
        assert it.hub.gateway.active == 0
        return await it.rows(TIMES)


async def at_once(_: Client) -> None:
    """The provider was asked, and has not said anything."""


async def hear_all(client: Client) -> None:
    """All that the provider has said so far."""
    await client.until(TEXT.encode(), PIECES)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_client_that_leaves_before_the_first_byte_ends_its_request_at_the_provider(
    tmp_path: Path, way: Way, stream: bool
) -> None:
    watch = Watch()
    rows = await leave_again(tmp_path, way, watch, watch.then(), stream=stream, wait=at_once)
    for row in rows:
        assert (row.status, row.door, row.provider) == ("aborted", way.door, "up")
        assert (row.first_byte, row.finish_reason, row.error) == (None, None, None)
        assert (row.tokens.estimated, row.tokens.output_tokens) == (True, 0)
        assert (row.cost or 0) > 0


@pytest.mark.promise("who-leaves-ends-the-request")
@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_client_that_leaves_in_the_stream_ends_it_at_the_provider_and_pays_what_was_said(
    tmp_path: Path, way: Way
) -> None:
    watch = Watch()
    script = watch.then(begun(way.speech.opening + way.speech.text * PIECES))
    rows = await leave_again(tmp_path, way, watch, script, stream=True, wait=hear_all)
    for row in rows:
        assert (row.status, row.finish_reason, row.error) == ("aborted", None, None)
        assert (row.tokens.estimated, row.tokens.output_tokens) == (True, PIECES * len(TEXT) // 4)
        assert (row.tokens.input_tokens or 0) > 0
        assert row.first_byte is not None
        assert (row.cost or 0) > 0


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_client_that_leaves_before_its_whole_answer_is_there_ends_it_at_the_provider(
    tmp_path: Path, way: Way
) -> None:
    """What a provider of another family has said meanwhile is known, and paid."""
    watch = Watch()
    half = way.speech.whole[:40] if way.relayed else way.speech.opening + way.speech.text * PIECES
    rows = await leave_again(tmp_path, way, watch, watch.then(begun(half)), stream=False, wait=at_once)
    for row in rows:
        assert (row.status, row.finish_reason, row.error) == ("aborted", None, None)
        assert row.tokens.estimated
        assert (row.tokens.input_tokens or 0) > 0


@pytest.mark.parametrize("way", [way for way in MAIN if way.relayed], ids=str)
async def test_counts_of_the_provider_are_kept_when_a_client_leaves_and_only_the_rest_is_estimated(
    tmp_path: Path, way: Way
) -> None:
    """Anthropic counts the prompt at the beginning, some servers count with every chunk."""
    watch = Watch()
    counted = way.speech.usage if way.family == "openai" else b""
    script = watch.then(begun(way.speech.opening + counted + way.speech.text * PIECES))
    rows = await leave_again(tmp_path, way, watch, script, stream=True, wait=hear_all)
    for row in rows:
        output = 3 if way.family == "openai" else PIECES * len(TEXT) // 4
        assert row.tokens == Usage(7, output, 7 + output, estimated=way.family == "anthropic")


async def test_usage_behind_the_finish_is_waited_for_when_the_client_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of the other door hears of the finish only with the usage, and cannot leave between them."""
    way, left = Way("openai", "openai"), asyncio.Event()

    async def rest(relay: RelayedResponse, seconds: float) -> bytes:
        left.set()
        return await resting(relay, max(seconds, LIMIT))  # to the end, however slow the machine is

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + chunk(OPENAI.opening + OPENAI.text + OPENAI.finish))
        await left.wait()
        await peer.send(chunk(OPENAI.usage + OPENAI.ending) + END)
        await peer.gone()

    resting = RelayedResponse.read_for
    monkeypatch.setattr(RelayedResponse, "read_for", rest)
    async with house(tmp_path, way.family, script) as it:
        client = await Client.ask(it.url, way.path, ask(stream=True))
        await client.until(b'"stop"')
        client.leave()
        row = await it.row()
        assert (row.status, row.finish_reason) == ("aborted", "stop")
        assert row.tokens == Usage(7, 3, 10)


@pytest.mark.parametrize("door", ["openai", "anthropic"])
async def test_usage_that_does_not_come_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    assert answer.USAGE_WAIT < AT_ONCE
    monkeypatch.setattr(answer, "USAGE_WAIT", 0.01)  # seconds, so that what is measured is all else
    way, watch = Way(door, "openai"), Watch()
    script = watch.then(begun(OPENAI.opening + OPENAI.text * PIECES + OPENAI.finish))
    rows = await leave_again(tmp_path, way, watch, script, stream=True, wait=hear_all)
    assert [row.tokens.output_tokens for row in rows] == [PIECES * len(TEXT) // 4] * TIMES
    assert all(row.tokens.estimated for row in rows)


async def test_a_client_that_leaves_a_count_of_tokens_ends_it_at_the_provider(tmp_path: Path) -> None:
    watch = Watch()
    async with house(tmp_path, "anthropic", watch.then()) as it:
        baseline = Baseline.now()

        async def measure() -> float:
            client = await Client.ask(it.url, "/v1/messages/count_tokens", ask(stream=False))
            await watch.requests.get()
            return await watch.delay(client.leave())

        assert await median(measure, TIMES) < AT_ONCE
        await baseline.back()
