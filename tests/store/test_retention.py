"""Retention: what is old goes, what a run needs stays, and other writes do not wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dragoman.config import Config, parse_config
from dragoman.errors import ConfigError
from dragoman.identity import Identity
from dragoman.messages import Message, TextPart
from dragoman.operations.approval import ApprovalRequest
from dragoman.operations.ledger import CallCompletion, CallRecord
from dragoman.operations.outcome import CallStatus
from dragoman.operations.results.artifact import Artifact
from dragoman.server.app.background_jobs import RetentionPurge
from dragoman.server.metrics.metrics import Metrics
from dragoman.store.connection import DatabaseConnection
from dragoman.store.hosts.queued_runs import QueueLimits
from dragoman.store.maintenance.compact import compact
from dragoman.store.maintenance.location import DatabaseLocation
from dragoman.store.runner_frame_log import FrameBatch
from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord
from tests.effort import rounds
from tests.store.conftest import Clock
from tests.store.places import Place
from tests.store.samples import FINISHED, assistant, converse, queued, run, session, text, user
from tests.store.test_team_tasks import task

ANN = Identity("ann")
CALLS = {"calls": 100.0}
APPROVALS = {"approvals": 100.0}
ARTIFACTS = {"artifacts": 100.0}
SESSIONS = {"sessions": 100.0}
USAGE = {"usage": 100.0}
"""Periods of 100 s; the clock says 1,000, so that what is older than 900 is old."""


async def add_call(
    store: Store, id: str, *, status: CallStatus | None = "done", ended_at: float = 20.0, **fields: Any
) -> None:
    values = {"owner": "ann", "started_at": 10.0, **fields}
    record = CallRecord(
        id=id, operation="a.b", effect="read", input={}, input_hash="h", idempotency_key=id, **values
    )
    await store.calls.record_start(record)
    if status == "pending":
        await store.calls.record_end(id, CallCompletion(status=status))
    elif status is not None:
        await store.calls.record_end(id, CallCompletion(status=status, ended_at=ended_at))


async def add_approval(store: Store, id: str, **fields: Any) -> None:
    values: dict[str, Any] = {"created_at": 10.0, "expires_at": 20.0, "owner": "ann", **fields}
    await store.approvals.create(
        ApprovalRequest(id=id, operation="a.b", input={}, input_hash=id, items=(), **values)
    )


async def add_artifact(store: Store, id: str, **fields: Any) -> None:
    values: dict[str, Any] = {"created_at": 10.0, "owner": "ann", **fields}
    await store.artifacts.save(Artifact(id=id, media_type="text/plain", size=1, **values), b"x")


async def begin_run(store: Store, session_id: str, id: str) -> None:
    """A session with a run that is active."""
    await store.runs.create(
        run(id, session_id=session_id), session=session(session_id), assistant=assistant()
    )


def stored_ids(place: Place, table: str) -> set[str]:
    return {id for (id,) in place.query(f"SELECT id FROM {table}")}


async def purge(store: Store, periods: Mapping[str, float | None]) -> Mapping[str, int]:
    """Purge, after a check that `count` says the same."""
    counts = await store.retention.count(periods)
    deleted = await store.retention.purge(periods)
    assert deleted == counts
    assert not any((await store.retention.count(periods)).values())
    return deleted


async def test_old_calls_go_and_those_that_are_open_or_that_a_run_needs_stay(
    store: Store, place: Place
) -> None:
    await begin_run(store, "active", "r1")
    await store.sessions.create(session("waiting"))
    await add_approval(store, "p", session_id="waiting", call_id="asked", expires_at=2_000.0)
    for owner in ("ann", "bob", "zoë"):
        await add_call(store, f"old {owner}", owner=owner)
    for status in ("failed", "aborted", "denied", "uncertain"):
        await add_call(store, f"old {status}", status=status)
    await add_call(store, "old of a session that is done", session_id="done")
    await add_call(store, "fresh", started_at=950.0, ended_at=960.0)
    await add_call(store, "long", ended_at=950.0)
    await add_call(store, "running", status=None)
    await add_call(store, "pending", status="pending")
    await add_call(store, "below", parent_id="pending")
    await add_call(store, "asked", status="failed")
    await add_call(store, "of the active run", session_id="active", run_id="r1")
    await add_call(store, "of the waiting run", session_id="waiting")
    assert await purge(store, CALLS) == {"calls": 8}
    assert stored_ids(place, "calls") == {
        "fresh",
        "long",
        "running",
        "pending",
        "below",
        "asked",
        "of the active run",
        "of the waiting run",
    }


async def test_spent_approvals_go_and_those_that_may_still_be_answered_or_used_stay(
    store: Store, place: Place
) -> None:
    await add_approval(store, "expired")
    await add_approval(store, "pending", expires_at=2_000.0)
    await add_approval(store, "denied", expires_at=2_000.0)
    await add_approval(store, "approved", expires_at=2_000.0)
    await add_approval(store, "just expired", expires_at=950.0)
    await add_call(store, "waits", status="pending")
    await add_approval(store, "of a call that waits", call_id="waits")
    clock = store.approvals._clock
    assert isinstance(clock, Clock)
    clock.now = 30.0
    await store.approvals.answer("denied", approved=False, by=ANN)
    await store.approvals.answer("approved", approved=True, by=ANN)
    clock.now = 1_000.0
    await add_approval(store, "denied late", expires_at=2_000.0)
    await store.approvals.answer("denied late", approved=False, by=ANN)
    assert await purge(store, APPROVALS) == {"approvals": 2}
    assert stored_ids(place, "approvals") == {
        "pending",
        "approved",
        "just expired",
        "of a call that waits",
        "denied late",
    }


async def test_artifacts_go_once_they_and_their_session_are_old(store: Store, place: Place) -> None:
    await begin_run(store, "active", "r1")
    await store.sessions.create(session("quiet", at=10.0))
    await store.sessions.create(session("in use", at=950.0))
    await store.sessions.create(session("waiting", at=10.0))
    await add_approval(store, "p", session_id="waiting", expires_at=2_000.0)
    for name in ("active", "quiet", "in use", "waiting", "deleted"):
        await add_artifact(store, name, session_id=name)
    await add_artifact(store, "of nobody's session")
    await add_artifact(store, "fresh", created_at=950.0)
    assert await purge(store, ARTIFACTS) == {"artifacts": 3}
    assert stored_ids(place, "artifacts") == {"active", "in use", "waiting", "fresh"}


async def test_an_old_session_goes_with_all_that_is_its_own_but_its_usage(store: Store, place: Place) -> None:
    questions = [f"question {number}" for number in range(70)]
    await converse(store, *questions, session_id="old")
    await converse(store, "hello", session_id="other")
    await store.sessions.update("other", title="x")
    await store.history.search("question", owner="ann")
    for name in ("old", "other"):
        await add_call(store, f"call of {name}", session_id=name)
        await add_approval(store, f"approval of {name}", session_id=name)
        await add_artifact(store, f"artifact of {name}", session_id=name)
        await store.usage.add(
            UsageRecord(
                id=f"usage of {name}", owner="ann", status="finished", started_at=1.0, session_id=name
            )
        )
    await begin_run(store, "active", "r1")
    await store.sessions.create(session("waiting"))
    await add_approval(store, "p", session_id="waiting", expires_at=2_000.0)
    assert await purge(store, SESSIONS) == {"sessions": 1}
    assert stored_ids(place, "sessions") == {"other", "active", "waiting"}
    assert stored_ids(place, "usage") == {"usage of old", "usage of other"}
    for table in ("call", "approval", "artifact"):
        assert f"{table} of old" not in stored_ids(place, f"{table}s")
        assert f"{table} of other" in stored_ids(place, f"{table}s")
    for table in ("messages", "parts", "passages", "runs", "indexed_messages", "indexed_sessions"):
        assert place.query(f"SELECT 1 FROM {table} WHERE session_id = 'old'") == []
    assert (await store.history.search("question", owner="ann")).passages == ()


async def test_a_session_in_which_something_waits_stays_with_all_that_is_its_own(
    store: Store, place: Place
) -> None:
    clock = store.sessions._clock
    assert isinstance(clock, Clock)
    clock.now = 10.0
    for name in ("queues", "withdrew", "gave", "was given", "is done"):
        await converse(store, "hello", session_id=name)
        await add_call(store, f"call of {name}", session_id=name)
        await add_artifact(store, f"artifact of {name}", session_id=name)
    for name in ("queues", "withdrew"):
        await store.queued_runs.add(queued(name), session=None, limits=QueueLimits())
    await store.queued_runs.end("withdrew", "withdrawn", at=10.0)
    open_task = task("t1", session_id="was given", source_session="gave", owner="ann")
    await store.team_tasks.submit(open_task, session=session("was given"), max_waiting=9)
    clock.now = 1_000.0
    deleted = await purge(store, {**CALLS, **ARTIFACTS, **SESSIONS})
    assert deleted == {"calls": 2, "artifacts": 2, "sessions": 2}
    waiting = {"queues", "gave", "was given"}
    assert stored_ids(place, "sessions") == waiting
    assert stored_ids(place, "calls") == {f"call of {name}" for name in waiting}
    assert stored_ids(place, "artifacts") == {f"artifact of {name}" for name in waiting}


async def test_a_message_that_is_queued_while_its_session_is_about_to_be_deleted_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await converse(store, "hello", session_id="old")
    find = store.retention._find

    async def find_and_queue(*arguments: Any) -> Any:
        found = await find(*arguments)
        if found and await store.queued_runs.first("old") is None:
            await store.queued_runs.add(queued("old"), session=None, limits=QueueLimits())
            await store.queued_runs.end("old", "withdrawn", at=1_000.0)  # as what begins its run does
        return found

    monkeypatch.setattr(store.retention, "_find", find_and_queue)
    assert await store.retention.purge(SESSIONS) == {"sessions": 0}
    assert len(await store.messages.list("old")) == 2


async def test_what_live_turns_have_stays_while_all_that_is_old_goes_and_is_compacted(
    store: Store, place: Place
) -> None:
    """All rows are old; a turn is live until its answer is compared, and then goes itself."""
    periods = dict.fromkeys(store.retention._sql.rules, 100.0)
    turns, ended = rounds(quick=6, thorough=60), asyncio.Event()

    async def purge_on() -> int:
        deleted = 0
        while not ended.is_set():
            deleted += sum((await store.retention.purge(periods)).values())
            if place.url is not None:
                await asyncio.to_thread(compact, DatabaseLocation.parse(place.url))
        return deleted

    for number in range(40):
        await add_call(store, f"c{number}")
    purging = asyncio.create_task(purge_on())
    await asyncio.gather(*(live_turn(store, f"s{number}") for number in range(turns)))
    ended.set()
    assert await purging
    assert (await store.retention.purge(periods))["sessions"] <= turns
    assert stored_ids(place, "sessions") == set()


async def live_turn(store: Store, name: str) -> None:
    """A turn in a session that is older than its period, with an approval and frames; it misses nothing."""
    words = [f"word {number}" for number in range(8)]
    await store.runs.create(
        run(name, session_id=name), session=session(name), user=user("u", "hello"), assistant=assistant()
    )
    await add_call(store, f"call of {name}", session_id=name, run_id=name)
    await add_artifact(store, f"artifact of {name}", session_id=name, run_id=name)
    for at, word in enumerate(words):
        await store.write(store.messages.write_parts_job(name, "a", changed=[(at, text(word))]))
        await store.write(store.runner_frames.put_job(name, FrameBatch(at, at, word)))
    await add_approval(store, f"approval of {name}", session_id=name, expires_at=2_000.0)
    await store.runs.finish(name, FINISHED)
    stored = await store.messages.list(name)
    assert [[part.text for part in each.parts if isinstance(part, TextPart)] for each in stored] == [
        ["hello"],
        words,
    ]
    assert await store.artifacts.read(f"artifact of {name}", owner="ann") == b"x"
    assert [call.record.id for call in await store.calls.list_for_run(name)] == [f"call of {name}"]
    await store.approvals.answer(f"approval of {name}", approved=False, by=ANN)


async def test_frames_of_runs_that_are_over_go_a_few_at_a_time(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("over", "active"):
        await begin_run(store, name, name)
        for at in range(45):
            await store.write(store.runner_frames.put_job(name, FrameBatch(at, at, "{}")))
    await store.runs.finish("over", FINISHED)
    sizes: list[int] = []
    submit = store.database.submit

    async def count(job: Any, *, is_long: bool) -> int:
        deleted: int = await submit(job, is_long=is_long)
        sizes.append(deleted)
        return deleted

    monkeypatch.setattr(store.database, "submit", count)
    await store.runner_frames.purge()
    assert sizes == [20, 20, 5, 0]
    assert place.query("SELECT run_id, count(*) FROM runner_frames GROUP BY 1") == [("active", 45)]


async def test_a_session_whose_deletion_was_cut_off_is_nobodys_and_goes_with_the_next_round(
    store: Store, place: Place
) -> None:
    await converse(store, *map(str, range(30)), session_id="old")
    job = store.retention._delete_session_job("old")

    def cut_off(connection: DatabaseConnection) -> None:
        connection.execute(store.retention._sql.hide, {"id": "old", "cutoff": 900.0, "now": 1_000.0})

    await store.write(cut_off)
    assert await store.sessions.list("ann") == []
    assert await store.sessions.get_own("old", owner="ann") is None
    assert await store.retention.purge({}) == {}
    assert stored_ids(place, "sessions") == stored_ids(place, "messages") == set()
    assert await store.write(job) == ()


async def test_a_session_that_goes_on_while_it_is_about_to_be_deleted_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await converse(store, "hello", session_id="old")
    find = store.retention._find

    async def find_and_go_on(*arguments: Any) -> Any:
        found = await find(*arguments)
        if found:
            await store.runs.create(
                run("r-new", session_id="old", message_id="a-new", at=999.0),
                user=user("u-new", "more"),
                assistant=assistant("a-new"),
            )
            await store.runs.finish("r-new", FINISHED)
        return found

    monkeypatch.setattr(store.retention, "_find", find_and_go_on)
    assert await store.retention.purge(SESSIONS) == {"sessions": 0}
    assert len(await store.messages.list("old")) == 4


async def test_old_usage_goes_but_that_of_an_active_run(store: Store, place: Place) -> None:
    await begin_run(store, "active", "r1")
    for id, fields in {
        "old": {"started_at": 10.0, "run_id": "r0"},
        "fresh": {"started_at": 950.0},
        "active": {"started_at": 10.0, "run_id": "r1"},
    }.items():
        await store.usage.add(UsageRecord(id=id, owner="ann", status="finished", **fields))  # type: ignore[arg-type]
    assert await purge(store, USAGE) == {"usage": 1}
    assert stored_ids(place, "usage") == {"fresh", "active"}


async def test_nothing_goes_for_ever(store: Store, place: Place) -> None:
    await converse(store, "hello")
    await add_call(store, "c")
    assert await store.retention.purge(dict.fromkeys(("calls", "sessions", "usage"))) == {}
    assert stored_ids(place, "calls") == {"c"}


async def test_rows_go_in_small_transactions_behind_those_of_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.store.retention.MAX_BATCH_SECONDS", 0.0)
    for number in range(40):
        await add_call(store, f"c{number}")
    submitted: list[bool] = []
    begun = asyncio.Event()
    submit = store.database.submit

    def count(job: Any, *, is_long: bool = False) -> Any:
        submitted.append(is_long)
        begun.set()
        return submit(job, is_long=is_long)

    monkeypatch.setattr(store.database, "submit", count)
    purging = asyncio.create_task(store.retention.purge(CALLS))
    await begun.wait()
    await converse(store, "one", "two")  # is committed in between
    assert not purging.done()
    assert await purging == {"calls": 40}
    assert submitted.count(True) == 41  # one row in each, as the time is up at once; and no frames


async def test_a_hub_counts_and_logs_what_it_deleted(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="dragoman")
    metrics = Metrics()
    await add_call(store, "c1")
    await add_call(store, "c2")
    await add_approval(store, "p")
    job = RetentionPurge(store.retention, {**CALLS, **APPROVALS}, count=metrics.rows_deleted)
    await job.purge()
    await job.purge()
    lines = [record.getMessage() for record in caplog.records if "retention" in record.getMessage()]
    assert lines == ["retention: deleted 2 calls, 1 approvals"]
    counted = {reading.name: reading.rows for reading in metrics.read()}
    assert counted["dragoman_retention_deleted_rows_total"] == {("calls",): 2.0, ("approvals",): 1.0}


DAY = 86_400.0
DEFAULTS = {
    "calls": 90 * DAY,
    "approvals": 30 * DAY,
    "artifacts": 30 * DAY,
    "responses": 30 * DAY,
    "sessions": None,
    "usage": None,
    "events": 30 * DAY,
}


@pytest.mark.parametrize(
    ("raw", "changed"),
    [
        ({}, {}),
        ({"retention": {"sessions": "90d", "calls": "12h"}}, {"sessions": 90 * DAY, "calls": DAY / 2}),
        ({"retention": {"calls": "off", "approvals": None}}, {"calls": None, "approvals": None}),
        ({"retention": {"usage": "1000d", "artifacts": 60}}, {"usage": 1000 * DAY, "artifacts": 60}),
        ({"limits": {"keep_days": 7}}, {"approvals": 7 * DAY, "artifacts": 7 * DAY}),
        (
            {"limits": {"keep_days": 7}, "retention": {"artifacts": "2d"}},
            {"approvals": 7 * DAY, "artifacts": 2 * DAY},
        ),
    ],
)
def test_periods_are_configured_as_durations(raw: dict[str, Any], changed: dict[str, Any]) -> None:
    assert parse_config(raw).retention_periods == {**DEFAULTS, **changed}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "calls",
            "soon",
            "retention.calls: 'soon' is not a valid duration; write it like 90d or 12h, or `off`",
        ),
        ("sessions", "90 days", "'90 days' is not a valid duration"),
        ("sessions", 0, "retention.sessions"),
        ("sessions", -1, "retention.sessions"),
        ("calls", "0d", "'0d' is not a valid duration"),
        ("calls", True, "retention.calls"),
        ("usage", "30d", "retention.usage: expected at least 31d, since budgets of a month count usage"),
        ("messages", "1d", "messages"),
    ],
)
def test_a_period_that_cannot_be_is_refused_with_its_field(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_config({"retention": {field: value}})
    assert message in str(refusal.value)


def test_periods_have_the_names_of_tables_with_rules() -> None:
    from dragoman.store.retention import retention_rules  # beside the configuration, which knows no tables

    assert set(Config().retention_periods) == set(retention_rules())


class CountedConnection:
    """A connection that counts the statements, one for each row."""

    def __init__(self, connection: DatabaseConnection, counts: Counter[str]) -> None:
        self._connection = connection
        self._counts = counts

    def execute_many(self, sql: str, rows: Sequence[Any]) -> None:
        self._counts[sql] += len(rows)
        self._connection.execute_many(sql, rows)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._connection, name)

        def counted(sql: str, params: Any) -> Any:
            self._counts[sql] += 1
            return method(sql, params)

        return counted


async def test_many_messages_of_a_session_are_deleted_by_each_statement(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()
    await store.sessions.create(session())
    messages = [Message(f"m{number}", "user", (TextPart("hi"),)) for number in range(1_000)]
    await store.messages.import_messages("s", messages, start=0)
    submit = store.retention._submit

    async def submit_counted(job: Any) -> Any:
        return await submit(lambda connection: job(CountedConnection(connection, counts)))

    monkeypatch.setattr(store.retention, "_submit", submit_counted)
    assert await store.session_deletion.delete("s")
    assert sum(count for sql, count in counts.items() if "messages" in sql) <= 2 * 1_000 / 20 + 2
    assert await store.messages.list("s") == []
