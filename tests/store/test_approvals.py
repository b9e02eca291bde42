"""Approvals in the store: durable, and used once by concurrent processes."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from dragoman.errors import Conflict, NotFound
from dragoman.identity import LOCAL
from dragoman.operations.approval import ApprovalItem, ApprovalRequest, Question
from dragoman.store.store import Store
from tests.store.conftest import Clock
from tests.store.places import Place
from tests.store.samples import session


def asking(id: str = "a", *, session_id: str | None = None, input_hash: str = "h") -> ApprovalRequest:
    return ApprovalRequest(
        id=id,
        owner="local",
        operation="mail.send",
        input={"to": "ß"},
        input_hash=input_hash,
        items=(ApprovalItem("mail.send", {"to": "ß"}, input_hash, reason="r"),),
        created_at=1_000.0,
        expires_at=2_000.0,
        session_id=session_id,
    )


async def test_an_answer_outlives_a_restart(place: Place, clock: Clock) -> None:
    async with await place.open(clock=clock) as store:
        await store.approvals.create(asking())
        answered = await store.approvals.answer("a", approved=True, by=LOCAL)
    async with await place.open(clock=clock) as store:
        assert await store.approvals.get("a") == answered
        used = await store.approvals.use("a", owner="local", operation="mail.send", input_hash="h")
        assert used.status == "used"
    async with await place.open(clock=clock) as store:
        assert await store.approvals.get("a") == used


async def test_two_stores_beside_each_other_give_one_answer_and_one_use(place: Place, clock: Clock) -> None:
    async with (
        await place.open(clock=clock) as hub,
        await place.open(clock=clock, exclusive=False) as command,
    ):
        await hub.approvals.create(asking())
        stores = [hub, command] * 10
        answers = (store.approvals.answer("a", approved=True, by=LOCAL) for store in stores)
        results = await asyncio.gather(*answers, return_exceptions=True)
        assert [type(each) for each in results if not isinstance(each, ApprovalRequest)] == [Conflict] * 19
        call = {"owner": "local", "operation": "mail.send", "input_hash": "h"}
        uses = await asyncio.gather(
            *(store.approvals.use("a", **call) for store in stores), return_exceptions=True
        )
        assert [type(each) for each in uses if not isinstance(each, ApprovalRequest)] == [Conflict] * 19


async def test_a_session_takes_its_approvals_with_it(store: Store) -> None:
    await store.sessions.create(session())
    await store.approvals.create(asking("mine", session_id="s"))
    await store.approvals.create(asking("other", session_id="t", input_hash="h2"))
    await store.approvals.create(asking("none", input_hash="h3"))
    assert await store.session_deletion.delete("s") is True
    assert {each.id for each in await store.approvals.list()} == {"other", "none"}
    with pytest.raises(NotFound):
        await store.approvals.get("mine")


@pytest.mark.parametrize("answer", ["approved", "denied", "expired"])
async def test_the_state_of_a_call_that_waits_is_kept_until_it_goes_on_and_used_once(
    place: Place, clock: Clock, answer: str
) -> None:
    call = {"owner": "local", "operation": "mail.send", "input_hash": "h"}
    async with await place.open(clock=clock) as store:
        await store.approvals.create(replace(asking(), state=b"half done"))
        if answer == "expired":
            clock.now = 3_000.0
        else:
            await store.approvals.answer("a", approved=answer == "approved", by=LOCAL, reason="so")
    async with await place.open(clock=clock) as store:
        stored = await store.approvals.get("a")
        assert (stored.status, stored.state) == (answer, b"half done")
        used = await store.approvals.use("a", **call)
        assert (used.status, used.state) == ("used" if answer == "approved" else answer, None)
        with pytest.raises(Conflict):
            await store.approvals.use("a", **call)
        assert (await store.approvals.get("a")).state is None


async def test_a_question_and_whose_it_is_are_kept(place: Place, clock: Clock) -> None:
    item = ApprovalItem("user.question", {}, "h", question=Question("Where?", ("Bonn",)), agent="clerk")
    async with await place.open(clock=clock) as store:
        await store.approvals.create(replace(asking(), items=(item,)))
        answered = await store.approvals.answer("a", approved=True, by=LOCAL, reason="Bonn")
        assert (answered.question, answered.answer) == (item.question, "Bonn")
        assert await store.approvals.get("a") == answered


async def test_two_calls_cannot_both_go_on_from_a_state_that_nobody_approved(
    place: Place, clock: Clock
) -> None:
    call = {"owner": "local", "operation": "mail.send", "input_hash": "h"}
    async with (
        await place.open(clock=clock) as hub,
        await place.open(clock=clock, exclusive=False) as command,
    ):
        await hub.approvals.create(replace(asking(), state=b"half done"))
        await hub.approvals.answer("a", approved=False, by=LOCAL)
        uses = [store.approvals.use("a", **call) for store in [hub, command] * 5]
        results = await asyncio.gather(*uses, return_exceptions=True)
        assert [type(each) for each in results if not isinstance(each, ApprovalRequest)] == [Conflict] * 9


async def test_what_was_answered_or_has_expired_since_then_is_found_and_what_was_used_is_not(
    place: Place, clock: Clock
) -> None:
    async with await place.open(clock=clock) as store:
        call = {"owner": "local", "operation": "mail.send", "input_hash": "h"}
        for id in ("yes", "no", "used", "open", "outside"):
            run = None if id == "outside" else f"run_{id}"
            await store.approvals.create(replace(asking(id), run_id=run, state=b"far"))
        for id in ("yes", "no", "used", "outside"):
            await store.approvals.answer(id, approved=id != "no", by=LOCAL)
        await store.approvals.use("used", **call)

        async def found(since: float) -> dict[str, str]:
            return {each.id: each.status for each in await store.approvals.list_settled(since)}

        assert await found(0.0) == {"yes": "approved", "no": "denied"}
        assert await found(clock.now + 1) == {}
        clock.now = 2_000.0
        over = {"yes": "expired", "no": "denied", "open": "expired", "outside": "expired"}
        assert await found(1_999.0) == over
        given_up = await store.approvals.use("open", **call)
        assert (given_up.status, given_up.state) == ("expired", None)
        with pytest.raises(Conflict):
            await store.approvals.use("open", **call)
