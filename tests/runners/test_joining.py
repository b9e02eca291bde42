"""A runner joins while something else happens to its sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman.runners.hub.server import RunnerRunHost
from dragoman.store.sessions.sessions import Session
from tests.runners.wire_runner import connected, new_session, opened
from tests.serving import Served, ask, frames_in, serving, text_of
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as hub:
        await new_session(hub)
        yield hub


class GatedRuns:
    """The runs of a hub, which let a runner join a session no sooner than its gate is opened."""

    def __init__(self, hub: Served, gated: str) -> None:
        assert hub.hub.runners.runs is not None
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        self.runs: RunnerRunHost = hub.hub.runners.runs
        self._gated = gated
        hub.hub.runners.runs = self

    async def claim(self, session: Session, *, key_id: str | None) -> None:
        await self.runs.claim(session, key_id=key_id)

    async def bring_here(self, session: Session) -> None:
        await self.runs.bring_here(session)
        if session.id.endswith(self._gated):
            self.reached.set()
            await self.opened.wait()


async def test_a_runner_that_joins_as_its_earlier_connection_ends_gets_the_next_prompt(hub: Served) -> None:
    async with connected(hub, "s") as earlier, opened(hub) as later:
        gate = GatedRuns(hub, "~s")
        await later.send({"type": "hello", "protocol": 1, "sessions": ["s"]})
        await gate.reached.wait()
        await earlier.drop()
        await until(lambda: len(hub.hub.runners.status()) == 1)
        gate.opened.set()
        await later.next("welcome")
        posted = asyncio.create_task(hub.http.post("/api/sessions/s/chat", json=ask("hi")))
        turn = await later.prompt()
        await turn.answer("here")
        assert text_of(frames_in((await posted).text)) == "here"


async def test_no_prompt_comes_before_the_welcome_of_a_runner_of_several_sessions(hub: Served) -> None:
    await new_session(hub, "t")
    gate = GatedRuns(hub, "~t")
    async with opened(hub) as runner:
        await runner.send({"type": "hello", "protocol": 1, "sessions": ["s", "t"]})
        await gate.reached.wait()
        posted = asyncio.create_task(hub.http.post("/api/sessions/s/chat", json=ask("hi")))
        await until(lambda: hub.hub.runs.active_count)
        gate.opened.set()
        turn = await runner.prompt()
        welcome = runner.arrived[0]
        assert welcome["type"] == "welcome"
        assert welcome["sessions"][0]["turnId"] == turn.prompt["turnId"]
        await turn.answer("after it")
        assert text_of(frames_in((await posted).text)) == "after it"


async def test_a_connection_that_is_let_in_late_does_not_replace_a_later_one(hub: Served) -> None:
    async with opened(hub) as earlier:
        gate = GatedRuns(hub, "~s")
        await earlier.send({"type": "hello", "protocol": 1, "sessions": ["s"]})
        await gate.reached.wait()
        hub.hub.runners.runs = gate.runs
        async with connected(hub, "s") as later:
            gate.opened.set()
            await until(lambda: earlier.closed.is_set() or later.closed.is_set())
            posted = asyncio.create_task(hub.http.post("/api/sessions/s/chat", json=ask("hi")))
            turn = await later.prompt()
            await turn.answer("here")
            assert text_of(frames_in((await posted).text)) == "here"
        assert "bye" not in {frame["type"] for frame in later.arrived}
