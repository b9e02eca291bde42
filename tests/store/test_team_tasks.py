"""The tasks of teams in the store: one run for each, in order, beside no other like it, delivered once."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.errors import Conflict, LimitReached
from dragoman.events import Usage
from dragoman.store.hosts.queued_runs import QueueLimits
from dragoman.store.sessions.run_ends import RunEnding
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.store.teams.task_records import (
    TASK_RANKS,
    Overlap,
    TaskEnd,
    TaskOverlaps,
    TaskPriority,
    TaskSubmission,
    TeamTask,
)
from dragoman.store.teams.team_tasks import MAX_QUESTIONS
from dragoman.teams.tasks.worker import JoinedEnd
from dragoman.usage_record import UsageRecord
from tests.store.conftest import Clock
from tests.store.samples import FINISHED, assistant, queued, run, user

DONE = TaskEnd(state="done", result="42")


def task(id: str = "t", **fields: Any) -> TeamTask:
    return TeamTask(
        **{
            "id": id,
            "owner": "o",
            "team": "press",
            "text": "write",
            "hash": "h",
            "session_id": f"s-{id}",
            "created_at": 1.0,
            **fields,
        }
    )


def prioritised(wanted: TeamTask, priority: TaskPriority) -> TeamTask:
    return replace(wanted, priority=priority, rank=TASK_RANKS[priority])


async def submit(store: Store, wanted: TeamTask, *, max_waiting: int = 10) -> TaskSubmission:
    session = Session(id=wanted.session_id, owner=wanted.owner, created_at=1.0, updated_at=1.0)
    return await store.team_tasks.submit(wanted, session=session, max_waiting=max_waiting)


async def begin(store: Store, wanted: TeamTask, *, concurrency: int = 5) -> None:
    """Begin the run of a task as its service does: both in one transaction."""
    await store.runs.create(
        run(f"run-{wanted.id}", session_id=wanted.session_id, message_id=f"a-{wanted.id}"),
        assistant=assistant(f"a-{wanted.id}"),
        user=user(f"u-{wanted.id}", wanted.text),
        extra_job=store.team_tasks.claim_job(wanted, run_id=f"run-{wanted.id}", concurrency=concurrency),
    )


async def stored(store: Store, id: str = "t") -> TeamTask:
    found = await store.team_tasks.get(id)
    assert found is not None
    return found


async def state(store: Store, id: str = "t") -> str:
    found = await store.team_tasks.get(id)
    assert found is not None
    return found.state


async def test_a_task_is_stored_as_it_was_handed_in(store: Store) -> None:
    wanted = prioritised(
        task(
            chain=("main", "press"),
            read_only=True,
            detached=True,
            wake=True,
            deliver="session",
            budget=0.5,
            deadline=9.0,
            dedup_key="k",
            correlation_id="c",
            source="call",
            source_session="s",
            source_message="m",
            parent_call="call_1",
        ),
        "high",
    )
    assert (await submit(store, wanted)).is_new
    assert await store.team_tasks.get("t") == wanted
    assert await store.team_tasks.find_of_session("s-t") == wanted
    assert await store.sessions.get("s-t") is not None


async def test_a_key_stands_for_one_task_of_its_owner(store: Store) -> None:
    first = await submit(store, task("a", dedup_key="k"))
    second = await submit(store, task("b", dedup_key="k"))
    other = await submit(store, task("c", dedup_key="k", owner="p"))
    assert (first.task.id, second.task.id, other.task.id) == ("a", "a", "c")
    assert (first.is_new, second.is_new, other.is_new) == (True, False, True)


async def test_of_tasks_handed_in_at_once_with_one_key_one_is_there(store: Store) -> None:
    handed_in = await asyncio.gather(*(submit(store, task(f"t{at}", dedup_key="k")) for at in range(10)))
    assert sum(each.is_new for each in handed_in) == 1
    assert len({each.task.id for each in handed_in}) == 1


@pytest.mark.parametrize("there", ["nothing", "queued", "running", "waiting", "ended"])
@pytest.mark.parametrize("overlap", ["allow", "skip", "queue", "replace", "confirm"])
async def test_overlap_decides_by_what_is_active(store: Store, there: str, overlap: Overlap) -> None:
    if there != "nothing":
        await submit(store, task("first"))
    if there in ("running", "waiting", "ended"):
        await begin(store, task("first"))
    if there == "waiting":
        await store.team_tasks.move("first", "waiting", run_id="run-first")
    if there == "ended":
        await store.team_tasks.end(await stored(store, "first"), DONE)
    is_active = there in ("queued", "running", "waiting")
    second = task("second", overlap=overlap, created_at=2.0)
    if overlap == "confirm" and is_active:
        with pytest.raises(TaskOverlaps, match="first"):
            await submit(store, second)
        return
    submitted = await submit(store, second)
    assert submitted.is_new is not (overlap == "skip" and is_active)
    assert submitted.task.id == ("first" if overlap == "skip" and is_active else "second")
    replaced = ["first"] if overlap == "replace" and is_active else []
    assert [each.id for each in submitted.replaced] == replaced
    ready = [each.id for each in await store.team_tasks.list_ready("press", limit=9)]
    waits = overlap == "queue" and is_active
    assert ("second" in ready) is (submitted.is_new and not waits)
    if replaced:
        assert await state(store, "first") == "cancelled"


async def test_another_owner_or_text_is_no_overlap(store: Store) -> None:
    await submit(store, task("first"))
    for at, other in enumerate([{"owner": "p"}, {"hash": "g"}, {"team": "desk"}]):
        assert (await submit(store, task(f"n{at}", overlap="confirm", **other))).is_new


async def test_tasks_begin_by_priority_and_then_in_their_order(store: Store) -> None:
    names = [("a", "low"), ("b", "normal"), ("c", "critical"), ("d", "normal"), ("e", "high")]
    for at, (id, priority) in enumerate(names):
        await submit(store, prioritised(task(id, hash=id, created_at=float(at)), priority))  # type: ignore[arg-type]
    ready = await store.team_tasks.list_ready("press", limit=9)
    assert [each.id for each in ready] == ["c", "e", "b", "d", "a"]
    assert await store.team_tasks.ready_teams() == ["press"]


async def test_a_task_is_begun_once_and_its_run_is_there_or_neither(store: Store) -> None:
    await submit(store, task())
    results = await asyncio.gather(*(begin(store, task()) for _ in range(5)), return_exceptions=True)
    assert sum(result is None for result in results) == 1
    assert len(await store.runs.list("s-t")) == 1
    found = await store.team_tasks.get("t")
    assert found is not None
    assert (found.state, found.run_id, found.attempts) == ("running", "run-t", 1)


async def test_a_team_runs_as_many_tasks_as_it_may(store: Store) -> None:
    for at in range(6):
        await submit(store, task(f"t{at}", hash=str(at)))
    begun = await asyncio.gather(
        *(begin(store, task(f"t{at}"), concurrency=2) for at in range(6)), return_exceptions=True
    )
    assert sum(each is None for each in begun) == 2
    assert all(isinstance(each, Conflict) for each in begun if each is not None)
    states = [await state(store, f"t{at}") for at in range(6)]
    assert sorted(states) == ["queued"] * 4 + ["running"] * 2


async def test_a_question_waits_for_nobody(store: Store) -> None:
    await submit(store, task("a"))
    await begin(store, task("a"), concurrency=1)
    question = task("b", read_only=True, hash="other")
    await submit(store, question)
    await begin(store, question, concurrency=1)
    assert await state(store, "b") == "running"


async def test_tasks_of_one_session_run_one_after_the_other(store: Store) -> None:
    await submit(store, task("a", session_id="s", hash="1"))
    await submit(store, task("b", session_id="s", hash="2", created_at=2.0))
    await begin(store, task("a", session_id="s"))
    assert await store.team_tasks.list_ready("press", limit=9) == []
    ending = RunEnding(status="finished", finished_at=2.0)
    await store.runs.finish("run-a", ending)
    assert await store.team_tasks.list_ready("press", limit=9) == []  # its end is not written yet
    await store.team_tasks.end(await stored(store, "a"), DONE)
    assert [each.id for each in await store.team_tasks.list_ready("press", limit=9)] == ["b"]


async def test_a_paused_team_begins_nothing(store: Store) -> None:
    await submit(store, task())
    await store.team_tasks.pause("press", by="o")
    assert await store.team_tasks.paused_teams() == ["press"]
    assert await store.team_tasks.list_ready("press", limit=9) == []
    with pytest.raises(Conflict):
        await begin(store, task())
    assert await store.team_tasks.resume("press")
    assert not await store.team_tasks.resume("press")
    await begin(store, task())


async def test_an_end_is_written_once_and_a_result_delivered_once(store: Store, clock: Clock) -> None:
    await submit(store, task(deliver="session", source_session="s"))
    await begin(store, task())
    clock.now = 1_005.0
    begun = await stored(store)
    ended = await asyncio.gather(*(store.team_tasks.end(begun, DONE) for _ in range(5)))
    [end] = [each for each in ended if each is not None]
    assert (end.state, end.result, end.ended_at, end.delivered_at) == ("done", "42", 1_005.0, None)
    assert await store.team_tasks.awaiting_sessions(limit=9) == ["s"]
    jobs = [store.write(store.team_tasks.deliver_job("t")) for _ in range(5)]
    delivered = await asyncio.gather(*jobs, return_exceptions=True)
    assert sum(each is None for each in delivered) == 1
    assert await store.team_tasks.awaiting_sessions(limit=9) == []


@pytest.mark.parametrize("waits", [False, True])
async def test_a_task_ends_with_its_run_unless_a_message_waits_for_it(store: Store, waits: bool) -> None:
    await submit(store, task())
    await begin(store, task())
    if waits:
        await store.queued_runs.add(queued("s-t"), session=None, limits=QueueLimits())
    joined = JoinedEnd(store.team_tasks.end_job(task(), DONE))
    assert await store.runs.finish("run-t", FINISHED, last_job=joined.write)
    assert (joined.ended is None) is waits
    assert await state(store) == ("running" if waits else "done")


async def test_what_ends_with_a_run_does_not_end_when_the_run_has_ended_before(store: Store) -> None:
    await submit(store, task())
    await begin(store, task())
    joined = JoinedEnd(store.team_tasks.end_job(task(), DONE))
    await store.runs.finish("run-t", FINISHED)
    assert not await store.runs.finish("run-t", FINISHED, last_job=joined.write)
    assert await state(store) == "running"


async def test_whoever_hands_in_a_task_learns_whether_it_is_alone_in_the_queue(store: Store) -> None:
    assert (await submit(store, task("a"))).is_alone
    assert (await submit(store, task("b", team="desk"))).is_alone
    assert not (await submit(store, task("c"))).is_alone
    await begin(store, task("a"))
    await begin(store, task("c"))
    assert (await submit(store, task("d"))).is_alone


async def test_sessions_that_are_to_get_results_are_found_in_turn(store: Store) -> None:
    for number in range(3):
        wanted = task(f"t{number}", deliver="session", source_session=f"s{number % 2}")
        await submit(store, wanted)
        await store.team_tasks.end(wanted, DONE)
    assert await store.team_tasks.awaiting_sessions(limit=1) == ["s0"]
    assert await store.team_tasks.awaiting_sessions("s0", limit=1) == ["s1"]
    assert await store.team_tasks.awaiting_sessions("s1", limit=1) == []


async def test_questions_that_are_being_answered_are_limited(store: Store) -> None:
    for number in range(MAX_QUESTIONS):
        await submit(store, task(f"t{number}", read_only=True), max_waiting=1)
    with pytest.raises(LimitReached, match="questions"):
        await submit(store, task("more", read_only=True))
    await submit(store, task("work"), max_waiting=MAX_QUESTIONS + 1)
    await submit(store, task("other", owner="p", read_only=True))


async def test_what_a_task_used_is_its_own_and_that_of_all_below_it(store: Store, clock: Clock) -> None:
    """Two tasks of a topic share a session, and the first one has a task below it."""
    for id, fields, at in (
        ("first", {"session_id": "topic"}, 10.0),
        ("below", {"source_session": "topic", "created_at": 11.0}, 12.0),
        ("second", {"session_id": "topic"}, 20.0),
    ):
        wanted = task(id, **fields)
        await submit(store, wanted)
        clock.now = at
        await begin(store, wanted)
        used = UsageRecord(
            id=f"use-{id}",
            owner="o",
            session_id=wanted.session_id,
            status="finished",
            started_at=at + 1.0,
            tokens=Usage(input_tokens=int(at)),
        )
        await store.usage.add(used)
        clock.now = at + (5.0 if id == "first" else 2.0)
        if id != "first":
            await store.runs.finish(f"run-{id}", RunEnding(status="finished", finished_at=clock.now))
            await store.team_tasks.end(await stored(store, id), DONE)
        if id == "below":
            await store.runs.finish("run-first", RunEnding(status="finished", finished_at=15.0))
            await store.team_tasks.end(await stored(store, "first"), DONE)
    found = {id: await store.usage.task_totals(id) for id in ("first", "below", "second", "none")}
    assert {id: each.tokens.input_tokens for id, each in found.items()} == {
        "first": 22,
        "below": 12,
        "second": 20,
        "none": None,
    }


async def test_what_nobody_is_to_have_is_not_delivered(store: Store) -> None:
    await submit(store, task())
    await store.team_tasks.end(await stored(store), TaskEnd(state="cancelled"))
    assert await store.team_tasks.awaiting_sessions(limit=9) == []


async def test_a_task_whose_run_has_ended_is_found_until_its_end_is_written(store: Store) -> None:
    await submit(store, task())
    await begin(store, task())
    assert await store.team_tasks.list_idle() == []
    await store.runs.finish("run-t", RunEnding(status="finished", finished_at=2.0))
    assert [each.id for each in await store.team_tasks.list_idle()] == ["t"]
    assert await store.team_tasks.move("t", "waiting", run_id="run-t")
    assert not await store.team_tasks.move("t", "waiting", run_id="run-t")
    assert await store.team_tasks.list_idle() == []


async def test_a_cancelled_task_whose_run_goes_on_is_found(store: Store) -> None:
    await submit(store, task())
    await begin(store, task())
    await store.team_tasks.end(await stored(store), TaskEnd(state="cancelled"))
    assert [each.id for each in await store.team_tasks.list_still_running()] == ["t"]
    await store.runs.finish("run-t", RunEnding(status="stopped", finished_at=2.0))
    assert await store.team_tasks.list_still_running() == []


async def test_late_tasks_are_found(store: Store, clock: Clock) -> None:
    await submit(store, task(deadline=1_001.0))
    assert await store.team_tasks.list_late() == []
    clock.now = 1_002.0
    assert [each.id for each in await store.team_tasks.list_late()] == ["t"]


async def test_an_owner_queues_as_much_as_it_may(store: Store) -> None:
    for at in range(2):
        await submit(store, task(f"t{at}"), max_waiting=2)
    with pytest.raises(LimitReached):
        await submit(store, task("t2"), max_waiting=2)
    assert (await submit(store, task("u", owner="p"), max_waiting=2)).is_new


async def test_pages_and_counts_are_of_their_owner(store: Store) -> None:
    for at in range(3):
        await submit(store, task(f"t{at}", created_at=float(at), source_session="s"))
    await submit(store, task("other", owner="p", source_session="s2"))
    first = await store.team_tasks.list_page({"owner": "o"}, limit=2)
    assert [each.id for each in first] == ["t2", "t1"]
    rest = await store.team_tasks.list_page({"owner": "o"}, before=first[-1], limit=2)
    assert [each.id for each in rest] == ["t0"]
    assert await store.team_tasks.list_page({"owner": "o", "state": "done"}) == []
    assert await store.team_tasks.count_states("o") == {"press": {"queued": 3}}
    assert [each.id for each in await store.team_tasks.open_children("s")] == ["t0", "t1", "t2"]


async def test_a_deleted_session_takes_its_tasks_along(store: Store) -> None:
    await submit(store, task())
    await store.session_deletion.delete("s-t")
    assert await store.team_tasks.get("t") is None


async def test_each_step_of_a_task_is_an_event_where_it_was_given(store: Store) -> None:
    await submit(store, task(source_session="s"))
    await begin(store, task())
    await store.team_tasks.end(await stored(store), replace(DONE))
    page = await store.events.list((await store.events.first_position()).__class__())
    names = [each.name for each in page.events if each.name.startswith("task.")]
    assert names == ["task.queued", "task.started", "task.ended"]
    assert {each.session_id for each in page.events if each.name.startswith("task.")} == {"s"}


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_a_task_costs_the_same_however_many_have_ended(store: Store) -> None:
    """Counted in steps of SQLite's machine: an index that leads to all tasks of an owner would show."""
    few = await count_task_steps(store, "few")
    for at in range(200):
        ended = task(f"e{at}", created_at=0.5, source_session="above")
        await submit(store, ended)
        await store.team_tasks.end(ended, TaskEnd(state="cancelled"), is_silent=True)
    many = await count_task_steps(store, "many")
    assert many < few + 200, (few, many)


async def count_task_steps(store: Store, id: str) -> int:
    """Hand in a task, begin it, look for what is left as a sweep does, and end it; return SQLite's steps."""
    steps = count()

    def watch(connection: Any) -> None:
        connection._raw.set_progress_handler(lambda: next(steps) and None, 1)

    await store.write(watch)
    await store.database.read(watch)
    await store.database.read_by_key(watch)
    wanted = task(id, overlap="queue", created_at=2.0)
    await submit(store, wanted)
    with pytest.raises(TaskOverlaps):
        await submit(store, replace(wanted, id=f"{id}-alike", overlap="confirm"))
    tasks = store.team_tasks
    for found in (tasks.list_still_running, tasks.list_orphans, tasks.list_idle, tasks.list_late):
        assert await found() == []
    assert await tasks.awaiting_sessions(limit=5) == []
    await tasks.count_states("o")
    assert await tasks.list_ready("press", limit=5) == [wanted]
    await begin(store, wanted)
    await tasks.end(wanted, DONE)
    return next(steps)
