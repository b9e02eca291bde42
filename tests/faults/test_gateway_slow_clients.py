"""Clients that do not read: back-pressure, bounded memory, others are served."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import msgspec
import pytest

from tests.effort import rounds
from tests.faults.gateway_upstream import (
    DEADLINE,
    END,
    TEXT,
    Baseline,
    Client,
    House,
    Speech,
    Way,
    ask,
    begun,
    complete,
    house,
)
from tests.faults.soak import resident
from tests.providers.servers import Peer, chunk

CLIENTS = rounds(quick=20, thorough=50)
EACH = 4.0  # megabytes that a slow reader may cost, those of the test's own ends included
LONG = b"~" * 20_000  # so that what is measured is bytes, not frames
MANY = 2_000
SMALL = 16_384  # bytes that the system keeps, so that this is not what is measured
WAYS = [Way("openai", "openai"), Way("anthropic", "openai")]
IDLE = 1.0  # seconds


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def long(speech: Speech) -> bytes:
    """A long piece of text."""
    return speech.text.replace(TEXT.encode(), LONG)


class Hose:
    """An upstream that talks to the model `endless` as fast as it can, and to any other as usual."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self.sent = 0

    async def script(self, peer: Peer) -> None:
        """See `Script`."""
        speech = self._way.speech
        received = await peer.request()
        if msgspec.json.decode(received.body)["model"] != "endless":
            await peer.send(complete(speech.stream))
            return
        end: socket.socket = peer.writer.get_extra_info("socket")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        await peer.send(begun(speech.opening))
        piece = chunk(long(speech))
        while True:
            await peer.send(piece)
            self.sent += len(piece)
            await asyncio.sleep(0)  # the hub runs on this loop too

    async def pending(self, it: House) -> None:
        """Wait until nothing more is taken, while others are served."""
        async with asyncio.timeout(DEADLINE):
            before = -1
            while before != self.sent:
                before = self.sent
                for _ in range(20):
                    response = await it.post(self._way, stream=True, model="up/usual")
                    assert response.content.endswith(b"\n\n")
                    assert b"hello" in response.content


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_clients_that_read_nothing_cost_bounded_memory_and_delay_no_others(
    tmp_path: Path, way: Way
) -> None:
    hose = Hose(way)
    async with house(tmp_path, way.family, hose.script) as it:
        assert (await it.post(way, stream=True, model="up/usual")).status_code == 200
        baseline, memory = Baseline.now(), resident()
        clients = [
            await Client.ask(it.url, way.path, ask(stream=True, model="up/endless")) for _ in range(CLIENTS)
        ]
        for client in clients:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a stream's transport can
        await hose.pending(it)
        grown = resident() - memory
        print(f"{way}: {grown:.1f} MB for {CLIENTS} clients, {hose.sent / 1e6:.1f} MB sent")
        assert grown < EACH * CLIENTS
        assert it.hub.gateway.active == CLIENTS
        for client in clients:
            client.leave()
        await baseline.back()
        assert it.hub.gateway.active == 0
        rows = await it.rows(CLIENTS + 1)
        assert [row.status for row in rows].count("aborted") == CLIENTS


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_client_that_reads_late_gets_all(tmp_path: Path, way: Way) -> None:
    """More than all buffers on the way hold; and silence of the client's own making does not time out."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(begun(way.speech.opening))
        for _ in range(MANY):
            await peer.send(chunk(long(way.speech)))
        await peer.send(chunk(way.speech.finish + way.speech.usage + way.speech.ending) + END)

    async with house(tmp_path, way.family, script, idle_timeout=IDLE) as it:
        client = await Client.ask(it.url, way.path, ask(stream=True), {"connection": "close"})
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a stream's transport can
        await asyncio.sleep(2 * IDLE)  # what is waited for is that time passes
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]  # a stream's transport can
        raw = await client.rest()
        assert raw.count(b"~") == MANY * len(LONG)
        assert (await it.row()).status == "finished"
