"""A task that ends before its time: whoever ends it, and wherever a crash comes in, all below it ends too."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from dragoman.identity import LOCAL
from dragoman.session_ids import client_session_id
from dragoman.store.teams.task_records import TaskEnd, TeamTask
from dragoman.teams.tasks import worker
from dragoman.teams.tasks.delivery import ResultDelivery
from tests.serving import Served
from tests.teams import gate
from tests.teams.team_hub import (
    GATE_TOOLS,
    Json,
    call,
    ended,
    eventually,
    give,
    read,
    team_hub,
    until_delivered,
    until_state,
)

YEAR = 31_536_000.0
DELEGATE = call("teams_delegate", team="press", task="Write it down.", overlap="allow")
MAIN: Json = {"members": ["press"], "wake": True, "allowed_tools": ["teams.delegate", *GATE_TOOLS]}
HOLD: Json = {
    "allowed_tools": GATE_TOOLS,
    "steps": [{"tools": [call("gate_hold", name="door")]}, {"text": "Written."}],
}


@pytest.fixture(autouse=True)
def quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SWEEP_INTERVAL", 0.05)


async def below(hub: Served, task: TeamTask) -> TeamTask:
    """The task that another one has given."""
    [child] = await hub.hub.team_tasks.list_below(task.session_id)
    return child


async def test_a_task_ends_in_the_time_that_it_had_left_when_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As seen from the clock, the machine has run for a year more when it is set a year back."""
    uptime, more = time.clock_gettime, [0.0]
    monkeypatch.setattr(time, "clock_gettime", lambda clock: uptime(clock) + more[0])
    async with team_hub(tmp_path, {"press": HOLD}) as hub:
        soon, later = [
            await give(hub, "press", text, deadline=time.time() + YEAR + seconds)
            for text, seconds in (("soon", 1_000.0), ("later", 1_000_000.0))
        ]
        await eventually(lambda: gate.callers["door"])
        more[0] = YEAR
        await hub.hub.team_tasks.worker.sweep()
        assert (await read(hub, soon.id)).is_active
        more[0] = YEAR + 2_000.0
        [end] = await ended(hub, soon.id)
        assert (end.state, end.error) == ("failed", "its deadline is over")
        assert (await read(hub, later.id)).is_active


@pytest.mark.promise("stop-reaches-everything")
@pytest.mark.parametrize("cause", ["cancelled", "replaced", "cancelled by a host that died"])
async def test_what_a_task_that_waits_has_given_ends_with_it(tmp_path: Path, cause: str) -> None:
    main = {**MAIN, "steps": [{"tools": [DELEGATE]}, {"text": "Given."}], "play": "turns"}
    async with team_hub(tmp_path, {"main": main, "press": HOLD}) as hub:
        task = await give(hub, "main")
        await eventually(lambda: gate.callers["door"])
        await until_state(hub, task.id, "waiting")
        child = await below(hub, task)
        if cause == "replaced":
            await hub.hub.team_tasks.pause("main", by=LOCAL)
            await give(hub, "main", overlap="replace")
        elif cause == "cancelled":
            await hub.hub.team_tasks.cancel(task.id, LOCAL, reason="no more")
        else:
            await hub.hub.store.team_tasks.end(task, TaskEnd(state="cancelled", error="no more"))
        [over] = await ended(hub, child.id)
        assert (over.state, over.error) == ("cancelled", worker.ABOVE_STOPPED)
        await eventually(lambda: gate.stopped == ["door"])
        assert len(await hub.hub.store.runs.list(task.session_id)) == 1


async def test_a_task_whose_run_ends_before_its_end_is_written_says_that_it_was_stopped_above(
    tmp_path: Path,
) -> None:
    main = {**MAIN, "steps": [{"tools": [DELEGATE]}, {"text": "Given."}], "play": "turns"}
    async with team_hub(tmp_path, {"main": main, "press": HOLD}) as hub:
        task = await give(hub, "main")
        await eventually(lambda: gate.callers["door"])
        child = await below(hub, task)
        hub.hub.team_tasks.worker._stop_below(task.session_id, None)
        [over] = await ended(hub, child.id)
        assert (over.state, over.error) == ("cancelled", worker.ABOVE_STOPPED)


@pytest.mark.parametrize("order", ["queued before the end", "delivered after the end"])
async def test_a_result_wakes_no_agent_whose_task_was_cancelled(tmp_path: Path, order: str) -> None:
    steps = [{"tools": [DELEGATE]}, {"tools": [call("gate_hold", name="main")]}, {"text": "?"}]
    async with team_hub(tmp_path, {"main": {**MAIN, "steps": steps}, "press": {}}) as hub:
        store = hub.hub.store
        if order == "delivered after the end":
            hub.hub.team_tasks.worker.delivery.deliver_to = AsyncMock()  # type: ignore[method-assign]
        task = await give(hub, "main")
        await eventually(lambda: gate.callers["main"])
        [child] = await store.team_tasks.list_page({"team": "press"})
        await (until_delivered if order == "queued before the end" else ended)(hub, child.id)
        await hub.hub.team_tasks.cancel(task.id, LOCAL, reason="no more")
        if order == "delivered after the end":
            await ResultDelivery.deliver_to(hub.hub.team_tasks.worker.delivery, task.session_id)
        await eventually(lambda: gate.stopped == ["main"])
        await hub.chat("Go on.", session=client_session_id(task.session_id), agent="press")
        runs = await store.runs.list(task.session_id)
        assert [run.agent for run in runs] == ["main", "press"]
        assert await store.queued_runs.first(task.session_id) is None


async def test_a_caller_that_no_longer_waits_for_a_task_leaves_nothing_behind(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": HOLD}) as hub:
        task_worker = hub.hub.team_tasks.worker
        waiting = asyncio.create_task(task_worker.wait_for_end("task_of_another_host", seconds=60))
        await eventually(lambda: task_worker._ends)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert task_worker._ends == {}
