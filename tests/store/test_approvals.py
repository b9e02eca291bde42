"""Approvals in the store: they outlive the process, and two processes cannot use one twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dragoman.errors import Conflict, NotFound
from dragoman.operations.approval import Approval, Item
from dragoman.operations.identity import LOCAL
from dragoman.store.store import Store
from tests.store.conftest import Clock
from tests.store.samples import session


def asking(id: str = "a", *, session_id: str | None = None, input_hash: str = "h") -> Approval:
    return Approval(
        id=id,
        owner="local",
        operation="mail.send",
        input={"to": "ß"},
        input_hash=input_hash,
        items=(Item("mail.send", {"to": "ß"}, input_hash, reason="r"),),
        created_at=1_000.0,
        expires_at=2_000.0,
        session_id=session_id,
    )


async def test_an_answer_outlives_a_restart(folder: Path, clock: Clock) -> None:
    async with await Store.open(folder, clock=clock) as store:
        await store.approvals.ask(asking())
        given = await store.approvals.answer("a", approved=True, by=LOCAL)
    async with await Store.open(folder, clock=clock) as store:
        assert await store.approvals.get("a") == given
        used = await store.approvals.use("a", owner="local", operation="mail.send", input_hash="h")
        assert used.status == "used"
    async with await Store.open(folder, clock=clock) as store:
        assert await store.approvals.get("a") == used


async def test_two_stores_beside_each_other_give_one_answer_and_one_use(folder: Path, clock: Clock) -> None:
    async with (
        await Store.open(folder, clock=clock) as hub,
        await Store.open(folder, clock=clock, exclusive=False) as command,
    ):
        await hub.approvals.ask(asking())
        stores = [hub, command] * 10
        answers = (store.approvals.answer("a", approved=True, by=LOCAL) for store in stores)
        said = await asyncio.gather(*answers, return_exceptions=True)
        assert [type(each) for each in said if not isinstance(each, Approval)] == [Conflict] * 19
        call = {"owner": "local", "operation": "mail.send", "input_hash": "h"}
        uses = await asyncio.gather(
            *(store.approvals.use("a", **call) for store in stores), return_exceptions=True
        )
        assert [type(each) for each in uses if not isinstance(each, Approval)] == [Conflict] * 19


async def test_a_session_takes_its_approvals_with_it(store: Store) -> None:
    await store.sessions.create(session())
    await store.approvals.ask(asking("mine", session_id="s"))
    await store.approvals.ask(asking("other", session_id="t", input_hash="h2"))
    await store.approvals.ask(asking("none", input_hash="h3"))
    assert await store.sessions.delete("s") is True
    assert {each.id for each in await store.approvals.list()} == {"other", "none"}
    with pytest.raises(NotFound):
        await store.approvals.get("mine")
