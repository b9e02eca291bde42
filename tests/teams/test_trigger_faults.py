"""Triggers whose host dies between two steps: what was begun is finished once, and nothing is left open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from dragoman.errors import Conflict
from dragoman.identity import LOCAL
from dragoman.store.teams.triggers import TriggerOccurrence, TriggerRecord
from tests.serving import usage
from tests.teams import gate
from tests.teams.team_hub import GATE_TOOLS, call, eventually, team_hub
from tests.teams.test_trigger_timer import HOUR, TimedHost, hosts, tick_to_end
from tests.teams.test_triggers import SCHEDULE, create, settled

MAX_WRITES = 40


class HostDied(BaseException):
    """The host is gone: no handler of the hub catches this."""


def die_after(host: TimedHost, writes: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Let a host die right after so many commits; return whether it has."""
    database, left = host.store.database, [writes]
    write: Callable[..., Awaitable[Any]] = database.write

    async def counted(*arguments: Any, **options: Any) -> Any:
        result = await write(*arguments, **options)
        left[0] -= 1
        if left[0] == 0:
            raise HostDied
        return result

    monkeypatch.setattr(database, "write", counted)
    return lambda: left[0] <= 0


async def go_on(host: TimedHost, trigger: TriggerRecord) -> list[TriggerOccurrence]:
    """Let another host of the database do what is due, beyond the lease of the one that died."""
    for _ in range(4):
        host.clock.passed += 31.0
        await tick_to_end(host)
    return await host.history(trigger)


@pytest.mark.promise("trigger-once")
@pytest.mark.parametrize(
    ("policy", "ends"),
    [
        ("replace", ["cancelled", "running"]),
        ("skip_then_replace", ["cancelled", "skipped", "running"]),
        ("confirm", ["running", "waiting"]),
    ],
)
async def test_an_overlap_is_finished_after_the_host_died_behind_any_commit_of_it(
    tmp_path: Path, policy: str, ends: list[str]
) -> None:
    for writes in range(1, MAX_WRITES):
        async with hosts(tmp_path / str(writes), 2) as [first, other]:
            fields: dict[str, Any] = {"type": "schedule", "cron": "0 * * * *", "overlap": policy}
            trigger = await first.create(**fields)
            for _ in ends[1:]:
                for host in (first, other):
                    host.clock.passed += HOUR
                await first.timer.tick()
            for host in (first, other):
                host.clock.passed += HOUR
            with pytest.MonkeyPatch.context() as patch:
                has_died = die_after(first, writes, patch)
                with suppress(HostDied):
                    await tick_to_end(first)
            other.clock.passed = first.clock.passed
            found = await go_on(other, trigger)
            assert [each.state for each in found] == ends, writes
            states = {}
            for each in found:
                task = await other.store.team_tasks.get(each.task_id or "")
                states[each.state] = None if task is None else task.is_active
            assert states == {state: {"running": True, "cancelled": False}.get(state) for state in ends}
            tasks = await other.store.team_tasks.list_page({"owner": LOCAL.owner}, limit=100)
            assert len(tasks) == len([each for each in found if each.task_id])
            requests = await other.store.approvals.list(owner=LOCAL.owner, status="pending")
            assert len(requests) == (policy == "confirm")
            if not has_died():
                return
    pytest.fail("an overlap has more commits than are tried")


async def test_a_host_that_is_late_does_not_undo_what_a_person_did_after_the_approval(tmp_path: Path) -> None:
    async with hosts(tmp_path, 2) as [first, late]:
        created = await first.create(type="schedule", cron="0 * * * *")
        pending = await first.service.update(created, {"task": "Other."}, agent="night")
        await first.store.approvals.answer(str(pending.approval_id), approved=True, by=LOCAL)
        [seen] = await late.store.triggers.list_for_approval()
        await first.service.apply_approvals()
        await first.service.disable(await first.store.triggers.get(created.id), "not today")
        with pytest.raises(Conflict):
            await late.service.enable(seen, by=LOCAL)
        stored = await first.store.triggers.get(created.id)
        assert (stored.state, stored.reason) == ("disabled", "not today")


async def test_an_answer_to_an_earlier_definition_leaves_the_request_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosts(tmp_path, 2) as [first, late]:
        created = await first.create(type="schedule", cron="0 * * * *")
        await first.service.update(created, {"task": "Other."}, agent="night")
        [seen] = await late.store.triggers.list_for_approval()
        await first.store.approvals.answer(str(seen.approval_id), approved=False, by=LOCAL)
        changed = await first.service.update(created, {"task": "A third."}, agent="night")
        monkeypatch.setattr(late.store.triggers, "list_for_approval", AsyncMock(return_value=[seen]))
        await late.service.apply_approvals()
        assert (await first.store.triggers.get(created.id)).approval_id == changed.approval_id
        await first.store.approvals.answer(str(changed.approval_id), approved=True, by=LOCAL)
        await first.service.apply_approvals()
        assert (await first.store.triggers.get(created.id)).state == "active"


async def test_enabling_an_active_trigger_again_loses_nothing_that_is_due(tmp_path: Path) -> None:
    async with hosts(tmp_path) as [host]:
        trigger = await host.create(type="schedule", cron="0 * * * *")
        host.clock.passed += HOUR
        await host.service.enable(await host.store.triggers.get(trigger.id), by=LOCAL)
        await tick_to_end(host)
        assert [each.state for each in await host.history(trigger)] == ["running"]


async def test_an_agent_that_creates_a_trigger_again_after_a_crash_has_a_person_asked(tmp_path: Path) -> None:
    wanted = {"name": "watch", "type": "schedule", "task": "Look.", "config": {"cron": "0 2 * * *"}}
    steps = [{"tools": [call("triggers_create", **wanted)]}, {"text": "Created."}]
    press = {"steps": steps, "allowed_tools": ["triggers.create"]}
    async with team_hub(tmp_path, {"press": press}) as hub:
        left = await create(hub, enable=False, **wanted)
        await hub.chat("watch it", session="s", agent="press")
        [trigger] = (await hub.http.get("/api/triggers")).json()["triggers"]
        [approval] = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
        assert (trigger["id"], trigger["approval"]) == (left["id"], approval["id"])


async def test_a_task_that_is_replaced_counts_in_its_window(tmp_path: Path) -> None:
    hold = {"tools": [call("gate_hold", name="door")], "usage": usage(100, 10)}
    press = {"steps": [hold, {"text": "Through."}], "allowed_tools": GATE_TOOLS}
    async with team_hub(tmp_path, {"press": press}) as hub:
        body: dict[str, Any] = {name: value for name, value in SCHEDULE.items() if name != "cron"}
        body |= {"type": "window", "during": "* * * * *", "tick": 3_600, "max_tokens": 200}
        trigger = (await hub.http.post("/api/triggers", json={**body, "overlap": "replace"})).json()
        for number in range(3):
            occurrence = TriggerOccurrence(
                trigger_id=trigger["id"], key=str(number), due_at=1.0, created_at=1.0 + number,
                next_at=1.0, period="p",
            )  # fmt: skip
            await hub.hub.store.triggers.fire_now(occurrence)
            hub.hub.triggers.service.wake()

            async def runs(count: int = number + 1) -> bool:
                return len(gate.callers["door"]) == count

            await eventually(runs)
        ended = await settled(hub, trigger, 2)
        assert [(each["state"], each["tokens"]) for each in ended] == [("cancelled", 110)] * 2
        gate.doors["door"].set()
        await settled(hub, trigger, 3)
        assert (await hub.messages("s"))[:1] == []
