"""A runner at one host, and what changes its session at another: deleted, made anew, its turn gone on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from dragoman.identity import LOCAL
from dragoman.session_ids import hub_session_id
from dragoman.store.runs import RunRecord
from tests.hosts.conftest import HostCluster, host_id
from tests.runners.wire_runner import Turn, WireRunner, connected, new_session
from tests.serving import Served, ask, frames_in, text_of
from tests.waiting import until

pytestmark = pytest.mark.anyio
CONFIG: Any = {"runners": {"grace": 20.0, "stop": 0.5}, "disconnect_grace": "never"}
SESSION = hub_session_id("s", owner=LOCAL.owner)


async def ask_question(host: Served, runner: WireRunner, *, id: str = "q") -> Turn:
    """Begin a turn at a host, and let it wait for the answer to a question."""
    posted = asyncio.create_task(host.http.post("/api/sessions/s/chat", json=ask(f"go {id}")))
    turn = await runner.prompt()
    await turn.create()
    await turn.send("question", questionId=id, text="Which?")
    await runner.acknowledged(turn.seq)
    frames_in((await posted).text)
    return turn


async def answer_question(host: Served, text: str = "this") -> None:
    [request] = (await host.http.get("/api/approvals?status=pending")).json()["approvals"]
    answered = await host.http.post(f"/api/approvals/{request['id']}", json={"answer": text})
    assert answered.status_code == 200, answered.text


async def test_a_session_deleted_elsewhere_ends_its_waiting_turn_and_made_anew_has_its_runner(
    hosts: HostCluster,
) -> None:
    first, second = await hosts.open(2, **CONFIG)
    await new_session(first)
    async with connected(first, "s") as runner:
        turn = await ask_question(second, runner)
        assert (await second.http.delete("/api/sessions/s")).status_code == 204
        assert (await runner.next("abort"))["turnId"] == turn.prompt["turnId"]
        await turn.text("still here")
        assert (await runner.next("refused"))["error"]["code"] == "late"
        await new_session(second)
        posted = asyncio.create_task(second.http.post("/api/sessions/s/chat", json=ask("anew")))
        turn = await runner.prompt()
        assert turn.prompt["text"] == "anew"
        await turn.answer("found")
        assert text_of(frames_in((await posted).text)) == "found"


async def test_a_connected_runner_is_found_though_its_host_is_no_longer_noted(hosts: HostCluster) -> None:
    first, second, third = await hosts.open(3, **CONFIG)
    await new_session(first)
    async with connected(first, "s") as runner:
        for number, host in enumerate((second, third, first)):
            await first.hub.store.sessions.clear_runner_host(SESSION, host_id(first))
            posted = asyncio.create_task(host.http.post("/api/sessions/s/chat", json=ask(f"go {number}")))
            await (await runner.prompt()).answer("here")
            assert text_of(frames_in((await posted).text)) == "here"


async def test_messages_at_several_hosts_find_a_runner_at_once(hosts: HostCluster) -> None:
    first, second, third = await hosts.open(3, when_busy="queue", **CONFIG)
    await new_session(first)
    async with connected(first, "s") as runner:
        await first.hub.store.sessions.clear_runner_host(SESSION, host_id(first))
        posted = [
            asyncio.create_task(host.http.post("/api/sessions/s/chat", json=ask(f"{host.url} {number}")))
            for number in range(3)
            for host in (second, third, first)
        ]
        for _ in posted:
            await (await runner.prompt()).answer("once")
        responses = await asyncio.gather(*posted)
        assert [text_of(frames_in(response.text)) for response in responses] == ["once"] * len(posted)


async def test_a_host_has_forgotten_a_waiting_turn_that_went_on_at_another(hosts: HostCluster) -> None:
    first, second = await hosts.open(2, **CONFIG)
    await new_session(first)
    async with connected(first, "s") as runner:
        turn = await ask_question(first, runner)
    async with connected(second, "s") as runner:
        turn.runner = runner
        await answer_question(second)
        await runner.next("answer")
        await turn.text("So.")
        await turn.send("question", questionId="q2", text="And?")
        await runner.acknowledged(turn.seq)
        await until(lambda: is_over(second))
    async with connected(first, "s") as runner:
        [state] = runner.welcome["sessions"]
        assert (state["turnId"], state["seq"]) == (turn.prompt["turnId"], turn.seq)
        turn.runner = runner
        await answer_question(first)
        await runner.next("answer")
        await turn.text(" Good.")
        await turn.finalize()
        await runner.acknowledged(turn.seq)
    async with connected(second, "s") as runner:
        [state] = runner.welcome["sessions"]
        assert state.get("turnId") is None, "it is over"


async def test_a_host_has_forgotten_the_waiting_turn_of_a_session_deleted_while_its_runner_was_away(
    hosts: HostCluster,
) -> None:
    first, second = await hosts.open(2, **CONFIG)
    await new_session(first)
    async with connected(first, "s") as runner:
        await ask_question(first, runner)
    assert (await second.http.delete("/api/sessions/s")).status_code == 204
    await new_session(second)
    async with connected(first, "s") as runner:
        [state] = runner.welcome["sessions"]
        assert state.get("turnId") is None


async def is_over(host: Served) -> bool:
    """Whether no run of the session is active."""
    return await host.hub.store.runs.get_active(SESSION) is None


async def test_hosts_that_pass_a_run_to_each_other_do_not_wait_for_each_other(
    hosts: HostCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await hosts.open(2, **CONFIG)
    await new_session(first)
    sessions, runs = second.hub.store.sessions, second.hub.store.runs
    posted = asyncio.create_task(second.http.post("/api/sessions/s/chat", json=ask("go")))
    await until(second.active_run)
    run = second.active_run()
    assert run is not None
    run.stop_unwritten()
    with suppress(httpx2.HTTPError):
        await posted
    row = await runs.move(run.row, to=None)
    assert row is not None
    await sessions.set_runner_host(SESSION, host_id(first))
    move = runs.move

    async def runner_moves(row: RunRecord, *, to: str | None) -> RunRecord | None:
        if to is None:
            await sessions.set_runner_host(SESSION, host_id(second))
        return await move(row, to=to)

    given_up: list[str] = []

    async def give_up(_: str, host: str) -> None:
        given_up.append(host)

    monkeypatch.setattr(runs, "move", runner_moves)
    for host in (first, second):
        monkeypatch.setattr(host.hub.store.sessions, "clear_runner_host", give_up)
    await second.hub.runs.recovery.continue_here(row.id)
    assert given_up == [], "each has got an answer of the other"
    async with connected(second, "s") as runner:
        await (await runner.prompt()).answer("it is here")
        await until(lambda: is_over(second))
    assert text_of_last(await second.messages()) == "it is here"


def text_of_last(messages: list[dict[str, Any]]) -> str:
    return "".join(part.get("text", "") for part in messages[-1]["parts"])
