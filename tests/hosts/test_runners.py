"""A runner at one host, and a page, or the runner's next connection, at another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.errors import Unavailable
from dragoman.identity import LOCAL
from dragoman.session_ids import hub_session_id
from tests.flows.test_interrupted_beginnings import HeldWriter
from tests.hosts.conftest import HostCluster
from tests.runners.wire_runner import Turn, connected, new_session
from tests.serving import Served, ask, frames_in, text_of
from tests.waiting import until

pytestmark = pytest.mark.anyio
CONFIG: Any = {"runners": {"grace": 20.0, "stop": 0.5}, "disconnect_grace": "never"}


async def test_a_page_at_another_host_is_answered_by_the_runner(hosts: HostCluster) -> None:
    first, second = await hosts.open(2, **CONFIG)
    await new_session(first)
    async with connected(first, "s") as runner:
        for number in range(2):
            posted = asyncio.create_task(second.http.post("/api/sessions/s/chat", json=ask(f"go {number}")))
            turn = await runner.prompt()
            assert turn.prompt["text"] == f"go {number}"
            await turn.create()
            await turn.text("from ")
            await runner.acknowledged(2)
            await turn.text("afar")
            await turn.finalize()
            assert text_of(frames_in((await posted).text)) == "from afar"
    assert len(await second.messages()) == 4


async def test_a_stop_at_another_host_reaches_the_runner(hosts: HostCluster) -> None:
    first, second = await hosts.open(2, **CONFIG)
    await new_session(first)
    async with connected(first, "s") as runner:
        posted = asyncio.create_task(second.http.post("/api/sessions/s/chat", json=ask("go")))
        turn = await runner.prompt()
        await turn.create()
        await runner.acknowledged(1)
        stopping = asyncio.create_task(second.http.post("/api/sessions/s/stop"))
        await runner.next("abort")
        await turn.finalize("canceled")
        assert (await stopping).json()["stopped"] is True
        await posted


async def test_a_runner_that_comes_back_at_another_host_takes_its_turn_along(hosts: HostCluster) -> None:
    first, second, third = await hosts.open(3, **CONFIG)
    await new_session(first)
    async with connected(first, "s") as runner:
        posted = asyncio.create_task(third.http.post("/api/sessions/s/chat", json=ask("go")))
        turn = await runner.prompt()
        await turn.create()
        await turn.text("one ")
        await turn.tool("completed", result=1)
        await runner.acknowledged(3)
        await runner.drop()
    async with connected(second, "s") as again:
        [state] = again.welcome["sessions"]
        assert (state["turnId"], state["seq"]) == (turn.prompt["turnId"], 3)
        turn.runner = again
        await turn.text("two")
        await turn.finalize()
        await again.acknowledged(5)
        assert text_of(frames_in((await posted).text)) == "one two"


async def test_a_runner_that_comes_back_while_its_end_is_noted_is_found_by_other_hosts(
    hosts: HostCluster,
) -> None:
    first, second = await hosts.open(2, **CONFIG)
    await new_session(first)
    async with connected(first, "s") as runner, HeldWriter(first) as writer:
        await runner.drop()
        await writer.until_storing()  # that it has gone
        async with connected(first, "s") as again:
            writer.release()
            await first.hub.store.flush()
            await until(lambda: serves_runner(second, first))
            posted = asyncio.create_task(second.http.post("/api/sessions/s/chat", json=ask("go")))
            turn = await again.prompt()
            await turn.create()
            await turn.text("back")
            await turn.finalize()
            assert text_of(frames_in((await posted).text)) == "back"


async def serves_runner(other: Served, host: Served) -> bool:
    """Whether a host knows that the runner of the session is at another one."""
    session = await other.hub.store.sessions.get(hub_session_id("s", owner=LOCAL.owner))
    return session is not None and session.runner_host == host.hub.store.host_id


async def test_a_message_for_a_runner_elsewhere_is_answered_though_its_host_can_write_nothing_more(
    hosts: HostCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await hosts.open(2, **CONFIG)
    await new_session(first)

    async def refuse(*_: Any, **__: Any) -> Any:
        raise Unavailable("the database is away")

    async with connected(first, "s") as runner:
        monkeypatch.setattr(second.hub.store.runs, "move", refuse)
        posted = asyncio.create_task(second.http.post("/api/sessions/s/chat", json=ask("go")))
        turn = await runner.prompt()
        await turn.create()
        await turn.text("from afar")
        await turn.finalize()
        assert text_of(frames_in((await posted).text)) == "from afar"


async def test_a_question_is_answered_at_another_host(hosts: HostCluster) -> None:
    first, second = await hosts.open(2, **CONFIG)
    await new_session(first)
    async with connected(first, "s") as runner:
        posted = asyncio.create_task(second.http.post("/api/sessions/s/chat", json=ask("go")))
        turn = await runner.prompt()
        await turn.create()
        await turn.send("question", questionId="q", text="Which?")
        frames_in((await posted).text)
        [request] = (await second.http.get("/api/approvals?status=pending")).json()["approvals"]
        await second.http.post(f"/api/approvals/{request['id']}", json={"answer": "this"})
        assert (await runner.next("answer"))["answer"] == "this"
        await turn.text("Good.")
        await turn.finalize()
        await runner.acknowledged(turn.seq)


async def test_a_page_at_another_host_is_told_of_a_call_as_by_the_host_of_the_runner(
    hosts: HostCluster,
) -> None:
    first, second = await hosts.open(2, **CONFIG)
    await new_session(first)
    async with connected(first, "s") as runner:
        for host in (first, second):
            posted = asyncio.create_task(host.http.post("/api/sessions/s/chat", json=ask(host.url)))
            turn = await runner.prompt()
            frames = [
                turn.frame("message.create"),
                tool_frame(turn, "running", args={"path": "a"}),
                tool_frame(turn, "completed", result=1),
                turn.frame("message.finalize", reason="end_turn"),
            ]
            await runner.send(*frames)
            calls = [frame["type"] for frame in frames_in((await posted).text) if "toolCallId" in frame]
            assert calls[-2:] == ["tool-input-available", "tool-output-available"]


async def test_the_error_of_a_runner_is_told_at_another_host(hosts: HostCluster) -> None:
    first, second = await hosts.open(2, **CONFIG)
    await new_session(first)
    async with connected(first, "s") as runner:
        posted = asyncio.create_task(second.http.post("/api/sessions/s/chat", json=ask("go")))
        turn = await runner.prompt()
        await runner.send(
            turn.frame("message.create"), turn.frame("message.finalize", reason="error", error="it fell over")
        )
        errors = [frame["errorText"] for frame in frames_in((await posted).text) if frame["type"] == "error"]
        assert errors == ["it fell over"]


async def test_an_answer_that_a_page_gives_at_another_host_is_shown_in_it(hosts: HostCluster) -> None:
    first, second = await hosts.open(2, **CONFIG)
    await new_session(first)
    async with connected(first, "s") as runner:
        posted = asyncio.create_task(second.http.post("/api/sessions/s/chat", json=ask("go")))
        turn = await runner.prompt()
        await turn.create()
        await turn.send("question", questionId="q", text="Which?")
        frames_in((await posted).text)
        user, assistant = await second.messages()
        for part in assistant["parts"]:
            if part.get("state") == "input-available":
                part.update(state="output-available", output="this")
        body = {"id": "s", "messages": [user, assistant], "trigger": "submit-message"}
        posted = asyncio.create_task(second.http.post("/api/sessions/s/chat", json=body))
        await runner.next("answer")
        await turn.text("Good.")
        await turn.finalize()
        frames = frames_in((await posted).text)
        [question] = [frame["data"] for frame in frames if frame["type"] == "data-question"]
        assert (question["status"], text_of(frames)) == ("answered", "Good.")


def tool_frame(turn: Turn, status: str, **fields: Any) -> Any:
    """Make an update of a call."""
    return turn.frame("message.part.tool-update", callId="c1", toolName="bash", status=status, **fields)
