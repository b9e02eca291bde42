"""A host that freezes in any phase of a turn, and wakes up when another one has its runs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx2
import pytest

from dragoman.store.postgres import membership
from tests.effort import rows
from tests.faults.process import Process, started, write_config
from tests.hosts.conftest import HostCluster, host_id
from tests.hosts.postgres_proxy import ConnectionUse, PostgresProxy
from tests.hosts.test_fencing import contents
from tests.hosts.test_postgres_connections import ended
from tests.serving import Served, ask
from tests.waiting import poll, until

WORDS = [f"word{number} " for number in range(20)]
NOTE = {"tools": [{"name": "held_note", "input": {"word": "it"}}]}
PAY = {"tools": [{"name": "held_pay", "input": {"word": "it"}}]}
SIGN = {"tools": [{"name": "held_sign", "input": {"word": "it"}, "id": "c1"}]}
TEXT = {"text": WORDS, "delay": 0.05}
OPERATIONS: Any = {
    "operations": [str(Path(__file__).with_name("held_operations.py"))],
    "pinned": ["held.note", "held.pay", "held.sign"],
    "disconnect_grace": "never",
}
# The status and the reason of a run's end, as parameters. Rows of usage have this status as well, alone.
FINISHED = b"\0\0\0\x08finished\0\0\0\x04stop"


class Phase(NamedTuple):
    """Where a host freezes: as it sends `words` on a connection of this use, or when it commits them.

    Without `words` it freezes in the `during`.
    """

    name: str
    words: bytes = b""
    use: ConnectionUse = "writer"
    arrives: bool = False
    during: Literal["text", "call", ""] = ""


PHASES = [
    Phase("before the end is stored", FINISHED),
    Phase("during a call", during="call"),
    Phase("after the beginning is stored", b"u-go", arrives=True),
    Phase("before a continuation is queued", b"approval:", use="queue"),
    Phase("before the claim of a lost run", b"run_"),
    Phase("during the text", during="text"),
    Phase("after the end is stored", FINISHED, arrives=True),
    Phase("before the beginning is stored", b"u-go"),
    Phase("after the claim of a lost run", b"run_", arrives=True),
    Phase("after a continuation is queued", b"approval:", use="queue", arrives=True),
]


class Freezing:
    """Freezes a process in a phase; `is_frozen` is set then."""

    def __init__(self, process: Process, phase: Phase) -> None:
        self._pid = process.process.pid
        self._phase = phase
        self._is_near = False
        self.is_frozen = threading.Event()

    def freeze(self) -> None:
        """Stop the process, and wait until it stands still."""
        os.kill(self._pid, signal.SIGSTOP)
        while Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            pass
        self.is_frozen.set()

    def on_send(self, use: ConnectionUse, data: bytes) -> bool:
        """See `PostgresProxy`."""
        phase = self._phase
        if not phase.words or self.is_frozen.is_set() or use != phase.use:
            return False
        self._is_near = self._is_near or phase.words in data
        if not self._is_near or (phase.arrives and b"COMMIT" not in data):
            return False
        self.freeze()
        return not phase.arrives


def marks() -> Sequence[str]:
    """What the operations have done, in all processes."""
    path = Path(os.environ["MARKS"])
    return path.read_text().splitlines() if path.exists() else ()


@asynccontextmanager
async def a_host(folder: Path, url: str, steps: Sequence[Any]) -> AsyncIterator[Process]:
    """A process that can be frozen, whose clients wait for it as long as it takes."""
    config = write_config(folder, steps, database=url, **OPERATIONS)
    async with started(config, folder / "data") as process:
        process.http.timeout = httpx2.Timeout(None)
        yield process


async def follow(http: httpx2.AsyncClient, received: list[str]) -> None:
    """Send a message, and collect what arrives until the connection ends."""
    with suppress(httpx2.TransportError):
        async with http.stream("POST", "/api/chat", json=ask("go")) as response:
            async for line in response.aiter_lines():
                received.append(line)  # noqa: PERF401 - others look at them while they come


async def use_until_frozen(
    process: Process, freezing: Freezing, phase: Phase, hosts: HostCluster, steps: Sequence[Any]
) -> tuple[list[str], asyncio.Task[Any]]:
    """Let a host come into the phase; what its client receives, and the client's last request."""
    received: list[str] = []
    if phase.words == b"run_":  # another host has the run, and is lost
        (lost,) = await hosts.open(1, steps=[NOTE, {**TEXT, "delay": 0.2}], **OPERATIONS)
        task: asyncio.Task[Any] = asyncio.create_task(follow(lost.http, []))
        await until(lambda: hosts.execute("SELECT 1 FROM parts WHERE body LIKE '%note it%'"))
        hosts.lose(lost)
    else:
        task = asyncio.create_task(follow(process.http, received))
    if steps[1] is SIGN:
        await task
        [approval] = (await process.http.get("/api/approvals")).json()["approvals"]
        answer = process.http.post(f"/api/approvals/{approval['id']}", json={"approved": True})
        task = asyncio.create_task(answer)
    if phase.during == "call":
        await until(lambda: "pay it" in marks())
        freezing.freeze()
    elif phase.during == "text":
        await until(lambda: any("word3" in line for line in received))
        freezing.freeze()
    await until(freezing.is_frozen.is_set)
    return received, task


async def taken_over(hosts: HostCluster, other: Served) -> dict[str, Any]:
    """The session's last message once the other host has fenced all, and its run has ended there."""
    await until(lambda: hosts.execute("SELECT id FROM hosts WHERE fenced_at IS NULL") == [(host_id(other),)])
    last = await poll(lambda: ended(other, "s"))
    await other.hub.meter.ledger.flush()
    await other.hub.store.flush()
    return last


@pytest.mark.parametrize("phase", rows(PHASES, quick=4), ids=lambda phase: phase.name)
async def test_a_host_that_freezes_in_any_phase_and_wakes_up_writes_and_tells_nothing(
    hosts: HostCluster,
    proxy: PostgresProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    phase: Phase,
) -> None:
    monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
    hold = tmp_path / "marks.held"
    if phase.during == "call":
        hold.touch()
    steps: list[dict[str, Any]] = [NOTE, SIGN if phase.use == "queue" else PAY, TEXT]
    slow = {**TEXT, "delay": 0.5 if phase.during == "text" else TEXT["delay"]}  # it must not end before
    async with a_host(tmp_path / "frozen", proxy.url, [*steps[:2], slow]) as process:
        freezing = Freezing(process, phase)
        proxy.on_send = freezing.on_send
        received, task = await use_until_frozen(process, freezing, phase, hosts, steps)
        (other,) = await hosts.open(1, steps=steps, **OPERATIONS)
        monkeypatch.setattr(membership, "FROZEN", 0.5)
        hold.unlink(missing_ok=True)
        last = await taken_over(hosts, other)
        before, made = contents(hosts), marks()
        proxy.flows.set()
        process.process.send_signal(signal.SIGCONT)
        assert await process.process.wait() == 75
        await asyncio.gather(task, return_exceptions=True)
    if steps[1] is not SIGN and not (phase.words == FINISHED and phase.arrives):
        assert "data: [DONE]" not in received, "it has not stored an end"
    assert contents(hosts) == before
    assert marks() == made
    assert len(set(made)) == len(made), "each call has effect once"
    assert await ended(other, "s") == last
    has_begun = phase.words != b"u-go" or phase.arrives
    texts = [part["text"] for part in last["parts"] if part["type"] == "text"]
    assert texts == (["".join(WORDS)] if has_begun else [])
