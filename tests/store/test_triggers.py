"""Triggers and their occurrences, on each database: what is written once, and what is decided together."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from dragoman.errors import Conflict, LimitReached, NotFound, StoreError
from dragoman.store.encryption import MasterKey
from dragoman.store.hub_events import EventPosition, NewEvent
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.store.teams.task_records import TaskEnd, TeamTask
from dragoman.store.teams.trigger_records import (
    OccurrenceEnding,
    OverlapAction,
    PeriodLimits,
    TriggerOccurrence,
    TriggerRecord,
)
from dragoman.store.teams.trigger_secrets import encrypt_secret
from dragoman.store.webhook_deliveries import WebhookDelivery
from tests.store.places import Place

SECRET = "whsec_never-in-the-database"


def trigger(id: str = "trg_1", **fields: Any) -> TriggerRecord:
    values: dict[str, Any] = {
        "owner": "ada",
        "team": "night",
        "name": id,
        "type": "schedule",
        "body": "{}",
        "hash": "h1",
        "created_at": 1.0,
        "updated_at": 1.0,
        "state": "active",
    }
    return TriggerRecord(id=id, **values | fields)


def occurrence(key: str = "a", **fields: Any) -> TriggerOccurrence:
    values: dict[str, Any] = {"trigger_id": "trg_1", "due_at": 5.0, "created_at": 5.0, "next_at": 5.0}
    return TriggerOccurrence(key=key, **values | fields)


def always(action: OverlapAction) -> Any:
    return lambda _active, _overlaps: action


async def test_a_name_is_taken_once_in_a_team_of_an_owner_and_an_owner_has_a_limit(store: Store) -> None:
    await store.triggers.create(trigger("a", name="x"), limit=2)
    with pytest.raises(Conflict):
        await store.triggers.create(trigger("b", name="x"), limit=2)
    await store.triggers.create(trigger("c", name="x", team="day"), limit=2)
    with pytest.raises(LimitReached):
        await store.triggers.create(trigger("d", name="y"), limit=2)
    await store.triggers.create(trigger("e", name="x", owner="bob"), limit=2)
    assert [each.id for each in await store.triggers.list(owner="ada")] == ["c", "a"]
    assert [each.id for each in await store.triggers.list(team="night")] == ["a", "e"]
    assert (await store.triggers.find("night", "x", owner="bob")).id == "e"
    with pytest.raises(Conflict):
        await store.triggers.find("night", "x", owner=None)
    with pytest.raises(NotFound):
        await store.triggers.find("night", "z", owner=None)
    assert (await store.triggers.delete("e"), await store.triggers.delete("e")) == (True, False)


async def test_triggers_are_read_in_pages_and_found_by_their_texts(store: Store) -> None:
    for number in range(5):
        body = '{"task": "Count 50%_ of it."}' if number == 3 else "{}"
        team = "day" if number == 4 else "night"
        await store.triggers.create(
            trigger(f"t{number}", name=f"Job {number}", team=team, body=body), limit=9
        )
    first = await store.triggers.list(owner="ada", limit=2)
    second = await store.triggers.list(owner="ada", after=first[-1], limit=9)
    assert [each.id for each in (*first, *second)] == ["t4", "t0", "t1", "t2", "t3"]
    for text, ids in (("jOB 2", ["t2"]), ("50%_ OF", ["t3"]), ("0%o", []), ("job", ["t4", "t0"])):
        found = await store.triggers.list(owner="ada", text=text, limit=2)
        assert [each.id for each in found] == ids, text
    assert await store.triggers.list(owner="bob", after=first[0]) == []


async def test_an_occurrence_that_several_notice_at_once_is_inserted_once(store: Store) -> None:
    await store.triggers.create(trigger(next_at=5.0), limit=9)
    fired = await asyncio.gather(
        *(
            store.triggers.fire(trigger(next_at=5.0), [occurrence("a"), occurrence("b")], next_at=9.0)
            for _ in range(4)
        )
    )
    assert sorted(each.key for group in fired for each in group) == ["a", "b"]
    stored = await store.triggers.get("trg_1")
    assert (stored.next_at, stored.fired_at) == (9.0, 1_000.0)
    assert {each.key for each in await store.triggers.history("trg_1")} == {"a", "b"}


@pytest.mark.parametrize("change", [{"state": "disabled"}, {"state": "pending"}, {"hash": "h2"}])
async def test_a_trigger_that_was_changed_meanwhile_fires_nothing(
    store: Store, change: dict[str, str]
) -> None:
    await store.triggers.create(trigger(), limit=9)
    await store.triggers.update("trg_1", **change)
    assert await store.triggers.fire(trigger(), [occurrence()], next_at=9.0) == ()
    assert await store.triggers.history("trg_1") == []
    assert (await store.triggers.get("trg_1")).next_at is None


async def test_what_is_due_is_listed_in_order_and_the_timer_knows_when_the_next_is(store: Store) -> None:
    assert await store.triggers.next_due() is None
    for id, at, state in (("a", 30.0, "active"), ("b", 20.0, "active"), ("c", 1.0, "pending")):
        await store.triggers.create(trigger(id, next_at=at, state=state), limit=9)
    assert await store.triggers.next_due() == 20.0
    assert [each.id for each in await store.triggers.list_due(19.9)] == []
    assert [each.id for each in await store.triggers.list_due(30.0)] == ["b", "a"]
    fired = occurrence(trigger_id="a", next_at=7.0)
    await store.triggers.fire(trigger("a", next_at=30.0), [fired], next_at=40.0)
    assert await store.triggers.next_due() == 7.0
    assert await store.triggers.list_open(8.0) == [fired]


async def test_one_of_two_that_begin_at_once_sees_the_other(store: Store) -> None:
    await store.triggers.create(trigger(), limit=9)
    pair = [occurrence("a"), occurrence("b")]
    await store.triggers.fire(trigger(), pair)
    decided = await asyncio.gather(
        *(
            store.triggers.decide(each, lambda active, _overlaps: "skip" if active else "start")
            for each in pair
        )
    )
    assert sorted(each.action for each in decided if each is not None) == ["skip", "start"]
    assert [await store.triggers.decide(each, always("start")) for each in pair] == [None, None]
    assert (await store.triggers.get("trg_1")).overlaps == 1


async def test_a_window_takes_no_more_than_its_limits_whoever_fires(store: Store) -> None:
    await store.triggers.create(trigger(), limit=9)
    limits = PeriodLimits(ticks=3, tokens=100, usd=1.0)

    async def fire(key: str, period: str = "w") -> TriggerOccurrence:
        [found] = await store.triggers.fire(trigger(), [occurrence(key, period=period)], limits=limits)
        return found

    async def start(each: TriggerOccurrence, action: OverlapAction = "start") -> tuple[str, float | None]:
        decided = await store.triggers.decide(each, always(action), usd=1.0)
        assert decided is not None
        return decided.action, decided.usd_limit

    async def end(each: TriggerOccurrence, *, tokens: int, cost: float) -> None:
        running = msgspec.structs.replace(each, state="starting")
        assert await store.triggers.change(running, state="done", cost=cost, tokens=tokens, ended_at=6.0)

    first, second = await fire("1"), await fire("2")
    assert await start(first) == ("start", 1.0)
    assert await start(second) == ("skip", 0.0)  # until the first ends, it may spend all that there is
    await end(first, tokens=60, cost=0.25)
    third = await fire("3")
    assert await start(third) == ("start", 0.75)
    await end(third, tokens=10, cost=0.1)
    use = await store.triggers.period_use("trg_1", "w")
    assert (use.ticks, use.tokens, use.usd, use.reserved) == (2, 70, 0.35, 0.0)
    fourth = await fire("4")
    assert await start(fourth) == ("start", 0.65)
    await end(fourth, tokens=1, cost=0.0)
    over = await fire("5")
    assert (over.state, over.error) == ("skipped", "the window has used its 3 ticks")
    assert (await fire("6", "another window")).state == "pending"


async def test_ticks_that_several_hosts_fire_at_once_do_not_exceed_the_window(store: Store) -> None:
    await store.triggers.create(trigger(), limit=9)
    limits = PeriodLimits(ticks=3)
    ticks = [occurrence(str(n), period="w") for n in range(6)]
    await asyncio.gather(*(store.triggers.fire(trigger(), [each], limits=limits) for each in ticks))
    states = sorted(each.state for each in await store.triggers.history("trg_1"))
    assert states == ["pending"] * 3 + ["skipped"] * 3


async def test_an_end_is_written_once_and_failures_in_a_row_disable_the_trigger_with_a_notice(
    store: Store,
) -> None:
    await store.triggers.create(trigger(next_at=9.0), limit=9)

    async def end(key: str, state: Any) -> str | None:
        await store.triggers.fire(trigger(next_at=9.0), [occurrence(key, state="running")])
        ending = OccurrenceEnding(state=state, ended_at=7.0, error="boom" if state == "failed" else None)
        return await store.triggers.settle(
            occurrence(key, state="running"),
            ending,
            threshold=2,
            notice=lambda reason: NewEvent(
                name="trigger.disabled", owner="ada", data=f'{{"reason":"{reason}"}}'
            ),
        )

    assert [await end("a", "failed"), await end("b", "done"), await end("c", "failed")] == [None] * 3
    assert await end("d", "cancelled") is None
    with pytest.raises(Conflict):
        await end("c", "failed")
    assert await end("e", "failed") == "it failed 2 times in a row, the last time: boom"
    found = await store.triggers.get("trg_1")
    assert (found.state, found.next_at, found.failures, found.result_at) == ("disabled", None, 2, 7.0)
    events = (await store.events.list(EventPosition())).events
    assert [(each.name, each.owner) for each in events] == [("trigger.disabled", "ada")]


async def test_a_delivery_is_written_with_the_end_and_not_without_it(store: Store) -> None:
    await store.triggers.create(trigger(), limit=9)
    await store.triggers.fire(trigger(), [occurrence(state="running")])
    delivery = WebhookDelivery(
        id="d", run_id="r", session_id="s", owner="ada", url="http://x", next_at=1.0, created_at=1.0
    )
    ending = OccurrenceEnding(state="done", ended_at=7.0)
    with pytest.raises(Conflict):
        await store.triggers.settle(occurrence(state="starting"), ending, threshold=None, delivery=delivery)
    assert await store.webhooks.get_of_run("r") is None
    await store.triggers.settle(occurrence(state="running"), ending, threshold=None, delivery=delivery)
    assert await store.webhooks.get_of_run("r") == delivery


async def test_a_secret_is_encrypted_and_bound_to_its_trigger(store: Store, place: Place) -> None:
    await store.triggers.create(trigger(secret=SECRET), limit=9)
    await store.triggers.create(trigger("trg_2"), limit=9)
    assert SECRET not in str(place.query("SELECT * FROM triggers"))
    assert (await store.triggers.get("trg_1")).secret == SECRET
    assert SECRET not in repr(await store.triggers.get("trg_1"))
    assert [each.secret for each in await store.triggers.list()] == [None, None]
    await store.triggers.update("trg_2", secret="other")
    place.query("UPDATE triggers SET secret = (SELECT secret FROM triggers WHERE id = 'trg_2')")
    with pytest.raises(StoreError):
        await store.triggers.get("trg_1")


@pytest.mark.parametrize("place", ["postgres"], indirect=True)  # a data folder has a key of its own
async def test_rotating_the_master_key_encrypts_the_secrets_of_triggers_with_the_new_one(
    place: Place,
) -> None:
    old, new = MasterKey.generate(), MasterKey.generate()
    async with await place.open(master_key=old) as store:
        await store.triggers.create(trigger(secret=SECRET), limit=9)
        assert await store.secrets.rotate(new) == 0
    async with await place.open(master_key=new) as store:
        assert (await store.triggers.get("trg_1")).secret == SECRET
    async with await place.open(master_key=old) as store:
        with pytest.raises(StoreError):
            await store.triggers.get("trg_1")


async def test_a_result_is_told_to_the_session_once_its_end_is_written(store: Store) -> None:
    session = Session(id="s1", owner="ada", created_at=1.0, updated_at=1.0)
    task = TeamTask(
        id="t1",
        owner="ada",
        team="night",
        text="x",
        hash="h",
        session_id="s1",
        created_at=1.0,
        source="trigger",
        source_session="s-source",
    )
    await store.team_tasks.submit(task, session=session, max_waiting=9)
    await store.team_tasks.end(task, TaskEnd(state="done", result="found it"))
    await store.triggers.create(trigger(), limit=9)
    await store.triggers.fire(trigger(), [occurrence(state="running", task_id="t1")])
    assert await store.team_tasks.awaiting_sessions(limit=9) == []
    ending = OccurrenceEnding(state="done", ended_at=7.0)
    running = occurrence(state="running", task_id="t1")
    await store.triggers.settle(running, ending, threshold=None, delivery="session")
    assert await store.team_tasks.awaiting_sessions(limit=9) == ["s-source"]


async def test_old_occurrences_are_deleted_and_open_ones_are_not(store: Store) -> None:
    await store.triggers.create(trigger(), limit=9)
    rows = [occurrence("a", state="done", ended_at=5.0), occurrence("b"), occurrence("c", ended_at=50.0)]
    await store.triggers.fire(trigger(), rows)
    assert await store.triggers.purge(before=10.0) == 1
    assert [each.key for each in await store.triggers.history("trg_1")] == ["c", "b"]
    assert await store.triggers.history("trg_1", before=5.0) == []
    assert msgspec.structs.asdict((await store.triggers.history("trg_1"))[1]) == msgspec.structs.asdict(
        rows[1]
    )


async def test_a_secret_of_another_key_does_not_keep_triggers_from_their_approvals(store: Store) -> None:
    await store.triggers.create(trigger("a", state="pending", approval_id="apr_1", secret=SECRET), limit=9)
    await store.triggers.create(trigger("b", state="pending", approval_id="apr_2"), limit=9)
    foreign = encrypt_secret("a", SECRET, key=MasterKey.generate())
    sql = f"UPDATE triggers SET secret = '{foreign}' WHERE id = 'a'"
    await store.write(lambda connection: connection.execute(sql, {}))
    with pytest.raises(StoreError):
        await store.triggers.get("a")
    assert [each.id for each in await store.triggers.list_for_approval()] == ["a", "b"]
