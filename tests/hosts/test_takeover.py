"""Runs of a host that is gone, or that stops, go on at another one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typing_extensions import override

from dragoman.runs import crash_recovery, takeover
from dragoman.runs.engine import ListHosts, MemoryEngine
from dragoman.runs.takeover import HostTakeover
from dragoman.server.app import background_jobs
from dragoman.store.runs import RunRecord
from tests.hosts import gate
from tests.hosts.conftest import HostCluster, host_id
from tests.serving import Served, ask
from tests.waiting import poll, until

OPERATIONS = [str(Path(__file__).with_name("gated_operations.py"))]
PINNED = ["lab.look", "lab.read", "lab.act"]
WORDS = [f"word{number} " for number in range(40)]

pytestmark = pytest.mark.usefixtures("quick_ticks", "quick_sweeps")


@pytest.fixture
def quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "SWEEP_INTERVAL", 0.05)
    monkeypatch.setattr(crash_recovery, "RETRY_INTERVAL", 0.05)
    monkeypatch.setattr(background_jobs, "POLL_INTERVAL", 0.05)
    gate.MADE.clear()


def call(name: str, of: str) -> dict[str, Any]:
    return {"name": f"lab_{name}", "input": {"name": of}}


async def open_hosts(hosts: HostCluster, number: int, *steps: dict[str, Any]) -> Sequence[Served]:
    return await hosts.open(number, steps=steps, operations=OPERATIONS, pinned=PINNED)


async def post_chat(host: Served, **fields: Any) -> str:
    """Send a message and read the answer, as far as it comes."""
    received = b""
    with suppress(httpx2.HTTPError):
        async with host.http.stream("POST", "/api/chat", json=ask("go", **fields)) as response:
            async for block in response.aiter_raw():
                received += block
    return received.decode()


async def until_run(host: Served, status: str) -> RunRecord:
    """Wait until the last run of the session has this status; return it."""

    async def look() -> RunRecord | None:
        runs = await host.runs()
        return runs[-1] if runs and runs[-1].status == status else None

    return await poll(look)


async def test_a_message_waits_for_the_answer_of_a_lost_host_where_that_goes_on(hosts: HostCluster) -> None:
    calls = {"tools": [call("look", "it"), call("read", "it")]}
    lost, other = await open_hosts(hosts, 2, calls, {"text": ["I know."]})
    asking = asyncio.create_task(post_chat(lost))
    await until(lambda: gate.MADE == ["look it", "read it"])
    hosts.lose(lost)
    waiting = await other.http.post("/api/chat", json=ask("more", whenBusy="queue"))
    asking.cancel()
    assert waiting.status_code == 200, waiting.text
    runs = await other.runs()
    assert [(run.status, run.host) for run in runs] == [("finished", host_id(other))] * 2


async def test_the_run_of_a_lost_host_goes_on_at_another_one(hosts: HostCluster) -> None:
    calls = {"tools": [call("look", "it"), call("read", "it")]}
    lost, other = await open_hosts(hosts, 2, calls, {"text": ["I know."]})
    asking = asyncio.create_task(post_chat(lost))
    await until(lambda: gate.MADE == ["look it", "read it"])
    await until(lambda: hosts.execute("SELECT count(*) FROM calls WHERE status = 'done'")[0][0])
    hosts.lose(lost)
    run = await until_run(other, "finished")
    asking.cancel()
    assert (run.host, run.epoch, run.crashes) == (host_id(other), 2, 1)
    assert gate.MADE == ["look it", "read it", "read it"]
    answer = (await other.messages())[-1]
    assert [part.get("output") for part in answer["parts"] if "output" in part] == ["saw it", "read it"]
    assert answer["parts"][-1]["text"] == "I know."
    await until(lambda: hosts.execute("SELECT id FROM hosts") == [(host_id(other),)])


async def test_a_call_that_acts_is_asked_about_and_of_two_hosts_one_takes_the_run(hosts: HostCluster) -> None:
    lost, *others = await open_hosts(hosts, 3, {"tools": [call("act", "it")]}, {"text": ["Well."]})
    asking = asyncio.create_task(post_chat(lost))
    await until(lambda: gate.MADE == ["act it"])
    hosts.lose(lost)
    await asyncio.gather(*(host.hub.takeover.take_over(host_id(lost)) for host in others))
    run = await until_run(others[0], "finished")
    asking.cancel()
    assert run.epoch == 2
    [approval] = (await others[0].http.get("/api/approvals?status=pending")).json()["approvals"]
    response = await others[1].http.post(f"/api/approvals/{approval['id']}", json={"answer": "done"})
    assert response.status_code == 200
    await until(lambda: len(hosts.execute("SELECT id FROM runs WHERE status = 'finished'")) == 2)
    assert gate.MADE == ["act it"]
    assert [part["text"] for part in (await others[0].messages())[-1]["parts"] if "text" in part] == ["Well."]
    assert len(await others[0].runs()) == 2


async def test_a_host_that_stops_hands_its_runs_over(hosts: HostCluster) -> None:
    leaving, other = await open_hosts(hosts, 2, {"text": WORDS, "delay": 0.1})
    asking = asyncio.create_task(post_chat(leaving))
    await until(lambda: hosts.execute("SELECT count(*) FROM parts WHERE body LIKE '%word1%'")[0][0])
    await leaving.hub.stop()
    received = await asking
    await hosts.close(leaving)
    assert '"finish"' not in received
    assert "[DONE]" not in received
    run = await until_run(other, "finished")
    assert (run.host, run.epoch, run.crashes) == (host_id(other), 3, 0)
    answer = (await other.messages())[-1]
    assert [part["text"] for part in answer["parts"] if "text" in part] == ["".join(WORDS)]
    assert hosts.execute("SELECT id FROM hosts") == [(host_id(other),)]
    await other.hub.meter.ledger.flush()
    usage = await other.hub.store.usage.list(filters={"run_id": run.id})
    assert [record.status for record in usage] == ["aborted", "finished"]


async def test_calls_of_a_run_that_is_handed_over_are_made_again_or_asked_about(hosts: HostCluster) -> None:
    calls = {"tools": [call("look", "it"), call("read", "it"), call("act", "it")]}
    leaving, other = await open_hosts(hosts, 2, calls, {"text": ["Well."]})
    asking = asyncio.create_task(post_chat(leaving))
    await until(lambda: sorted(gate.MADE) == ["act it", "look it", "read it"])
    await until(lambda: hosts.execute("SELECT count(*) FROM calls WHERE status = 'done'")[0][0])
    await hosts.close(leaving)
    await asking
    assert (await until_run(other, "finished")).host == host_id(other)
    assert sorted(gate.MADE) == ["act it", "look it", "read it", "read it"]
    [approval] = (await other.http.get("/api/approvals?status=pending")).json()["approvals"]
    assert approval["items"][0]["question"]["options"] == ["done", "not done", "try again"]


async def test_runs_of_an_agent_that_does_not_go_on_end_with_their_host(hosts: HostCluster) -> None:
    agents = {"brief": {"model": "sim/any", "after_crash": "close"}}
    steps = [{"text": WORDS, "delay": 0.1}]
    leaving, other = await hosts.open(2, steps=steps, agents=agents)
    asking = asyncio.create_task(post_chat(leaving, agent="brief"))
    await until(lambda: hosts.execute("SELECT count(*) FROM parts WHERE body LIKE '%word1%'")[0][0])
    await leaving.hub.stop()
    assert '"finish"' in await asking
    assert (await until_run(other, "stopped")).epoch == 1


async def test_all_hosts_that_stop_at_once_leave_their_runs_to_the_next_one(hosts: HostCluster) -> None:
    names, last_step = ("a", "b"), {"text": ["I know."]}
    for name in names:
        [host] = await open_hosts(hosts, 1, {"tools": [call("look", name), call("read", name)]}, last_step)
        asking = asyncio.create_task(host.http.post("/api/chat", json=ask("go", session=name)))
        await until(lambda name=name: f"read {name}" in gate.MADE)  # type: ignore[misc]
        asking.cancel()
    await until(lambda: hosts.execute("SELECT count(*) FROM calls WHERE status = 'done'") == [(2,)])
    # All stop at the same moment, under load too.
    await asyncio.gather(*(host.hub.runs.recovery.close() for host in hosts.hosts))
    await asyncio.gather(*(hosts.close(host) for host in list(hosts.hosts)))
    assert hosts.execute("SELECT DISTINCT status, host FROM runs") == [("running", None)]
    [next_host] = await open_hosts(hosts, 1, last_step, last_step)
    await until(lambda: hosts.execute("SELECT DISTINCT status FROM runs") == [("finished",)])
    for name in names:
        assert (await next_host.messages(name))[-1]["parts"][-1]["text"] == "I know."
    assert sorted(gate.MADE) == ["look a", "look b", "read a", "read a", "read b", "read b"]


async def test_a_host_that_stops_gives_back_a_run_that_it_has_just_claimed(
    hosts: HostCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, last_step = {"tools": [call("look", "it"), call("read", "it")]}, {"text": ["I know."]}
    leaving, other = await open_hosts(hosts, 2, calls, last_step)
    claimed = asyncio.Event()

    async def wait_for_operations(_names: Sequence[str]) -> None:
        claimed.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(other.hub.runs.recovery, "_arrival", wait_for_operations)
    asking = asyncio.create_task(post_chat(leaving))
    await until(lambda: gate.MADE == ["look it", "read it"])
    await hosts.close(leaving)
    await asking
    await claimed.wait()
    await hosts.close(other)
    assert hosts.execute("SELECT status, host FROM runs") == [("running", None)]
    [next_host] = await open_hosts(hosts, 1, last_step, last_step)
    assert (await until_run(next_host, "finished")).crashes == 0
    assert gate.MADE == ["look it", "read it", "read it"]


async def test_a_run_that_is_stopped_while_others_take_it_over_ends_once(hosts: HostCluster) -> None:
    calls = {"tools": [call("look", "it"), call("read", "it")]}
    lost, *others = await open_hosts(hosts, 3, calls, {"text": ["I know."]})
    asking = asyncio.create_task(post_chat(lost))
    await until(lambda: gate.MADE == ["look it", "read it"])
    await until(lambda: hosts.execute("SELECT count(*) FROM calls WHERE status = 'done'")[0][0])
    hosts.lose(lost)
    stopping = asyncio.create_task(others[1].http.post("/api/chat/s/stop"))
    await asyncio.gather(*(host.hub.takeover.take_over(host_id(lost)) for host in others))
    stopped = await stopping
    asking.cancel()
    assert stopped.status_code in (200, 204), stopped.text
    await until(lambda: hosts.execute("SELECT count(*) FROM runs WHERE status = 'running'") == [(0,)])
    [run] = await others[0].runs()
    assert run.status in ("stopped", "finished")
    assert gate.MADE.count("look it") == 1
    assert (await others[0].chat("more"))[-1]["type"] == "finish"


class RecoveringEngine(MemoryEngine):
    """An engine that keeps which hosts were alive when it was to recover the turns of others."""

    def __init__(self) -> None:
        super().__init__(at_once=1)
        self.living: list[set[str]] = []

    @override
    async def recover(self, *, list_living: ListHosts) -> None:
        self.living.append(set(await list_living()))


async def test_turns_of_lost_hosts_are_looked_for_again_and_again(hosts: HostCluster) -> None:
    """What a host had claimed when it was killed may be committed after others have taken over from it."""
    host, lost = await open_hosts(hosts, 2)
    engine = RecoveringEngine()
    sweeping = asyncio.create_task(HostTakeover(host.hub.store, engine).run())
    both = {host_id(host), host_id(lost)}
    await until(lambda: engine.living[:1] == [both])
    hosts.lose(lost)
    await until(lambda: engine.living[-1] == {host_id(host)})
    count = len(engine.living)
    await until(lambda: len(engine.living) > count)
    sweeping.cancel()
