"""Approvals: one answer, one use, bound to the call; in memory and in the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.errors import Conflict, DragomanError, Forbidden, NotFound
from dragoman.identity import Identity
from dragoman.operations.approval import ApprovalItem, ApprovalRequest, ApprovalStore, MemoryApprovalStore
from dragoman.store.store import Store

ANN, BOB = Identity("ann"), Identity("bob")
ADMIN = Identity("root", "key_9", frozenset({"admin"}))
CALL = {"owner": "ann", "operation": "mail.send", "input_hash": "h1"}


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "store"])
async def approvals(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> AsyncIterator[ApprovalStore]:
    if request.param == "memory":
        yield MemoryApprovalStore(clock)
        return
    async with await Store.open(tmp_path, clock=clock) as store:
        yield store.approvals


def asking(id: str = "a", **fields: Any) -> ApprovalRequest:
    """A request that expires at 1100."""
    arguments: dict[str, Any] = {
        "id": id,
        "owner": "ann",
        "operation": "mail.send",
        "input": {"to": ["x", 1, None], "é": "ß"},
        "input_hash": "h1",
        "items": (ApprovalItem("mail.send", {"to": 1}, "h1", reason="others see it"),),
        "created_at": 1_000.0,
        "expires_at": 1_100.0,
        **fields,
    }
    return ApprovalRequest(**arguments)


FULL = asking(
    call_id="call_1",
    run_id="run_1",
    session_id="s",
    tool_call_id="t1",
    agent="helper",
    answerers=("owner", "bob"),
)


async def refused(kind: type[DragomanError], attempt: Any) -> str:
    """The message of the error; what was tried changes nothing."""
    with pytest.raises(kind) as raised:
        await attempt
    return str(raised.value)


async def test_a_request_comes_back_as_it_was_asked(approvals: ApprovalStore) -> None:
    assert await approvals.create(FULL) == FULL
    assert await approvals.get("a") == FULL
    assert list(await approvals.list()) == [FULL]
    assert "'b'" in await refused(NotFound, approvals.get("b"))
    await refused(Conflict, approvals.create(replace(FULL, input_hash="h2")))


async def test_an_approval_is_good_for_one_use(approvals: ApprovalStore, clock: Clock) -> None:
    await approvals.create(asking())
    await refused(Conflict, approvals.use("a", **CALL))
    clock.now = 1_050.0
    request = await approvals.answer("a", approved=True, by=ANN, reason="go")
    assert request == asking(status="approved", answered_at=1_050.0, answered_by="ann", reason="go")
    assert await approvals.get("a") == request
    assert await approvals.use("a", **CALL) == replace(request, status="used")
    assert "is used" in await refused(Conflict, approvals.use("a", **CALL))
    assert (await approvals.get("a")).status == "used"


async def test_a_denied_call_is_not_run_and_the_answer_stands(approvals: ApprovalStore) -> None:
    await approvals.create(asking())
    assert (await approvals.answer("a", approved=False, by=ANN)).status == "denied"
    assert "is already denied" in await refused(Conflict, approvals.answer("a", approved=True, by=ANN))
    assert "is denied" in await refused(Conflict, approvals.use("a", **CALL))


@pytest.mark.promise("approval-bound")
async def test_a_changed_a_foreign_and_a_replayed_use_are_refused_and_the_right_one_still_passes(
    approvals: ApprovalStore,
) -> None:
    await approvals.create(asking(tool_call_id="t1"))
    await approvals.answer("a", approved=True, by=ANN)
    await refused(Conflict, approvals.use("a", **{**CALL, "input_hash": "h2"}))
    await refused(Conflict, approvals.use("a", **{**CALL, "operation": "mail.read"}))
    await refused(Conflict, approvals.use("a", **CALL, tool_call_id="t2"))
    await refused(Forbidden, approvals.use("a", **{**CALL, "owner": "bob"}))
    await refused(NotFound, approvals.use("b", **CALL))
    assert (await approvals.use("a", **CALL, tool_call_id="t1")).status == "used"
    await refused(Conflict, approvals.use("a", **CALL, tool_call_id="t1"))


async def test_only_those_who_may_can_answer(approvals: ApprovalStore) -> None:
    await approvals.create(asking("a"))
    await approvals.create(asking("b", answerers=("bob",), input_hash="h2"))
    await approvals.create(asking("c", answerers=(), input_hash="h3"))
    await approvals.create(asking("d", owner="owner", input_hash="h4"))
    for id, by in (("a", BOB), ("b", ANN), ("b", Identity("owner")), ("c", ANN), ("d", ANN)):
        await refused(Forbidden, approvals.answer(id, approved=True, by=by))
        assert (await approvals.get(id)).status == "pending"
    for id, by in (("a", ANN), ("b", BOB), ("c", ADMIN), ("d", Identity("owner"))):
        answer = await approvals.answer(id, approved=True, by=by)
        assert (answer.status, answer.answered_by) == ("approved", by.owner)


async def test_what_is_not_answered_or_not_used_in_time_has_expired(
    approvals: ApprovalStore, clock: Clock
) -> None:
    await approvals.create(asking("a"))
    await approvals.create(asking("b", input_hash="h2"))
    await approvals.answer("b", approved=True, by=ANN)
    clock.now = 1_100.0
    assert [each.status for each in await approvals.list()] == ["expired", "expired"]
    assert "is already expired" in await refused(Conflict, approvals.answer("a", approved=True, by=ANN))
    assert "is expired" in await refused(Conflict, approvals.use("b", **{**CALL, "input_hash": "h2"}))
    assert (await approvals.get("b")).status == "expired"


async def test_the_same_waiting_call_is_asked_about_once(approvals: ApprovalStore, clock: Clock) -> None:
    first = await approvals.create(asking("a", tool_call_id="t", run_id="r"))
    assert await approvals.create(asking("b", tool_call_id="t", run_id="r", created_at=1_001.0)) == first
    others: list[dict[str, Any]] = [
        {"owner": "bob"},
        {"run_id": "r2"},
        {"run_id": None},
        {"tool_call_id": "t2"},
        {"operation": "mail.read"},
        {"input_hash": "h2"},
        {"items": ()},
        {"answerers": ("bob",)},
    ]
    for number, changed in enumerate(others):
        other = asking(**{"id": f"c{number}", "tool_call_id": "t", "run_id": "r", **changed})
        assert await approvals.create(other) == other
    assert len(await approvals.list()) == len(others) + 1
    clock.now = 1_100.0
    late = asking("late", tool_call_id="t", run_id="r", expires_at=1_200.0)
    assert await approvals.create(late) == late  # the first has expired
    await approvals.answer("late", approved=True, by=ANN)
    again = replace(late, id="again")
    assert await approvals.create(again) == again  # the one before is answered


async def test_a_request_outside_of_runs_is_asked_once_too(approvals: ApprovalStore) -> None:
    first = await approvals.create(asking("a"))
    assert await approvals.create(asking("b")) == first


async def test_those_of_a_session_are_listed_whoever_asked_for_them(approvals: ApprovalStore) -> None:
    for id, owner, session in (
        ("a", "ann", "s"),
        ("b", "bob", "s"),
        ("c", "ann", "other"),
        ("d", "ann", None),
    ):
        await approvals.create(asking(id, owner=owner, session_id=session, tool_call_id=id))
    await approvals.answer("a", approved=True, by=ANN)
    assert {each.id for each in await approvals.list(session_id="s")} == {"a", "b"}
    assert [each.id for each in await approvals.list(session_id="s", status="pending")] == ["b"]
    assert len(await approvals.list(session_id="s", limit=1)) == 1


async def test_a_suspended_call_outside_of_runs_is_found_behind_any_number_of_other_requests(
    approvals: ApprovalStore, clock: Clock
) -> None:
    await approvals.create(asking("plain"))
    await approvals.create(asking("of a run", run_id="r", state=b"far"))
    assert await approvals.find_suspended(**CALL) is None
    await approvals.create(asking("wanted", tool_call_id="t", state=b"far"))
    for number in range(600):
        await approvals.create(asking(f"n{number}", input_hash=f"n{number}", created_at=1_001.0))
    found = await approvals.find_suspended(**CALL)
    assert found is not None
    assert found.id == "wanted"
    for changed in ({"owner": "bob"}, {"operation": "mail.read"}, {"input_hash": "h2"}):
        assert await approvals.find_suspended(**{**CALL, **changed}) is None
    clock.now = 1_100.0
    assert await approvals.find_suspended(**CALL) is None


async def test_what_was_approved_is_found_for_the_very_same_call_outside_of_runs(
    approvals: ApprovalStore, clock: Clock
) -> None:
    await approvals.create(asking("run", run_id="r", tool_call_id="t"))
    await approvals.answer("run", approved=True, by=ANN)
    assert await approvals.find_approved(**CALL) is None
    for id, at in (("old", 1_001.0), ("new", 1_002.0)):
        await approvals.create(asking(id, created_at=at))
        assert await approvals.find_approved(**CALL) in (None, await approvals.get("old"))
        await approvals.answer(id, approved=True, by=ANN)
    found = await approvals.find_approved(**CALL)
    assert found == await approvals.get("new")
    for changed in ({"owner": "bob"}, {"operation": "mail.read"}, {"input_hash": "h2"}):
        assert await approvals.find_approved(**{**CALL, **changed}) is None
    await approvals.use("new", **CALL)
    found = await approvals.find_approved(**CALL)
    assert found is not None
    assert found.id == "old"
    clock.now = 1_100.0
    assert await approvals.find_approved(**CALL) is None


async def test_they_are_listed_by_status_and_by_whom_they_concern(
    approvals: ApprovalStore, clock: Clock
) -> None:
    await approvals.create(asking("used", created_at=1.0))
    await approvals.answer("used", approved=True, by=ANN)
    await approvals.use("used", **CALL)
    await approvals.create(asking("denied", created_at=2.0))
    await approvals.answer("denied", approved=False, by=ANN)
    await approvals.create(asking("expired", created_at=3.0, expires_at=1_010.0))
    clock.now = 1_020.0
    await approvals.create(asking("approved", created_at=4.0))
    await approvals.answer("approved", approved=True, by=ANN)
    await approvals.create(asking("pending", created_at=5.0))
    await approvals.create(asking("bobs", owner="bob", created_at=6.0, answerers=("bob", 'o%_"/ß')))
    for status in ("pending", "approved", "denied", "expired", "used"):
        found = await approvals.list(owner="ann", status=status)
        assert [(each.id, each.status) for each in found] == [(status, status)]
    assert [each.id for each in await approvals.list(limit=2)] == ["bobs", "pending"]
    for owner, seen in ((BOB.owner, ["bobs"]), ('o%_"/ß', ["bobs"]), ("o%", []), ("owner", []), ("eve", [])):
        assert [each.id for each in await approvals.list(owner=owner)] == seen


@pytest.mark.promise("approval-once")
async def test_of_twenty_uses_and_of_twenty_answers_at_once_one_passes(approvals: ApprovalStore) -> None:
    await approvals.create(asking())
    answers = (approvals.answer("a", approved=number % 2 == 0, by=ANN) for number in range(20))
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    assert sorted(type(each).__name__ for each in outcomes) == ["ApprovalRequest"] + ["Conflict"] * 19
    winner = next(each for each in outcomes if isinstance(each, ApprovalRequest))
    assert await approvals.get("a") == winner
    await approvals.create(asking("b", input_hash="h2"))
    await approvals.answer("b", approved=True, by=ANN)
    uses = (approvals.use("b", **{**CALL, "input_hash": "h2"}) for _ in range(20))
    outcomes = await asyncio.gather(*uses, return_exceptions=True)
    assert sorted(type(each).__name__ for each in outcomes) == ["ApprovalRequest"] + ["Conflict"] * 19


async def test_twenty_asks_of_the_same_call_at_once_make_one_request(approvals: ApprovalStore) -> None:
    stored = await asyncio.gather(*(approvals.create(asking(f"a{number}")) for number in range(20)))
    assert len({each.id for each in stored}) == 1
    assert len(await approvals.list()) == 1
