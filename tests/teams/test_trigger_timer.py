"""The timer of triggers: each occurrence fires once, with several hosts and whatever the clock does."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from dragoman.errors import Conflict, Unavailable
from dragoman.identity import LOCAL, Identity
from dragoman.store.store import Store
from dragoman.store.teams.task_records import TaskEnd, TaskSubmission, TeamTask
from dragoman.store.teams.trigger_records import OccurrenceEnding, TriggerOccurrence, TriggerRecord
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.schedule import MAX_CATCH_UP, find_zone, occurrence_key, occurrences_after
from dragoman.teams.spec import TeamFile
from dragoman.teams.tasks.new_task import NewTask, make_task, task_session
from dragoman.teams.tasks.service import TeamTasks
from dragoman.teams.trigger_spec import parse_definition
from dragoman.teams.triggers.occurrence_lifecycle import TriggerFiring
from dragoman.teams.triggers.service import NewTrigger, TriggerService
from dragoman.teams.triggers.timer import TriggerTimer
from tests.databases import BACKENDS
from tests.effort import rounds
from tests.loop_lag import MOST, best_lag

TEAM = TeamFile(description="night")
START = 1_790_000_000.0
HOUR = 3_600.0


class HostClock:
    """The clock of a host, which may be set; the time that really passes is the same at all hosts."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.offset = START

    def __call__(self) -> float:
        return self.passed + self.offset

    def monotonic(self) -> float:
        """The time that passed."""
        return self.passed


class StoredTasks:
    """Tasks that are stored and never run; the first `failures` of them cannot be handed in."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.submitted = 0
        self.failures = 0

    async def submit(self, new: NewTask, identity: Identity) -> TaskSubmission:
        """Store a task, unless the key of its occurrence has one."""
        if self.failures:
            self.failures -= 1
            raise Unavailable("the hub is stopping")
        self.submitted += 1
        task = make_task(new, identity, context=None, now=self._store.triggers.now())
        return await self._store.team_tasks.submit(task, session=task_session(task), max_waiting=100_000)

    async def cancel(self, id: str, identity: Identity, *, reason: str) -> None:
        """End a task, of which nothing runs."""
        task = await self._store.team_tasks.get(id)
        assert task is not None
        await self._store.team_tasks.end(task, TaskEnd(state="cancelled", error=reason))


class TimedHost:
    """A host without anything but its triggers."""

    def __init__(self, store: Store, clock: HostClock, teams: TeamRegistry) -> None:
        self.store, self.clock = store, clock
        self.tasks = StoredTasks(store)
        self.service = TriggerService(store, teams)
        firing = TriggerFiring(self.service, cast(TeamTasks, self.tasks), write_usage=store.flush)
        self.timer = TriggerTimer(self.service, firing, monotonic=clock.monotonic)

    async def create(self, name: str = "t", **fields: Any) -> TriggerRecord:
        """Create an active trigger."""
        definition = parse_definition({"task": "Look.", "deliver": "none", "overlap": "allow", **fields})
        new = NewTrigger(team="night", name=name, definition=definition)
        return await self.service.enable(await self.service.create(new, identity=LOCAL), by=LOCAL)

    async def history(self, trigger: TriggerRecord) -> list[TriggerOccurrence]:
        """What a trigger fired, oldest first."""
        return list(await self.store.triggers.history(trigger.id, limit=500))[::-1]


@asynccontextmanager
async def hosts(folder: Path, count: int = 1) -> AsyncIterator[list[TimedHost]]:
    """Hosts with one database, each with a clock of its own."""
    team = folder / "teams" / "night"
    team.mkdir(parents=True, exist_ok=True)
    (team / "team.yaml").write_text("description: night\n")
    teams = TeamRegistry(folder / "teams", lambda _: TEAM)
    teams.load()
    async with AsyncExitStack() as stack:
        found = []
        for number in range(count):
            clock = HostClock()
            store = await Store.open(folder / "hub", exclusive=number == 0, clock=clock)
            await stack.enter_async_context(store)
            found.append(TimedHost(store, clock, teams))
        yield found


def moments(occurrences: list[TriggerOccurrence]) -> list[float]:
    return [each.due_at - START for each in occurrences]


@pytest.mark.promise("trigger-once")
@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_each_occurrence_gives_one_task_with_two_hosts_and_clocks_that_jump(tmp_path: Path) -> None:
    dice = random.Random(7)
    async with hosts(tmp_path, 2) as both:
        triggers = [
            await both[0].create(f"t{n}", type="schedule", cron=f"{n * 5} * * * *", missed=missed)
            for n, missed in enumerate(["once", "all"] * 5)
        ]
        for _ in range(rounds(quick=15, thorough=300)):
            for host in both:
                host.clock.passed += 600.0
                if dice.random() < 0.3:
                    host.clock.offset = START + dice.choice((-5_000.0, -700.0, 0.0, 900.0, 9_000.0))
                host.tasks.failures = dice.choice((0, 0, 3))
            await asyncio.gather(*(tick(host) for host in dice.sample(both, dice.choice((1, 2)))))
        for host in both:
            host.clock.offset, host.tasks.failures = START, 0
            host.clock.passed += 10_000.0
            await tick_to_end(host)
        tasks = await both[0].store.team_tasks.list_page({"owner": LOCAL.owner}, limit=100_000)
        fired = [(each, host) for each in triggers for host in await both[0].history(each)]
        assert Counter(task.dedup_key for task in tasks).most_common(1)[0][1] == 1
        assert {task.dedup_key for task in tasks} == {f"{each.id} {one.key}" for each, one in fired}
        assert {one.state for _, one in fired} == {"running"}
        for trigger in triggers[1::2]:  # those that miss nothing
            minute = int(trigger.name[1:]) * 5
            times = occurrences_after(f"{minute} * * * *", START, zone=find_zone("UTC"))
            keys = {one.key for each, one in fired if each.id == trigger.id}
            expected = []
            for at in times:
                if at > both[0].clock() - HOUR:
                    break
                expected.append(occurrence_key(at))
            assert set(expected) <= keys


async def tick_to_end(host: TimedHost) -> None:
    """Let a host do all that is due."""
    await tick(host)
    while await host.store.triggers.list_open(host.clock()):
        await tick(host)


async def tick(host: TimedHost) -> None:
    """Let a host look once; what it could not do is left."""
    try:
        await host.timer.tick()
    except Unavailable:
        return


async def test_what_is_activated_is_what_a_person_has_seen(tmp_path: Path) -> None:
    async with hosts(tmp_path) as [host]:
        seen = await host.create(type="schedule", cron="0 * * * *")
        changed = await host.service.update(seen, {"task": "Something else."})
        with pytest.raises(Conflict):
            await host.service.enable(seen, by=LOCAL)
        assert (await host.store.triggers.get(seen.id)).state == "pending"
        assert (await host.service.enable(changed, by=LOCAL)).state == "active"


async def test_a_trigger_that_cannot_be_activated_or_fired_does_not_stop_the_others(tmp_path: Path) -> None:
    async with hosts(tmp_path) as [host]:
        for name, changes in {
            "no approval": {"state": "pending", "approval_id": "apr_gone"},
            "no zone": {"body": '{"type":"schedule","task":"x","config":{"cron":"0 * * * *","zone":"Mars"}}'},
        }.items():
            broken = await host.create(name.replace(" ", "-"), type="schedule", cron="0 * * * *")
            await host.store.triggers.update(broken.id, **changes)
        trigger = await host.create(type="schedule", cron="0 * * * *")
        host.clock.passed = HOUR
        await host.timer.tick()
        assert len(await host.history(trigger)) == 1


async def test_a_hub_that_was_down_fires_once_and_says_how_much_was_missed(tmp_path: Path) -> None:
    async with hosts(tmp_path) as [host]:
        trigger = await host.create(type="schedule", cron="0 * * * *")
        host.clock.passed = 5 * HOUR
        await host.timer.tick()
        [fired] = await host.history(trigger)
        assert '"missedCount":5' in fired.input
        await host.timer.tick()
        assert len(await host.history(trigger)) == 1


async def test_a_year_of_missed_minutes_fires_the_last_ones_and_does_not_hold_the_event_loop(
    tmp_path: Path,
) -> None:
    async with hosts(tmp_path) as [host]:
        trigger = await host.create(type="schedule", cron="* * * * *", missed="all")

        async def return_after_a_year() -> None:
            host.clock.passed += 365 * 24 * HOUR
            await host.timer.tick()

        _, lag = await best_lag(return_after_a_year)
        last = (await host.history(trigger))[-MAX_CATCH_UP:]
        passed = [host.clock() - each.due_at for each in last]
        assert (max(passed) < 60 * MAX_CATCH_UP, min(passed) < 60, len(set(passed))) == (True, True, 100)
        assert lag <= MOST


async def test_a_clock_that_was_set_a_year_ahead_does_not_stop_a_trigger_for_a_year(tmp_path: Path) -> None:
    async with hosts(tmp_path) as [host]:
        trigger = await host.create(type="schedule", cron="0 * * * *")
        await host.timer.tick()
        host.clock.offset += 365 * 24 * HOUR
        await host.timer.tick()
        host.clock.offset -= 365 * 24 * HOUR
        await host.timer.tick()
        host.clock.passed += HOUR
        await host.timer.tick()
        assert len(await host.history(trigger)) == 2
        assert 0 < (await host.store.triggers.get(trigger.id)).next_at - host.clock() <= HOUR  # type: ignore[operator]


async def test_a_clock_that_was_set_back_delays_no_occurrence_that_is_open(tmp_path: Path) -> None:
    async with hosts(tmp_path) as [host]:
        await host.create(type="schedule", cron="0 * * * *")
        await host.timer.tick()
        host.clock.offset += 365 * 24 * HOUR
        await tick_to_end(host)
        assert await host.store.triggers.list_open(host.clock() + HOUR)
        host.clock.offset -= 365 * 24 * HOUR
        assert not await host.store.triggers.list_open(host.clock() + HOUR)
        await host.timer.tick()
        assert await host.store.triggers.list_open(host.clock() + HOUR)


async def test_what_fired_is_known_after_the_clock_was_a_year_ahead_and_back(tmp_path: Path) -> None:
    async with hosts(tmp_path) as [host]:
        trigger = await host.create(type="schedule", cron="0 * * * *")
        host.clock.passed += HOUR
        await tick_to_end(host)
        [fired] = await host.history(trigger)
        ending = OccurrenceEnding(state="done", ended_at=host.clock())
        await host.store.triggers.settle(fired, ending, threshold=None)
        host.clock.passed += 25 * HOUR
        host.clock.offset += 365 * 24 * HOUR
        await host.timer.tick()
        host.clock.offset -= 365 * 24 * HOUR
        assert fired.key in {each.key for each in await host.history(trigger)}
        host.clock.passed += 91 * 24 * HOUR
        await host.timer.tick()
        assert fired.key not in {each.key for each in await host.history(trigger)}


async def test_an_occurrence_whose_host_ended_before_its_task_was_handed_in_is_taken_up(
    tmp_path: Path,
) -> None:
    async with hosts(tmp_path) as [host]:
        trigger = await host.create(type="schedule", cron="0 * * * *")
        host.clock.passed = HOUR
        host.tasks.failures = 1
        await tick(host)
        assert [each.state for each in await host.history(trigger)] == ["starting"]
        await host.timer.tick()
        assert host.tasks.submitted == 0  # another host may be about to
        host.clock.passed += 31.0
        await host.timer.tick()
        assert [each.state for each in await host.history(trigger)] == ["running"]
        assert host.tasks.submitted == 1


async def test_a_window_ticks_within_its_limits_and_goes_on_in_the_next(tmp_path: Path) -> None:
    async with hosts(tmp_path) as [host]:
        fields: dict[str, Any] = {"type": "window", "during": "* 9-10 * * *", "tick": "10m", "max_ticks": 3}
        trigger = await host.create(**fields)
        for _ in range(300):
            host.clock.passed += 600.0
            await host.timer.tick()
        fired = await host.history(trigger)
        by_window = Counter((each.period, each.state) for each in fired)
        windows = sorted({str(each.period) for each in fired})
        assert len(windows) == 2
        assert by_window == {
            (window, state): count for window in windows for state, count in (("running", 3), ("skipped", 1))
        }
        assert all(each.key.startswith(f"{each.period}#") for each in fired)


async def test_the_tokens_and_the_money_of_a_window_are_enforced(tmp_path: Path) -> None:
    async with hosts(tmp_path) as [host]:
        fields: dict[str, Any] = {"type": "window", "during": "* * * * *", "tick": 60, "max_usd": 1.0}
        fields["max_tokens"] = 100
        trigger = await host.create(budget=0.6, **fields)

        async def tick_once() -> TriggerOccurrence:
            host.clock.passed += 60.0
            await host.timer.tick()
            return (await host.history(trigger))[-1]

        async def budget(occurrence: TriggerOccurrence) -> float | None:
            task = await host.store.team_tasks.get(str(occurrence.task_id))
            return cast(TeamTask, task).budget

        async def end(occurrence: TriggerOccurrence, *, cost: float, tokens: int) -> None:
            assert await host.store.triggers.change(
                occurrence, state="done", cost=cost, tokens=tokens, ended_at=1.0, next_at=None
            )

        first = await tick_once()
        assert (first.state, first.usd_limit, await budget(first)) == ("running", 1.0, 0.6)
        await end(first, cost=0.7, tokens=50)
        second = await tick_once()
        assert second.state == "running"
        assert await budget(second) == pytest.approx(0.3)
        await end(second, cost=0.1, tokens=50)
        third = await tick_once()
        assert (third.state, third.error) == ("skipped", "the window has used its 100 tokens")
        for _ in range(5):
            assert (await tick_once()).key == third.key  # it rests until the next window


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("deleted", "has expired or was revoked"),
        ("revoked", "has expired or was revoked"),
        ("narrowed", "may no longer chat"),
    ],
)
async def test_a_trigger_whose_key_lost_its_rights_is_disabled(
    tmp_path: Path, change: str, reason: str
) -> None:
    async with hosts(tmp_path) as [host]:
        keys = host.store.keys
        key, _ = await keys.create("ann", scopes=["chat"])
        trigger = await host.create(type="schedule", cron="0 * * * *")
        await host.store.triggers.update(
            trigger.id, key_id="key_gone" if change == "deleted" else key.id, owner="ann"
        )
        if change == "revoked":
            await keys.revoke(key.id)
        elif change == "narrowed":
            await keys.update(key.id, scopes=frozenset({"spoke"}))
        host.clock.passed = HOUR
        await host.timer.tick()
        stored = await host.store.triggers.get(trigger.id)
        assert stored.state == "disabled"
        assert reason in str(stored.reason)
        [fired] = await host.history(trigger)
        assert fired.state == "failed"
        assert host.tasks.submitted == 0


async def test_a_trigger_that_was_disabled_meanwhile_fires_nothing(tmp_path: Path) -> None:
    async with hosts(tmp_path) as [host]:
        trigger = await host.create(type="schedule", cron="0 * * * *")
        host.clock.passed = HOUR
        seen = await host.store.triggers.get(trigger.id)
        await host.service.disable(seen, "holiday")
        await host.timer._fire(seen)
        await host.timer.tick()
        assert await host.history(trigger) == []
        await host.service.enable(replace(seen, state="disabled"), by=LOCAL)
        await host.timer.tick()
        assert await host.history(trigger) == []  # what was due while it was disabled was not missed
