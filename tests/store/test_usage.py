"""Usage records: sums by any field."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.errors import Conflict
from dragoman.events import Usage
from dragoman.store.accounts.usage import UsageTotals
from dragoman.store.accounts.usage_report import GROUP_NAMES, UsageReportRow
from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord

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


async def test_usage_sums_what_is_known_and_leaves_the_rest_unknown(store: Store) -> None:
    await store.usage.add(USED)
    more = Usage(input_tokens=1, reasoning_tokens=0, estimated=True)
    await store.usage.add(replace(USED, id="u2", tokens=more, cost=None))
    tokens = Usage(input_tokens=11, output_tokens=5, total_tokens=15, reasoning_tokens=0, estimated=True)
    assert await store.usage.totals(run_id="r") == UsageTotals(calls=2, cost=0.5, tokens=tokens)


async def test_usage_is_counted_for_all_that_is_asked_together(store: Store) -> None:
    await store.usage.add(USED)
    store.enqueue(store.usage.insert_job(replace(USED, id="u2", owner="bob")))
    store.enqueue(store.usage.insert_job(replace(USED, id="u3", started_at=5.0)))
    await store.flush()
    assert (await store.usage.totals()).calls == 3
    assert (await store.usage.totals(owner="ann")).calls == 2
    assert (await store.usage.totals(owner="ann", since=10.0)).calls == 1
    assert (await store.usage.totals(session_id="s", key_id="k", run_id="r")).calls == 3


async def test_usage_of_nothing_is_unknown_not_zero(store: Store) -> None:
    assert await store.usage.totals(owner="eve") == UsageTotals(calls=0, cost=None, tokens=Usage())


NOON = 1_795_348_800.0  # 2026-11-22T12:00Z


def call(id: str, *, at: float = NOON, **fields: Any) -> UsageRecord:
    fields = {"owner": "ann", "status": "finished", **fields}
    return UsageRecord(id=id, started_at=at, **fields)


async def insert(store: Store, *records: UsageRecord) -> None:
    await store.write(store.usage.insert_missing_job(records))


async def test_a_record_is_kept_whole(store: Store) -> None:
    whole = replace(
        USED,
        request_id="req_1",
        door="/v1/messages",
        key_name="first",
        first_byte=0.25,
        upstream_status=200,
        error="timeout",
        price_model="any-2",
        tokens=Usage(1, 2, 3, 4, 5, 6, estimated=True),
    )
    await insert(store, whole, call("bare"))
    assert await store.usage.list() == [whole, call("bare")]


async def test_a_name_with_a_nul_is_stored_by_either_database(store: Store) -> None:
    await insert(store, call("a", model_asked="m\0x"), call("b"))
    first, _ = await store.usage.list()
    assert first.model_asked in ("m\0x", "m\ufffdx")


async def test_a_batch_may_be_written_twice_and_counts_once(store: Store) -> None:
    await insert(store, call("a"), call("b"))
    await insert(store, call("b"), call("c"))
    assert [record.id for record in await store.usage.list()] == ["a", "b", "c"]
    with pytest.raises(Conflict):
        await store.usage.add(call("a"))


async def test_a_report_adds_up_what_is_known_of_each_group(store: Store) -> None:
    await insert(
        store,
        call("1", model_served="m", cost=0.5, tokens=Usage(10, 2), duration=1.0, first_byte=0.5),
        call("2", model_served="m", tokens=Usage(5, estimated=True), duration=3.0, error="timeout"),
        call("3", model_served="n", status="failed", cost=2.0),
        call("4"),
    )
    nothing: dict[str, Any] = {
        "failed": 0,
        "estimated": 0.0,
        "unpriced": 0,
        "tokens": Usage(),
        **dict.fromkeys(("cost", "mean_duration", "max_duration", "mean_first_byte", "max_first_byte")),
    }
    m = nothing | {"failed": 1, "unpriced": 1, "cost": 0.5, "tokens": Usage(15, 2, estimated=True)}
    m |= {"estimated": 0.5, "mean_duration": 2.0, "max_duration": 3.0}
    m |= {"mean_first_byte": 0.5, "max_first_byte": 0.5}
    assert await store.usage.report(["model_served"]) == [
        UsageReportRow(group={"model_served": "n"}, calls=1, **nothing | {"failed": 1, "cost": 2.0}),
        UsageReportRow(group={"model_served": "m"}, calls=2, **m),
        UsageReportRow(group={"model_served": None}, calls=1, **nothing | {"unpriced": 1}),
    ]
    assert await store.usage.report([], filters={"owner": "eve"}) == [
        UsageReportRow(group={}, calls=0, **nothing)
    ]


async def test_a_report_by_time_is_in_the_order_of_time(store: Store) -> None:
    day = 86_400
    await insert(store, call("1", cost=1.0), call("2", at=NOON - day, cost=9.0), call("3", at=NOON + 3_599.9))
    days = [line.group for line in await store.usage.report(["day"])]
    assert days == [{"day": "2026-11-21"}, {"day": "2026-11-22"}]
    hours = [(line.group["hour"], line.calls) for line in await store.usage.report(["hour"], since=NOON)]
    assert hours == [("2026-11-22T12:00Z", 2)]


async def test_everything_that_can_be_grouped_by_can_be_grouped_by_together(store: Store) -> None:
    await insert(store, USED)
    (line,) = await store.usage.report(GROUP_NAMES)
    assert line.group == {
        "owner": "ann",
        "key_id": "k",
        "provider": "up",
        "model_served": "any-2",
        "model_asked": "any",
        "door": None,
        "status": "finished",
        "day": "1970-01-01",
        "hour": "1970-01-01T00:00Z",
        "session_id": "s",
        "run_id": "r",
        "operation": None,
    }


async def test_a_report_is_of_a_time_and_of_what_is_filtered(store: Store) -> None:
    await insert(
        store,
        call("1", at=1.0, model_asked="m"),
        call("2", at=2.0, model_served="m", owner="bob"),
        call("3", at=3.0, provider="p"),
    )

    async def calls(**filters: Any) -> int:
        (line,) = await store.usage.report(**filters)
        return line.calls

    assert await calls(since=2.0) == 2
    assert await calls(until=2.0) == 1
    assert await calls(filters={"model": "m"}) == 2
    assert await calls(filters={"model": "m", "owner": "bob"}) == 1
    assert await calls(filters={"provider": "p"}, since=3.5) == 0
    assert len(await store.usage.report(["owner"], limit=1)) == 1


async def test_the_records_come_in_pages_the_oldest_first(store: Store) -> None:
    records = [call(f"{n}", at=NOON + n // 2) for n in range(7)]
    await insert(store, *reversed(records), call("x", owner="bob"))
    found: list[UsageRecord] = []
    while True:
        after = (found[-1].started_at, found[-1].id) if found else None
        page = await store.usage.list(filters={"owner": "ann"}, after=after, limit=3)
        found += page
        if len(page) < 3:
            break
    assert found == records
