"""Messages that reach one host while another one answers in their session."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from dragoman.identity import LOCAL
from dragoman.messages import Message, TextPart
from dragoman.runs import run_queue
from dragoman.session_ids import hub_session_id
from dragoman.wire.ui.client_request import ChatRequest, NewMessage
from tests.answer_gate import Gate
from tests.flows.background import read_run, send_away, until_state
from tests.flows.test_busy_sessions import queued, texts
from tests.hosts.conftest import HostCluster, host_id
from tests.hosts.test_remote_runs import STEPS, WHOLE, gate, reading
from tests.runners.wire_runner import connected, new_session
from tests.serving import Served, ask, frames_in, text_of
from tests.waiting import until

__all__ = ["gate"]  # a fixture
SESSION = hub_session_id("s", owner=LOCAL.owner)
CONFIG: Any = {"runners": {"grace": 3600.0}, "disconnect_grace": "never"}


@pytest.fixture
def no_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits begins because somebody is told of it, not because a host looks from time to time."""
    monkeypatch.setattr(run_queue, "SWEEP_INTERVAL", 3600.0)
    monkeypatch.setattr(run_queue, "POLL_INTERVAL", 3600.0)


async def add_to_queue(host: Served, text: str) -> None:
    """Queue a message as a host does that ends before it can tell anybody."""
    session = await host.hub.store.sessions.get(SESSION)
    message = Message(id=f"u-{text}", role="user", parts=(TextPart(text),))
    request = ChatRequest(session_id=SESSION, action=NewMessage(message), when_busy="queue")
    await host.hub.runs.queue.add(request, message, session=session, identity=LOCAL)


@pytest.mark.usefixtures("no_sweeps")
@pytest.mark.parametrize("mode", ["queue", "interrupt"])
async def test_a_message_to_another_host_is_answered_after_the_run_or_instead_of_it(
    hosts: HostCluster, gate: Gate, mode: str
) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    async with reading(first, "POST", "/api/chat", json=ask("go")) as origin:
        await origin.until("three ")
        posted = asyncio.create_task(second.http.post("/api/chat", json=ask("more", whenBusy=mode)))
        if mode == "queue":
            await origin.until("data-queued")
            assert [each["mode"] for each in await queued(first)] == ["queue"]
            async with AsyncExitStack() as readers:
                for host in (second, second, first):  # who comes later is told of it as well
                    late = await readers.enter_async_context(reading(host, "GET", "/api/chat/s/stream"))
                    await late.until("data-queued")
            gate.opened.set()
        else:
            await until(lambda: gate.closed == 1)
            gate.opened.set()
        assert text_of(frames_in((await posted).text)) == WHOLE
    stored = texts(await second.messages())
    assert stored == ["go", WHOLE if mode == "queue" else "one two three ", "more", WHOLE]


@pytest.mark.several_hosts
@pytest.mark.usefixtures("no_sweeps")
async def test_a_message_that_waits_is_withdrawn_at_another_host(hosts: HostCluster, gate: Gate) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    async with reading(first, "POST", "/api/chat", json=ask("go")) as origin:
        await origin.until("three ")
        posted = asyncio.create_task(first.http.post("/api/chat", json=ask("more", whenBusy="queue")))
        await origin.until("data-queued")
        [waiting] = await queued(second)
        gone = await second.http.delete(f"/api/sessions/s/queue/{waiting['runId']}")
        assert gone.status_code in (200, 204), gone.text
        assert (await posted).status_code == 409
        await origin.until('"state":"withdrawn"')
        gate.opened.set()
        assert text_of(await origin.frames()) == WHOLE


@pytest.mark.usefixtures("no_sweeps")
async def test_a_message_that_waits_begins_at_the_host_of_its_runner(hosts: HostCluster) -> None:
    first, second = await hosts.open(2, **CONFIG)
    await new_session(first)
    async with connected(first, "s") as runner:
        await add_to_queue(second, "later")
        await second.hub.runs.queue.dispatch(SESSION)
        turn = await runner.prompt()
        assert turn.prompt["text"] == "later"
        [run] = await second.runs()
        assert run.host == host_id(first)
        await turn.answer("from afar")
    assert texts(await second.messages()) == ["later", "from afar"]


@pytest.mark.usefixtures("no_sweeps")
async def test_what_waits_for_room_is_begun_by_a_host_that_has_some(hosts: HostCluster, gate: Gate) -> None:
    first, second = await hosts.open(2, steps=STEPS, limits={"background_runs": 1})
    ids = [await send_away(first, session=f"s{number}") for number in range(3)]

    async def states() -> list[str]:
        return [(await read_run(second, id))["state"] for id in ids]

    async def has_begun_two() -> bool:
        return (await states()).count("running") == 2

    await until(has_begun_two)
    assert sorted(await states()) == ["queued", "running", "running"]
    assert (await states())[0] == "running"
    assert (first.hub.runs.active_count, second.hub.runs.active_count) == (1, 1)
    gate.opened.set()
    for id in ids:
        await until_state(second, id, "done")
