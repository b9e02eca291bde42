"""Events of sessions where several hosts share a Postgres: followed at any of them, resumed at another."""

from __future__ import annotations

import asyncio

from dragoman.hub_events.event_filter import EventFilter
from dragoman.store.hub_events import EventPosition, NewEvent
from tests.effort import rounds
from tests.hosts.conftest import HostCluster
from tests.server.test_events import following, names
from tests.waiting import LIMIT

WRITES = rounds(quick=60, thorough=600)


async def test_an_event_is_followed_at_one_host_and_resumed_at_another(hosts: HostCluster) -> None:
    first, second = await hosts.open(2)
    async with following(second) as events:
        await first.chat("hi")
        found = await events.until("run.ended")
        assert names(found) == ["session.created", "message", "run.started", "run.ended"]
        begun = next(event["id"] for event in found if event["name"] == "run.started")
    async with following(first, f"?after={begun}&name=run.") as events:
        assert names(await events.until("run.ended")) == ["run.ended"]


async def test_a_follower_gets_every_event_of_hosts_that_write_at_once(hosts: HostCluster) -> None:
    opened = await hosts.open(2)
    log = opened[0].hub._services.events
    wanted = EventFilter(names=("data-",))
    found: list[str] = []

    async def write(host: int, count: int) -> None:
        for number in range(count):
            event = NewEvent(name=f"data-{host}-{number}", owner="local")
            await opened[host].hub.store.events.submit(event)

    async with log.follow(wanted, caller="local", after=EventPosition()) as follower:
        writing = asyncio.gather(write(0, WRITES), write(1, WRITES))
        async with asyncio.timeout(LIMIT):
            while len(found) < 2 * WRITES:
                found += [event.name for event in await follower.next() or ()]
        await writing
    for host in (0, 1):
        of_host = [name for name in found if name.startswith(f"data-{host}-")]
        assert of_host == [f"data-{host}-{number}" for number in range(WRITES)]
