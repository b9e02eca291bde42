"""Runs of one host as the others show, repeat and stop them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.errors import HostUnreachable
from dragoman.hosts.client import HostClient
from dragoman.providers import scripted
from dragoman.runs import registry, remote
from dragoman.runs.remote import RunHosts
from dragoman.runs.run import RunSettings
from dragoman.server.http.listener import bind_listener
from dragoman.store.hosts.hosts import HostRecord
from dragoman.store.runs import RunRecord
from dragoman.store.store import Store
from tests.answer_gate import Gate
from tests.hosts import gate as marks
from tests.hosts.conftest import HostCluster, host_id
from tests.providers.servers import accepting
from tests.serving import Served, ask, frames_in, text_of, types
from tests.waiting import LIMIT, until

OPERATIONS = Path(__file__).with_name("gated_operations.py")
WHOLE = "one two three four five"
STEPS = [{"text": ["one ", "two ", "three ", "four ", "five"]}]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Stops all answers of scripted models."""
    gate = Gate()
    monkeypatch.setattr(scripted, "play", gate.play)
    return gate


@asynccontextmanager
async def reading(host: Served, method: str, path: str, **options: Any) -> AsyncIterator[Reader]:
    """An open stream of a host."""
    async with host.http.stream(method, path, **options) as response:
        assert response.status_code == 200, await response.aread()
        yield Reader(response)


class Reader:
    """A stream: its text so far, and its frames at its end."""

    def __init__(self, response: httpx2.Response) -> None:
        self.text = ""
        self._pieces = response.aiter_text()

    async def until(self, word: str) -> None:
        while word not in self.text:
            self.text += await anext(self._pieces)

    async def frames(self) -> list[dict[str, Any]]:
        async for piece in self._pieces:
            self.text += piece
        return frames_in(self.text)


async def test_a_viewer_at_another_host_sees_the_same_frames(hosts: HostCluster, gate: Gate) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    async with (
        reading(first, "POST", "/api/chat", json=ask("go")) as origin,
        asyncio.timeout(LIMIT),
    ):
        await origin.until("three ")
        async with reading(second, "GET", "/api/chat/s/stream") as viewer:
            await viewer.until("three ")
            assert (await second.http.get("/api/sessions/s")).json()["running"]
            stored = await second.messages()
            assert stored[-1]["parts"][-1]["text"] == "one two three "
            gate.opened.set()
            seen, replayed = await origin.frames(), await viewer.frames()
    assert types(replayed) == types(seen)
    assert text_of(replayed) == text_of(seen) == WHOLE
    assert replayed[-1] == seen[-1]
    assert (await second.http.get("/api/sessions/s")).json()["running"] is False


async def test_a_viewer_at_another_host_misses_nothing_where_the_feed_is_woken_without_events(
    hosts: HostCluster, gate: Gate
) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    async with reading(first, "POST", "/api/chat", json=ask("go")) as origin, asyncio.timeout(LIMIT):
        await origin.until("three ")
        async with reading(second, "GET", "/api/chat/s/stream") as viewer:
            await viewer.until("three ")
            run = first.active_run()
            assert run is not None
            for follower in run.tail._followers:
                follower.wake()  # as where one of two held batches is stored
            gate.opened.set()
            assert text_of(await viewer.frames()) == WHOLE
        assert text_of(await origin.frames()) == WHOLE


async def test_a_run_is_stopped_and_aborted_from_another_host(hosts: HostCluster, gate: Gate) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    for number, path in enumerate(("/api/chat/s/stop", "/api/calls/{run}/abort")):
        async with reading(first, "POST", "/api/chat", json=ask(f"go {number}")) as origin:
            await origin.until("three ")
            run = first.active_run()
            assert run is not None
            response = await second.http.post(path.format(run=run.row.id))
            assert response.status_code == 200, response.text
            assert gate.closed == number + 1
            assert run.done.is_set()
            assert "abort" in types(await origin.frames())
        assert (await second.messages())[-1]["parts"][1]["text"] == "one two three "


async def test_a_request_that_is_sent_again_to_another_host_follows_its_run(
    hosts: HostCluster, gate: Gate
) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    async with reading(first, "POST", "/api/chat", json=ask("go")) as origin:
        await origin.until("three ")
        async with reading(second, "POST", "/api/chat", json=ask("go")) as repeated:
            await repeated.until("three ")
            busy = await second.http.post("/api/chat", json=ask("another"))
            assert busy.status_code == 409
            assert busy.json()["error"]["runId"] == first.active_run().row.id  # type: ignore[union-attr]
            queued = asyncio.ensure_future(second.chat("later", whenBusy="queue"))
            gate.opened.set()
            assert text_of(await repeated.frames()) == WHOLE
        assert text_of(await origin.frames()) == WHOLE
        assert text_of(await queued) == WHOLE
    assert hosts.execute("SELECT host FROM runs ORDER BY started_at") == [
        (host_id(first),),
        (host_id(second),),
    ]


async def test_two_hosts_that_begin_at_once_have_one_run(hosts: HostCluster, gate: Gate) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    await first.http.post("/api/sessions", json={"id": "s"})
    both = [host.http.post("/api/chat", json=ask(f"go {host.url}")) for host in (first, second)]
    sent = [asyncio.ensure_future(each) for each in both]
    async with asyncio.timeout(LIMIT):
        done, _ = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
        gate.opened.set()
        answers = await asyncio.gather(*sent)
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    assert len(done) == 1


async def test_the_last_viewer_that_leaves_another_host_leaves_the_run(
    hosts: HostCluster, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "DISCONNECT_WAIT", 1.0)
    first, second = await hosts.open(2, steps=STEPS, disconnect_grace=3600)
    async with reading(first, "POST", "/api/chat", json=ask("go")) as origin:
        await origin.until("three ")
        run = first.active_run()
        assert run is not None
        viewing = reading(second, "GET", "/api/chat/s/stream")
        viewer = await viewing.__aenter__()
        await viewer.until("three ")
        await until(lambda: run.tail.follower_count == 2)
    await until(lambda: run.tail.follower_count == 1)
    assert not run.is_abandoned
    await viewing.__aexit__(None, None, None)
    await until(lambda: run.is_abandoned)
    gate.opened.set()
    assert text_of(await second.chat("again")) == WHOLE  # it replaces the abandoned run
    assert gate.closed <= 1


async def test_a_host_that_cannot_be_reached_is_named_with_what_to_set(
    hosts: HostCluster, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "REQUEST_TIMEOUT", 0.1)
    [first] = await hosts.open(1, steps=STEPS)
    async with reading(first, "POST", "/api/chat", json=ask("go")) as origin:
        await origin.until("three ")
        hosts.execute("UPDATE hosts SET url = 'http://127.0.0.1:9'")
        [second] = await hosts.open(1, steps=STEPS)  # one that does not know the address from before
        response = await second.http.get("/api/chat/s/stream")
        assert response.status_code == 503
        assert "hosts.url" in response.json()["error"]["hint"]
        assert len(await second.messages()) == 2
        gate.opened.set()
        assert text_of(await origin.frames()) == WHOLE


async def test_nothing_for_other_hosts_is_at_the_public_listener_or_shown(
    hosts: HostCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="dragoman")
    first, second = await hosts.open(2, steps=STEPS)
    await first.chat("go")
    assert (await second.http.get("/api/chat/s/stream")).status_code == 200
    records = await first.hub.store.hosts.list()
    tokens = [str(record.token) for record in records]
    headers = {"authorization": f"Bearer {tokens[0]}"}
    for path in ("/runs/r", "/runs/r/events"):
        assert (await first.http.get(path, headers=headers)).status_code == 404
    shown = [(await first.http.get("/api/hosts")).text, caplog.text, *map(repr, records)]
    assert not [text for text in shown for token in tokens if token in text]


async def test_a_session_that_is_deleted_at_another_host_ends_its_run(hosts: HostCluster, gate: Gate) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    async with reading(first, "POST", "/api/chat", json=ask("go")) as origin, asyncio.timeout(LIMIT):
        await origin.until("three ")
        assert (await second.http.delete("/api/sessions/s")).status_code == 204
        assert gate.closed == 1
        assert "abort" in types(await origin.frames())
    for host in (first, second):
        assert (await host.http.get("/api/sessions/s")).status_code == 404
    assert not hosts.execute("SELECT id FROM runs")


async def test_a_page_that_reloads_at_another_host_during_a_call_sees_its_result(hosts: HostCluster) -> None:
    marks.MADE.clear()
    steps: list[dict[str, Any]] = [
        {"tools": [{"name": "lab_act", "input": {"name": "it"}}]},
        {"text": "Done."},
    ]
    options = {"operations": [str(OPERATIONS)], "agents": {"default": {"operations": ["lab.act"]}}}
    first, second = await hosts.open(2, steps=steps, **options)
    async with reading(first, "POST", "/api/chat", json=ask("go")) as origin, asyncio.timeout(LIMIT):
        await until(lambda: marks.MADE == ["act it"])
        async with reading(second, "GET", "/api/chat/s/stream") as viewer:
            await viewer.until("tool-input-available")
            [call] = [
                each
                for each in (await second.http.get("/api/calls?session=s")).json()["calls"]
                if each["name"] == "lab.act"
            ]
            assert call["status"] == "running"
            assert (await second.http.post(f"/api/calls/{call['id']}/abort")).status_code == 200
            seen, replayed = await origin.frames(), await viewer.frames()
    assert types(replayed) == types(seen)
    assert "tool-output-error" in types(replayed)
    assert text_of(replayed) == "Done."
    assert marks.MADE == ["act it"]


@pytest.mark.usefixtures("quick_ticks")
async def test_a_run_is_stopped_whose_host_was_killed_a_moment_ago(hosts: HostCluster, gate: Gate) -> None:
    assert not gate.opened.is_set()
    killed, other = await hosts.open(2, steps=STEPS)
    async with reading(killed, "POST", "/api/chat", json=ask("go")) as origin:
        await origin.until("three ")
        with bind_listener("127.0.0.1", 0) as closed:
            port = closed.getsockname()[1]
        hosts.execute(f"UPDATE hosts SET url = 'http://127.0.0.1:{port}' WHERE id = '{host_id(killed)}'")
        run, copies = killed.active_run(), other.hub.runs.remote
        assert run is not None
        assert copies is not None
        copies._hosts.client.forget(host_id(killed))
        stopping = asyncio.create_task(other.http.post(f"/api/calls/{run.row.id}/abort"))
        await asyncio.wait([stopping], timeout=0.2)  # it has asked the host, in vain
        hosts.lose(killed)
        response = await stopping
        assert response.status_code == 200, response.text
        await until(lambda: hosts.execute("SELECT status FROM runs") == [("stopped",)])


@pytest.mark.parametrize(
    "state", [b'{"message":', b'{"epoch":1}', b'{"message":{"id":"m","role":"user","parts":[]},"later":1}']
)
@pytest.mark.parametrize("is_cut", [True, False])
async def test_a_host_whose_state_of_a_run_is_cut_off_counts_as_one_that_does_not_answer(
    tmp_path: Path, state: bytes, is_cut: bool
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        length = len(state) + 100 * is_cut
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length + state)
        writer.close()

    async with accepting(answer) as port, await Store.open(tmp_path) as store:
        await store.hosts.add(HostRecord(id="a", name="a", version="1", started_at=1.0))
        await store.hosts.set_address("a", url=f"http://127.0.0.1:{port}", token="t")
        client = HostClient(store.hosts)
        hosts = RunHosts(store, client, lambda _: None, RunSettings())
        row = RunRecord(id="r", session_id="s", message_id="m", owner="o", started_at=1.0, host="a")
        if is_cut or b"role" not in state:
            with pytest.raises(HostUnreachable):
                await hosts.read_state(row)
        else:
            assert (await hosts.read_state(row)).message.id == "m"
        await client.close()
