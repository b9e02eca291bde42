"""Retries happen before the first byte has reached the client and never after it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from dragoman.providers.retry import RetryPolicy
from dragoman.server.app import Hub, providers
from tests.faults.gateway_faults import BUSY, EARLY, LATE, RESET, Fault, Steps, failed, play, speech_at
from tests.faults.gateway_upstream import (
    DEADLINE,
    MAIN,
    Speech,
    Way,
    ask,
    complete,
    data,
    house,
    named,
    opened,
    provider,
    rows_of,
)
from tests.providers.servers import Peer, Received, Script, ok, serving

FIRST_BYTE, IDLE = {"first_byte_timeout": 0.25}, {"idle_timeout": 0.25}
OVERLOADED: Mapping[str, bytes] = {
    "openai": data(error={"message": "we are overloaded", "type": "server_error", "code": 503}),
    "anthropic": named(type="error", error={"type": "overloaded_error", "message": "Overloaded"}),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further attempts follow at once."""
    monkeypatch.setattr(providers, "RetryPolicy", partial(RetryPolicy, base=0.0))


def answer(speech: Speech, *, stream: bool) -> bytes:
    """A good answer."""
    return complete(speech.stream) if stream else ok(speech.whole)


class Moody:
    """A server with a plan: what it does with each request, by the number of the attempt; then it is good."""

    def __init__(self, plan: Callable[[Speech, Received], list[Steps]]) -> None:
        self._plan = plan
        self.requests: Counter[str] = Counter()
        self.keys: list[str] = []

    async def script(self, peer: Peer) -> None:
        """See `Script`. One request a connection."""
        received = await peer.request()
        self.keys.append((received["authorization"] or received["x-api-key"]).removeprefix("Bearer "))
        body: dict[str, Any] = msgspec.json.decode(received.body)
        speech, number = speech_at(received.line), self.requests[body["model"]]
        self.requests[body["model"]] += 1
        plan = self._plan(speech, received)
        good = [answer(speech, stream=bool(body.get("stream")))]
        await play(peer, plan[number] if number < len(plan) else good)


@pytest.mark.parametrize("way", MAIN, ids=str)
async def test_an_overloaded_provider_is_asked_again_also_when_it_says_so_in_its_first_event(
    tmp_path: Path, way: Way
) -> None:
    moody = Moody(lambda speech, _: [[complete(OVERLOADED[speech.family])]] * 2)
    async with house(tmp_path, way.family, moody.script, retries=2) as it:
        response = await it.post(way, stream=True)
        assert (response.status_code, moody.requests) == (200, {"m": 3})
        assert "verloaded" not in response.text
        row = await it.row()
        assert (row.status, row.tokens.output_tokens) == ("finished", 3)


@pytest.mark.parametrize("way", MAIN, ids=str)
async def test_an_overload_that_stays_is_reported_as_one(tmp_path: Path, way: Way) -> None:
    moody = Moody(lambda speech, _: [[complete(OVERLOADED[speech.family])]] * 9)
    async with house(tmp_path, way.family, moody.script, retries=1) as it:
        response = await it.post(way, stream=True)
        assert moody.requests == {"m": 2}
        assert response.status_code in (503, 529)
        assert "verloaded" in response.json()["error"]["message"]
        assert (await it.row()).error == "overloaded"


TRANSIENT: Mapping[str, Steps] = {
    "reset": [RESET],
    "closed": [],
    "500": [failed(500, BUSY)],
    "503": [failed(503, BUSY)],
    "429": [failed(429, BUSY)],
}


@pytest.mark.parametrize("way", MAIN, ids=str)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_failure_that_may_pass_is_tried_again(tmp_path: Path, way: Way, stream: bool) -> None:
    moody = Moody(lambda _, __: list(TRANSIENT.values()))
    many = len(TRANSIENT)
    async with house(tmp_path, way.family, moody.script, retries=many) as it:
        response = await it.post(way, stream=stream)
        assert (response.status_code, moody.requests) == (200, {"m": many + 1})
        assert (await it.row()).status == "finished"


@asynccontextmanager
async def two(folder: Path, way: Way, script: Script, **more: Any) -> AsyncIterator[tuple[Any, Hub, Moody]]:
    """A hub with this provider and, behind it, a good one of the other family."""
    other = "anthropic" if way.family == "openai" else "openai"
    good = Moody(lambda _, __: [])
    async with serving(script) as first, serving(good.script) as second:
        config = {
            "providers": {
                "bad": provider(way.family, first.url, **more),
                "good": provider(other, second.url),
            },
            "fallbacks": {"*": ["good/spare"]},
        }
        async with (
            opened(folder, config) as (hub, url),
            httpx2.AsyncClient(base_url=url, timeout=DEADLINE, trust_env=False) as http,
        ):
            yield http, hub, good


def script_of(faults: Mapping[str, Fault], counter: Counter[str]) -> Script:
    """Each model fails in its own way; how often each is asked is counted."""

    async def script(peer: Peer) -> None:
        received = await peer.request()
        name = msgspec.json.decode(received.body)["model"]
        counter[name] += 1
        await play(peer, faults[name](speech_at(received.line)))

    return script


@pytest.mark.parametrize("way", MAIN, ids=str)
async def test_once_a_byte_has_reached_the_client_nobody_is_asked_again(tmp_path: Path, way: Way) -> None:
    counter: Counter[str] = Counter()
    async with two(tmp_path, way, script_of(LATE, counter), retries=3, **IDLE) as (http, hub, good):
        asking = [http.post(way.path, json=ask(stream=True, model=f"bad/{name}")) for name in LATE]
        for response in await asyncio.gather(*asking):
            assert response.status_code == 200
            assert '"error"' in response.text
        assert counter == dict.fromkeys(LATE, 1)
        assert good.requests == {}
        assert {row.status for row in await rows_of(hub, len(LATE))} == {"failed"}


@pytest.mark.parametrize("way", MAIN, ids=str)
async def test_the_next_model_answers_when_nothing_was_told_yet(tmp_path: Path, way: Way) -> None:
    counter: Counter[str] = Counter()
    async with two(tmp_path, way, script_of(EARLY, counter), **FIRST_BYTE, **IDLE) as (http, hub, good):
        asking = [http.post(way.path, json=ask(stream=True, model=f"bad/{name}")) for name in EARLY]
        for response in await asyncio.gather(*asking):
            assert (response.status_code, response.headers["x-dragoman-model"]) == (200, "good/spare")
            assert '"error"' not in response.text
        assert (counter, good.requests) == (dict.fromkeys(EARLY, 1), {"spare": len(EARLY)})
        rows = await rows_of(hub, len(EARLY))
        assert {(row.status, row.provider, row.tokens.output_tokens) for row in rows} == {
            ("finished", "good", 3)
        }


async def test_what_the_client_did_wrong_is_reported_and_nobody_else_is_asked(tmp_path: Path) -> None:
    way = Way("openai", "openai")
    wrong = msgspec.json.encode({"error": {"message": "no such field", "type": "invalid_request_error"}})
    counter: Counter[str] = Counter()
    bad: Mapping[str, Fault] = {"m": lambda _: [failed(400, wrong)]}
    async with two(tmp_path, way, script_of(bad, counter), retries=3) as (http, _, good):
        response = await http.post(way.path, json=ask(stream=True, model="bad/m"))
        assert (response.status_code, counter, good.requests) == (400, {"m": 1}, {})
        assert "no such field" in response.text


@pytest.mark.parametrize("way", MAIN, ids=str)
async def test_a_key_that_fails_rests_and_the_other_one_goes_on(tmp_path: Path, way: Way) -> None:
    """After three 5xx in a row; the fourth request does not meet the bad key any more."""
    moody = Moody(lambda _, received: [[failed(529, BUSY)]] * 9 if "key-a" in str(received.headers) else [])
    places = [tmp_path / name for name in ("a", "b")]
    for place in places:
        place.write_text(f"key-{place.name}")
    keys = [{"name": place.name, "api_key_file": str(place)} for place in places]
    async with house(
        tmp_path, way.family, moody.script, keys=keys, retries=1, cooldown={"failures": 3}
    ) as it:
        for _ in range(8):
            assert (await it.post(way, stream=True)).status_code == 200
        assert Counter(moody.keys) == {"key-a": 3, "key-b": 8}
        assert it.hub.cooldowns() == {"up": 1}
