"""Approvals whose time is over, or not, while the clock of the hub jumps."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from dragoman.errors import Unavailable
from dragoman.identity import LOCAL
from dragoman.operations.approval import ApprovalItem, ApprovalRequest
from dragoman.operations.permission.access_control import ApprovalFlow
from dragoman.server.app.background_jobs import ApprovalResumer
from dragoman.store.approval_inbox import InboxQuery
from dragoman.store.approvals import ApprovalRepository
from dragoman.store.settled_clock import SettledClock
from dragoman.store.store import Store

pytestmark = pytest.mark.anyio
START, HOUR, DAY, YEAR = 1_790_000_000.0, 3_600.0, 86_400.0, 31_536_000.0


class HostClock:
    """The clock of a host, which is `ahead` of the time that really passes."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.ahead = 0.0

    def __call__(self) -> float:
        return START + self.passed + self.ahead

    def monotonic(self) -> float:
        return self.passed


class Flow:
    """Expires requests as the store has them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def expire_if_due(self, id: str) -> ApprovalRequest:
        return await self._store.approvals.get(id)

    async def abandon(self, approval: ApprovalRequest) -> None: ...


class Resumed:
    """A resumer, and the requests that runs went on with, with the state of each."""

    def __init__(self, store: Store, clock: HostClock) -> None:
        self.store, self.clock = store, clock
        self.found: list[tuple[str, str]] = []
        self.failing: set[str] = set()  # ids whose run cannot be resumed
        self._resumer = ApprovalResumer(
            store,
            self._resume,
            approval_flow=cast(ApprovalFlow, Flow(store)),
            now=clock,
            clock=SettledClock(clock, monotonic=clock.monotonic),
        )

    async def _resume(self, approval: ApprovalRequest) -> bool:
        if approval.id in self.failing:
            raise Unavailable("the queue of the hosts cannot be used")
        self.found.append((approval.id, approval.status))
        return True

    async def after(self, seconds: float) -> list[tuple[str, str]]:
        """What went on when this time has passed."""
        self.clock.passed += seconds
        self.found = []
        await self._resumer.poll()
        return self.found

    async def ask(self, id: str, *, seconds: float = DAY) -> None:
        now = self.clock()
        request = ApprovalRequest(
            id=id,
            owner="local",
            operation="mail.send",
            input={},
            input_hash=id,
            items=(ApprovalItem("mail.send", {}, id),),
            created_at=now,
            expires_at=now + seconds,
            run_id=f"run_{id}",
            tool_call_id="c",
        )
        await self.store.approvals.create(request)


@pytest.fixture
async def resumed(tmp_path: Path) -> AsyncIterator[Resumed]:
    clock = HostClock()
    async with await Store.open(tmp_path, clock=clock) as store:
        yield Resumed(store, clock)


async def test_requests_expire_in_their_time(resumed: Resumed) -> None:
    await resumed.ask("a")
    assert await resumed.after(DAY - 1.0) == []
    assert await resumed.after(2.0) == [("a", "expired")]


async def test_a_run_that_cannot_be_resumed_yet_is_logged_once_and_delays_no_other(
    resumed: Resumed, caplog: pytest.LogCaptureFixture
) -> None:
    for id in ("a", "b"):
        await resumed.ask(id)
    resumed.failing = {"a"}
    assert await resumed.after(DAY + 1.0) == [("b", "expired")]
    assert await resumed.after(2.0) == []
    assert [record.getMessage() for record in caplog.records] == [
        "the run of approval a is not resumed yet: the queue of the hosts cannot be used"
    ]
    resumed.failing = set()
    assert await resumed.after(2.0) == [("a", "expired")]


async def test_an_answer_of_a_host_whose_clock_is_behind_is_taken_up_once(resumed: Resumed) -> None:
    """That host may have ended before it could do so itself."""
    store, clock = resumed.store, resumed.clock
    await resumed.ask("a")
    assert await resumed.after(HOUR) == []
    late = ApprovalRepository(store.database, clock=lambda: clock() - 30.0, sessions=store.sessions)
    await late.answer("a", approved=True, by=LOCAL)
    assert await resumed.after(2.0) == [("a", "approved")]
    assert await resumed.after(2.0) == []
    assert await resumed.after(DAY) == [("a", "expired")]
    assert await resumed.after(2.0) == []


async def test_a_clock_that_is_set_ahead_and_right_again_declines_nothing(resumed: Resumed) -> None:
    await resumed.ask("a")
    assert await resumed.after(HOUR) == []
    resumed.clock.ahead = YEAR
    assert await resumed.after(2.0) == []
    assert await resumed.after(HOUR) == []
    resumed.clock.ahead = 0.0
    assert await resumed.after(2.0) == []
    assert (await resumed.store.approvals.get("a")).status == "pending"
    assert await resumed.after(DAY) == [("a", "expired")]


async def test_while_the_clock_is_ahead_a_request_waits_and_can_be_answered(resumed: Resumed) -> None:
    """The store takes the hub's clock for one that jumps; one that is given, as here, is obeyed."""
    clock, store = resumed.clock, resumed.store
    steady = SettledClock(clock, monotonic=clock.monotonic).steady_time
    approvals = ApprovalRepository(store.database, clock=steady, sessions=store.sessions)
    for id in ("a", "b", "c"):
        await resumed.ask(id, seconds=2 * DAY)
    clock.ahead = YEAR
    assert (await approvals.get("a")).status == "pending"
    assert [each.id for each in await approvals.list(status="pending")] == ["c", "b", "a"]
    answered = await approvals.answer("a", approved=True, by=LOCAL)
    assert (answered.status, answered.answered_at) == ("approved", START)
    clock.ahead, clock.passed = 0.0, DAY
    assert (await approvals.get("b")).status == "pending"
    clock.passed = 2 * DAY
    assert (await approvals.get("b")).status == "expired"
    assert (await approvals.get("a")).status == "expired"


async def test_requests_of_a_hub_expire_by_a_clock_that_does_not_jump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As seen from the clock, a year is missing in the machine's uptime when it is set a year ahead."""
    uptime, lag = time.clock_gettime, [0.0]
    async with await Store.open(tmp_path) as store:
        monkeypatch.setattr(time, "clock_gettime", lambda clock: uptime(clock) - lag[0])
        lag[0] = YEAR
        assert -HOUR < store.approval_clock() - (time.time() - YEAR) < HOUR
        await Resumed(store, HostClock()).ask("a", seconds=time.time() - YEAR + DAY - START)
        assert (await store.approvals.get("a")).status == "pending"
        assert (await store.inbox.count(InboxQuery(), since=0.0))["pending"] == 1


async def test_a_clock_that_stays_ahead_is_right_after_a_day(resumed: Resumed) -> None:
    await resumed.ask("a", seconds=2 * DAY)
    assert await resumed.after(2.0) == []
    resumed.clock.ahead = YEAR
    assert await resumed.after(2.0) == []
    await resumed.ask("b", seconds=2 * DAY)
    assert await resumed.after(DAY) == [("a", "expired")]
    assert await resumed.after(DAY) == [("b", "expired")]


async def test_a_clock_that_is_set_back_prolongs_no_request(resumed: Resumed) -> None:
    await resumed.ask("a")
    assert await resumed.after(HOUR) == []
    resumed.clock.ahead = -YEAR
    assert await resumed.after(HOUR) == []
    await resumed.ask("b")
    assert await resumed.after(DAY - 2 * HOUR - 1.0) == []
    assert await resumed.after(1.0) == [("a", "expired")]
    await resumed.after(3.0)
    assert await resumed.after(DAY) == [("b", "expired")]


async def test_expiry_goes_on_when_a_clock_that_was_ahead_from_the_start_is_set_right(
    resumed: Resumed,
) -> None:
    resumed.clock.ahead = YEAR
    ahead = Resumed(resumed.store, resumed.clock)
    assert await ahead.after(2.0) == []
    resumed.clock.ahead = 0.0
    assert await ahead.after(2.0) == []
    await ahead.ask("a")
    assert await ahead.after(DAY + 2.0) == [("a", "expired")]
