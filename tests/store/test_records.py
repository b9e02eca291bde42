"""Calls, usage and keys: what every backend keeps of them."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.errors import Conflict
from dragoman.events import Usage
from dragoman.operations.ledger import CallRecord, Entry
from dragoman.operations.outcome import CallFailure
from dragoman.store.keys import USED_SECONDS
from dragoman.store.store import Store
from dragoman.store.usage import Totals, UsageRecord
from tests.store.conftest import Clock

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
USED = UsageRecord(
    id="u1",
    owner="ann",
    status="finished",
    started_at=10.0,
    run_id="r",
    session_id="s",
    key_id="k",
    step=1,
    provider="up",
    model_asked="any",
    model_served="any-2",
    tokens=Usage(input_tokens=10, output_tokens=5, total_tokens=15),
    cost=0.5,
    duration=1.25,
    finish_reason="stop",
)


async def test_a_call_is_written_down_before_it_runs_and_again_when_it_has_ended(store: Store) -> None:
    await store.calls.begin(CALL)
    assert await store.calls.get("c1") == Entry(record=CALL)
    await store.calls.end("c1", "done", ended_at=2.0, result={"text": "…"})
    assert await store.calls.get("c1") == Entry(
        record=CALL, status="done", ended_at=2.0, result={"text": "…"}
    )


async def test_a_failed_call_keeps_its_failure(store: Store) -> None:
    failure = CallFailure(code="invalid_input", message="no", problems=[{"path": "x"}], input_schema={"a": 1})
    await store.calls.begin(msgspec.structs.replace(CALL, input=None))
    await store.calls.end("c1", "failed", ended_at=2.0, error=failure)
    found = await store.calls.get("c1")
    assert found is not None
    assert found.error == failure


async def test_the_first_end_of_a_call_holds_but_an_uncertain_one_may_be_settled(store: Store) -> None:
    await store.calls.begin(CALL)
    await store.calls.end("c1", "uncertain", ended_at=2.0)
    await store.calls.end("c1", "done", ended_at=3.0, result=1)
    await store.calls.end("c1", "aborted", ended_at=4.0)
    assert await store.calls.get("c1") == Entry(record=CALL, status="done", ended_at=3.0, result=1)


async def test_the_end_of_a_call_that_never_began_is_no_error(store: Store) -> None:
    await store.calls.end("nobody", "aborted", ended_at=1.0)
    assert await store.calls.get("nobody") is None


async def test_a_call_id_is_taken_once(store: Store) -> None:
    await store.calls.begin(CALL)
    with pytest.raises(Conflict):
        await store.calls.begin(CALL)


async def test_the_calls_of_a_run_make_a_tree_in_the_order_in_which_they_began(store: Store) -> None:
    child = msgspec.structs.replace(CALL, id="c0", parent_id="c1", started_at=2.0)
    other = msgspec.structs.replace(CALL, id="c9", run_id="other")
    for record in (child, other, CALL):
        await store.calls.begin(record)
    assert await store.calls.for_run("r") == [Entry(record=CALL), Entry(record=child)]


async def test_usage_sums_what_is_known_and_leaves_the_rest_unknown(store: Store) -> None:
    await store.usage.add(USED)
    more = Usage(input_tokens=1, reasoning_tokens=0, estimated=True)
    await store.usage.add(msgspec.structs.replace(USED, id="u2", tokens=more, cost=None))
    tokens = Usage(input_tokens=11, output_tokens=5, total_tokens=15, reasoning_tokens=0, estimated=True)
    assert await store.usage.totals(run_id="r") == Totals(calls=2, cost=0.5, tokens=tokens)


async def test_usage_is_counted_for_all_that_is_asked_together(store: Store) -> None:
    await store.usage.add(USED)
    store.post(store.usage.adding(msgspec.structs.replace(USED, id="u2", owner="bob")))
    store.post(store.usage.adding(msgspec.structs.replace(USED, id="u3", started_at=5.0)))
    await store.flush()
    assert (await store.usage.totals()).calls == 3
    assert (await store.usage.totals(owner="ann")).calls == 2
    assert (await store.usage.totals(owner="ann", since=10.0)).calls == 1
    assert (await store.usage.totals(session_id="s", key_id="k", run_id="r")).calls == 3


async def test_usage_of_nothing_is_unknown_not_zero(store: Store) -> None:
    assert await store.usage.totals(owner="eve") == Totals(calls=0, cost=None, tokens=Usage())


async def test_a_key_is_found_by_its_secret_only(store: Store, clock: Clock) -> None:
    key, secret = await store.keys.create("ann", name="laptop", scopes=["chat", "admin"])
    assert secret.startswith("dgm_")
    assert len(secret) >= 36
    assert secret.startswith(key.prefix)
    assert (key.owner, key.name, key.created_at) == ("ann", "laptop", clock.now)
    assert key.scopes == {"chat", "admin"}
    assert await store.keys.find(secret) == key
    assert await store.keys.find(secret[:-1]) is None
    assert await store.keys.find("") is None
    assert await store.keys.find("\udcff") is None


async def test_a_secret_is_nowhere_in_the_database(store: Store) -> None:
    _, secret = await store.keys.create("ann")
    rows = await store.database.read(lambda connection: connection.all("SELECT * FROM keys", {}))
    assert secret not in repr(rows)
    assert secret not in repr(await store.keys.list())


async def test_a_revoked_key_is_not_found_but_still_listed(store: Store, clock: Clock) -> None:
    key, secret = await store.keys.create("ann")
    other, _ = await store.keys.create("bob")
    clock.now += 1
    assert await store.keys.revoke(key.id) is True
    assert await store.keys.revoke(key.id) is False
    assert await store.keys.revoke("nobody") is False
    assert await store.keys.find(secret) is None
    revoked = msgspec.structs.replace(key, revoked_at=clock.now)
    assert {found.id: found for found in await store.keys.list()} == {key.id: revoked, other.id: other}


async def test_the_use_of_a_key_is_noted_once_a_minute(store: Store, clock: Clock) -> None:
    _, secret = await store.keys.create("ann")
    noted = []
    for passed in (0.0, USED_SECONDS - 1, 1.0):
        clock.now += passed
        await store.keys.find(secret)
        await store.flush()
        noted.append((await store.keys.list())[0].last_used_at)
    assert noted == [1_000.0, 1_000.0, 1_000.0 + USED_SECONDS]
