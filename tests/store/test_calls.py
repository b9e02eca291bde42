"""Calls in the store."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.errors import Conflict
from dragoman.operations.ledger import CallCompletion, CallRecord, LedgerEntry
from dragoman.operations.outcome import CallFailure, CallStatus
from dragoman.store.store import Store
from tests.store.places import Place

CALL = CallRecord(
    id="c1",
    operation="files.read",
    effect="read",
    owner="ann",
    input={"path": "a.txt", "lines": [1, 2]},
    input_hash="h",
    idempotency_key="r:t1",
    started_at=1.0,
    run_id="r",
    session_id="s",
    tool_call_id="t1",
)


async def test_a_call_is_written_down_before_it_runs_and_again_when_it_has_ended(store: Store) -> None:
    await store.calls.record_start(CALL)
    assert await store.calls.get("c1") == LedgerEntry(record=CALL)
    await store.calls.record_end("c1", CallCompletion(status="done", ended_at=2.0, result={"text": "…"}))
    assert await store.calls.get("c1") == LedgerEntry(
        record=CALL, status="done", ended_at=2.0, result={"text": "…"}
    )


async def test_a_failed_call_keeps_its_failure(store: Store) -> None:
    failure = CallFailure(code="invalid_input", message="no", problems=[{"path": "x"}], input_schema={"a": 1})
    await store.calls.record_start(msgspec.structs.replace(CALL, input=None))
    await store.calls.record_end("c1", CallCompletion(status="failed", ended_at=2.0, error=failure))
    found = await store.calls.get("c1")
    assert found is not None
    assert found.error == failure


async def test_the_first_end_of_a_call_holds_but_an_uncertain_one_may_be_settled(store: Store) -> None:
    await store.calls.record_start(CALL)
    await store.calls.record_end("c1", CallCompletion(status="uncertain", ended_at=2.0))
    await store.calls.record_end("c1", CallCompletion(status="done", ended_at=3.0, result=1))
    await store.calls.record_end("c1", CallCompletion(status="aborted", ended_at=4.0))
    assert await store.calls.get("c1") == LedgerEntry(record=CALL, status="done", ended_at=3.0, result=1)


async def test_the_end_of_a_call_that_never_began_is_no_error(store: Store) -> None:
    await store.calls.record_end("nobody", CallCompletion(status="aborted", ended_at=1.0))
    assert await store.calls.get("nobody") is None


async def test_a_call_id_is_taken_once(store: Store) -> None:
    await store.calls.record_start(CALL)
    with pytest.raises(Conflict):
        await store.calls.record_start(CALL)


async def test_the_calls_of_a_run_make_a_tree_in_the_order_in_which_they_began(store: Store) -> None:
    child = msgspec.structs.replace(CALL, id="c0", parent_id="c1", started_at=2.0)
    other = msgspec.structs.replace(CALL, id="c9", run_id="other")
    for record in (child, other, CALL):
        await store.calls.record_start(record)
    assert await store.calls.list_for_run("r") == [LedgerEntry(record=CALL), LedgerEntry(record=child)]


async def test_a_call_that_waited_runs_for_whoever_goes_on_and_only_once(store: Store) -> None:
    await store.calls.record_start(CALL)
    await store.calls.record_end("c1", CallCompletion(status="pending"))
    later = msgspec.structs.replace(CALL, run_id="r2", step=3, started_at=9.0)
    await store.calls.record_resume(later)
    assert await store.calls.get("c1") == LedgerEntry(record=later)
    with pytest.raises(Conflict):
        await store.calls.record_resume(later)


async def test_calls_that_a_crash_has_cut_off_are_ended_by_what_they_would_have_done(store: Store) -> None:
    for effect in ("read", "idempotent", "once"):
        await store.calls.record_start(msgspec.structs.replace(CALL, id=effect, effect=effect, run_id=None))
    await store.calls.record_start(msgspec.structs.replace(CALL, id="waits", effect="once"))
    await store.calls.record_end("waits", CallCompletion(status="pending"))
    assert await store.calls.interrupt_running(5.0) == 3
    found = [await store.calls.get(id) for id in ("read", "idempotent", "once", "waits")]
    states = [(each.status, each.ended_at) for each in found if each is not None]
    assert states == [("aborted", 5.0), ("aborted", 5.0), ("uncertain", 5.0), ("pending", None)]
    assert await store.calls.interrupt_running(6.0) == 0


async def test_calls_of_hosts_that_the_database_does_not_have_are_ended(store: Store, place: Place) -> None:
    """So it is when a backup or a copy was made while they ran. A hub on SQLite is not a host."""
    for id in ("own", "lost", "of SQLite"):
        await store.calls.record_start(msgspec.structs.replace(CALL, id=id))
    await below(store, "lost", "waits")
    place.query("INSERT INTO hosts (id, name, version, started_at) VALUES ('h1', 'm', '1', 1.0)")
    place.query("UPDATE calls SET host = CASE id WHEN 'own' THEN 'h1' WHEN 'lost' THEN 'h0' END")
    assert await store.calls.interrupt_absent(5.0) == 2
    assert await statuses(store) == {
        "lost": "aborted",
        "of SQLite": "aborted",
        "own": "running",
        "waits": "aborted",
    }


async def below(store: Store, above: str, *ids: str, status: CallStatus = "pending") -> None:
    for id in ids:
        await store.calls.record_start(msgspec.structs.replace(CALL, id=id, parent_id=above))
        await store.calls.record_end(id, CallCompletion(status=status))


async def statuses(store: Store) -> dict[str, str]:
    return {entry.record.id: entry.status for entry in await store.calls.list_for_run("r")}


async def test_a_call_that_is_given_up_takes_those_with_it_that_wait_below(store: Store) -> None:
    await store.calls.record_start(CALL)
    await below(store, "c1", "waits")
    await below(store, "c1", "done", status="done")
    await below(store, "waits", "deep")
    ended = CallCompletion(status="denied", ended_at=5.0, error=CallFailure(code="call_denied", message="no"))
    await store.calls.close_pending("c1", ended)
    assert set((await statuses(store)).values()) == {"running", "pending", "done"}, "it does not wait"
    await store.calls.record_end("c1", CallCompletion(status="pending"))
    await store.calls.close_pending("c1", ended)
    assert await statuses(store) == {"c1": "denied", "waits": "denied", "done": "done", "deep": "denied"}
    await store.calls.close_pending("nobody", ended)


async def test_what_waits_below_a_call_that_a_crash_cut_off_waits_no_more(store: Store) -> None:
    await store.calls.record_start(CALL)
    await below(store, "c1", "waits")
    await below(store, "waits", "deep")
    await store.calls.record_start(msgspec.structs.replace(CALL, id="other"))
    await store.calls.record_end("other", CallCompletion(status="pending"))
    assert await store.calls.interrupt_running(5.0) == 1
    assert await statuses(store) == {
        "c1": "aborted",
        "waits": "aborted",
        "deep": "aborted",
        "other": "pending",
    }
