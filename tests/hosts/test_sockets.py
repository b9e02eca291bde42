"""Sockets of a session at two hosts: an answer that one host makes is shown, and stopped, at the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import websockets

from dragoman.server.sessions.grant_revocation import SharedAccess
from tests.hosts.conftest import HostCluster
from tests.server.test_grants import SESSION, grant
from tests.server.test_session_owners import key_of
from tests.server.test_sockets import SocketClient, connected, create
from tests.waiting import until

DANGER = str(Path(__file__).parents[1] / "flows" / "approval_operation.py")
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


@pytest.mark.several_hosts
async def test_an_approval_that_one_host_asks_for_is_given_at_another(hosts: HostCluster) -> None:
    call = {"name": "danger_wipe", "input": {"disk": "a"}}
    steps: list[dict[str, Any]] = [{"tools": [call]}, {"text": "It is gone."}]
    first, second = await hosts.open(2, steps=steps, operations=[DANGER], pinned=["danger.wipe"])
    await create(first)
    async with connected(first) as client, connected(second) as other:
        await client.until("init")
        await other.until("init")
        await client.send("prompt", text="wipe it")
        approval = (await other.until("approval.requested"))[-1]["approval"]
        await other.send("answer", approvalId=approval["id"], approved=True)
        for each in (client, other):
            await each.until("approval.answered")
            frames = await each.until("message.updated")
            while text_of_message(frames[-1]) != "It is gone.":
                frames = await each.until("message.updated")


def text_of_message(frame: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in frame["message"]["parts"])


async def people_of(client: SocketClient) -> dict[str, int]:
    [init] = await client.until("init")
    return {each["owner"]: each["sockets"] for each in init["people"]}


@pytest.mark.usefixtures("quick_ticks")
async def test_who_is_there_is_shown_at_every_host_and_nobody_is_left_over_when_one_dies(
    hosts: HostCluster,
) -> None:
    first, second, third = await hosts.open(3, keys=True)
    ann, bob, eve = [await key_of(first, name) for name in ("ann", "bob", "eve")]
    await create(first, ann)
    for name in ("bob", "eve"):
        await grant(first, ann, "read", owner=name)
    async with connected(first, **ann) as anns:
        assert await people_of(anns) == {"ann": 1}
        async with connected(second, SESSION, **bob) as bobs:
            assert await people_of(bobs) == {"ann": 1, "bob": 1}
            assert (await anns.until("user.joined"))[-1]["data"] == {"owner": "bob"}
            async with connected(third, **ann) as again:
                assert await people_of(again) == {"ann": 2, "bob": 1}
            async with connected(third, SESSION, **eve) as eves:
                await eves.until("init")
                for client in (anns, bobs):
                    [joined] = [
                        frame
                        for frame in await client.until("user.joined")
                        if frame["type"].startswith("user.")
                    ]
                    assert joined["data"] == {"owner": "eve"}
                hosts.lose(third)
                for client in (anns, bobs):
                    assert (await client.until("user.left"))[-1]["data"] == {"owner": "eve"}
        assert (await anns.until("user.left"))[-1]["data"] == {"owner": "bob"}
    await until(lambda: not hosts.execute("SELECT * FROM session_people"))


async def test_a_grant_that_is_revoked_at_one_host_ends_the_socket_at_another(
    hosts: HostCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SharedAccess.__init__, "__kwdefaults__", {"interval": 3600.0})
    first, second = await hosts.open(2, keys=True)
    ann, bob = await key_of(first, "ann"), await key_of(first, "bob")
    await create(first, ann)
    await grant(first, ann, "read", owner="bob")
    async with connected(second, SESSION, **bob) as client:
        await client.until("init")
        gone = await first.http.delete(f"/api/sessions/{SESSION}/grants?owner=bob", headers=ann)
        assert gone.status_code == 204
        assert (await client.until("error"))[-1]["error"]["message"].endswith("shared with you")
        with pytest.raises(websockets.ConnectionClosed):
            await client.until("never")
