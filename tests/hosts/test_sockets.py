"""Sockets of a session at two hosts: an answer that one host makes is shown, and stopped, at the other."""

from __future__ import annotations

from typing import Any

from tests.hosts.conftest import HostCluster
from tests.server.test_sockets import connected, create

SLOW: list[dict[str, Any]] = [{"text": "word " * 400, "delay": 0.01}]


async def test_a_socket_at_another_host_shows_the_answer_and_stops_it(hosts: HostCluster) -> None:
    first, second = await hosts.open(2, steps=SLOW)
    await create(first)
    async with connected(first) as client, connected(second) as other:
        await client.until("init")
        await other.until("init")
        await client.send("prompt", text="hi")
        await other.until("chunk")
        await other.send("abort")
        assert (await other.until("done"))[-1]["stopped"] is True
        ended = [frame for frame in await client.until("message.updated") if frame["type"] == "status"]
        assert ended[-1]["data"]["status"] == "stopped"
