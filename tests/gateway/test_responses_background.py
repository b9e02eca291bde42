"""Responses in the background: polled, followed from any event on, cancelled, and lost with their process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from dragoman.server.gateway.responses import background
from tests.gateway.metered_hub import Desk, Site, completion, desk, holding, refusal, tokens, usage
from tests.gateway.test_responses import ask, events_in
from tests.waiting import poll, until


async def until_ended(at: Desk, id: str, key: dict[str, str] | None = None) -> dict[str, Any]:
    """The response once it has ended."""

    async def look() -> dict[str, Any] | None:
        body: dict[str, Any] = (await at.http.get(f"/v1/responses/{id}", headers=key or {})).json()
        return None if body["status"] in ("queued", "in_progress") else body

    return await poll(look)


async def wait_for_request(at: Desk) -> None:
    """Wait until the provider has the request."""
    await until(lambda: at.sites["up"].requests)


async def test_a_response_in_the_background_is_made_while_nobody_listens(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(tokens("one", counts=usage(3, 1)), completion("two"))) as at:
        begun = (await ask(at, input="a", background=True)).json()
        assert (begun["status"], begun["background"], begun["output"]) == ("queued", True, [])
        stored = (await at.http.get(f"/v1/responses/{begun['id']}")).json()
        assert stored["status"] in ("in_progress", "completed")
        ended = await until_ended(at, begun["id"])
        assert ended["status"] == "completed"
        assert ended["output"][0]["content"][0]["text"] == "one"
        assert ended["usage"]["total_tokens"] == 4
        assert (await at.row()).tokens.total_tokens == 4
        assert (await ask(at, input="b", previous_response_id=begun["id"])).status_code == 200
        again = await at.http.post(f"/v1/responses/{begun['id']}/cancel")
        assert again.json()["status"] == "completed"


async def test_its_events_can_be_followed_from_any_of_them_on(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(tokens("one", "two"))) as at:
        whole = events_in((await ask(at, input="a", background=True, stream=True)).content)
        assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
        assert [event["type"] for event in whole[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        assert whole[-1]["type"] == "response.completed"
        path = f"/v1/responses/{whole[0]['response']['id']}"
        for after in (-1, 0, 4, len(whole) - 2):
            query = {"stream": "true", "starting_after": str(after)}
            assert events_in((await at.http.get(path, params=query)).content) == whole[after + 1 :]
        for after in (len(whole) - 1, len(whole), 10**17):  # nothing is invented after the last one
            query = {"stream": "true", "starting_after": str(after)}
            found = await at.http.get(path, params=query)
            assert (found.status_code, found.content) == (200, b"")
        for wrong in ("-2", "x", "", "\u0663", "9" * 20):
            query = {"stream": "true", "starting_after": wrong}
            refused = await at.http.get(path, params=query)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "starting_after")


async def test_who_reads_its_last_event_finds_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, up=Site(tokens("one"), completion("two"))) as at:
        repository = at.hub.store.responses
        finish = repository.finish
        written: list[tuple[int, int, str]] = []

        async def read_first(*args: Any, **fields: Any) -> bool:
            written.extend(await repository.events(args[0].id, after=-1))
            return await finish(*args, **fields)

        monkeypatch.setattr(repository, "finish", read_first)
        events = events_in((await ask(at, input="a", background=True, stream=True)).content)
        assert events[-1]["type"] == "response.completed"
        id = events[-1]["response"]["id"]
        stored = (await at.http.get(f"/v1/responses/{id}")).json()
        assert (stored["status"], stored["output"]) == ("completed", events[-1]["response"]["output"])
        assert (await ask(at, input="b", previous_response_id=id)).status_code == 200
    assert written
    assert not any("response.completed" in body for _, _, body in written)


async def test_it_outlives_the_connection_that_began_it(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def wait(peer: Any, _: Any) -> None:
        await release.wait()
        await peer.send(tokens("one"))

    async with desk(tmp_path, up=Site(wait)) as at:
        body = {"model": "up/m", "input": "a", "background": True, "stream": True}
        async with at.http.stream("POST", "/v1/responses", json=body) as stream:
            line = await anext(line async for line in stream.aiter_lines() if line.startswith("data: "))
        id = msgspec.json.decode(line.removeprefix("data: "))["response"]["id"]
        release.set()
        assert (await until_ended(at, id))["status"] == "completed"


async def test_it_is_cancelled_and_its_provider_left(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(holding(tokens("one", over=False)))) as at:
        begun = (await ask(at, input="a", background=True, stream=False)).json()
        await wait_for_request(at)
        cancelled = (await at.http.post(f"/v1/responses/{begun['id']}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        assert (await until_ended(at, begun["id"]))["status"] == "cancelled"
        assert (await at.row()).status == "aborted"
        foreground = (await ask(at, input="a", store=True, background=False, model="nope/m")).status_code
        assert foreground == 404


async def test_one_whose_process_is_gone_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(tmp_path, up=Site(holding(tokens("one", over=False)))) as at:
        begun = (await ask(at, input="a", background=True)).json()
        stored = await at.hub.store.responses.get(begun["id"], owner="local")
    monkeypatch.setattr(background, "LOST_AFTER", -1.0)
    async with desk(tmp_path / "other", up=Site(completion())) as at:  # where nobody makes it
        await at.hub.store.responses.save(stored, [])
        body = (await at.http.get(f"/v1/responses/{begun['id']}")).json()
        assert body["status"] == "failed"
        assert "has ended" in body["error"]["message"]
        path, query = f"/v1/responses/{begun['id']}", {"stream": "true"}
        last = events_in((await at.http.get(path, params=query)).content)[-1]
        assert last["type"] == "response.failed"
        query["starting_after"] = str(last["sequence_number"])
        assert (await at.http.get(path, params=query)).content == b""


async def test_one_that_fails_or_is_refused_says_so(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(refusal(500))) as at:
        begun = (await ask(at, input="a", background=True)).json()
        assert (await until_ended(at, begun["id"]))["status"] == "failed"
        refused = await ask(at, input="a", background=True, store=False)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "background")
        assert (await ask(at, input=5, background=True)).status_code == 400


async def test_it_belongs_to_its_owner_and_ends_with_its_key(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(holding(tokens("one", over=False)))) as at:
        ada, eve = await at.key("ada"), await at.key("eve")
        other = await at.key("ada")
        begun = (await ask(at, ada, input="a", background=True)).json()
        path = f"/v1/responses/{begun['id']}"
        assert (await at.http.post(f"{path}/cancel", headers=eve)).status_code == 404
        await wait_for_request(at)
        key = next(each for each in await at.hub.store.keys.list() if each.owner == "ada")
        await at.hub.store.keys.revoke(key.id)
        assert (await until_ended(at, begun["id"], other if key.id else eve))["status"] == "failed"


async def test_openais_client_polls_and_follows(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(tokens("one"))) as at:
        client = openai.AsyncOpenAI(base_url=f"{at.http.base_url}/v1", api_key="none", max_retries=0)
        begun = await client.responses.create(model="up/m", input="a", background=True, stream=True)
        events = [event async for event in begun]
        id = events[0].response.id  # type: ignore[union-attr]
        rest = await client.responses.retrieve(id, stream=True, starting_after=3)
        assert [event.type async for event in rest] == [event.type for event in events[4:]]
        assert (await client.responses.retrieve(id)).output_text == "one"
        await client.close()
