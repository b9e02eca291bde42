"""Calls that a crash found: what is made again, what is not, and what its person is asked."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.identity import LOCAL, Identity
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import Context, current
from dragoman.operations.definitions.decorator import operation
from dragoman.operations.ledger import CallRecord, LedgerEntry, MemoryLedger, hash_input
from dragoman.operations.operation import Effect
from dragoman.operations.outcome import CallFailure, CallOutcome, CallStatus
from dragoman.operations.registry import Registry
from dragoman.operations.replayed_calls import ReplayedCalls

MADE: list[tuple[str, str | None]] = []


@operation("mail", effect="once")
async def send(to: str) -> str:
    """Send."""
    MADE.append((to, current().idempotency_key))
    return "sent"


@operation("mail", effect="idempotent")
async def file(to: str) -> str:
    """File."""
    MADE.append((to, current().idempotency_key))
    return "filed"


@operation("mail", effect="idempotent")
async def forward(to: str) -> Any:
    """Forward: calls another."""
    return await current().call("mail.send", {"to": to})


@pytest.fixture(autouse=True)
def anew() -> None:
    MADE.clear()


def entry(
    name: str, status: CallStatus, *, key: str = "msg:c1", effect: Effect = "once", **ended: Any
) -> LedgerEntry:
    record = CallRecord(
        id=f"call_{name}",
        operation=f"mail.{name}",
        effect=effect,
        owner=LOCAL.owner,
        input={"to": "ann"},
        input_hash=hash_input({"to": "ann"}),
        idempotency_key=key,
        started_at=1.0,
        run_id="run",
        tool_call_id="c1",
    )
    return LedgerEntry(record=record, status=status, **ended)


class Resumed:
    """A run that goes on after a crash with these entries in its ledger."""

    def __init__(self, *entries: LedgerEntry) -> None:
        self.ledger = MemoryLedger()
        for each in entries:
            self.ledger._entries[each.record.id] = each
        self.calls = Calls(Registry(send, file, forward), self.ledger)
        self.context = Context(
            run_id="run", tool_call_id="c1", key_scope="msg", replayed_calls=ReplayedCalls(entries)
        )

    async def call(self, name: str, *, to: str = "ann", **context: Any) -> CallOutcome:
        return await self.calls.call(f"mail.{name}", {"to": to}, context=replace(self.context, **context))

    async def answer(self, outcome: CallOutcome, *, approved: bool, text: str | None) -> CallOutcome:
        """What the call gives once its person has answered, in the run that goes on then."""
        id = outcome.approval_id or ""
        await self.calls.answer_approval(id, approved=approved, by=Identity(LOCAL.owner), reason=text)
        return await self.call("send", approval=id, replayed_calls=None)


@pytest.mark.parametrize(
    ("ended", "status", "shown"),
    [
        (entry("send", "done", result="sent before"), "done", "sent before"),
        (entry("send", "failed", error=CallFailure(code="call_error", message="full")), "failed", "full"),
        (
            entry("send", "aborted", error=CallFailure(code="aborted", message="stopped")),
            "aborted",
            "stopped",
        ),
        (
            entry("send", "uncertain", error=CallFailure(code="uncertain", message="lost")),
            "uncertain",
            "lost",
        ),
    ],
)
async def test_a_call_that_had_ended_gives_what_it_gave(ended: LedgerEntry, status: str, shown: str) -> None:
    outcome = await Resumed(ended).call("send")
    assert (outcome.call_id, outcome.status) == ("call_send", status)
    assert (outcome.result if outcome.error is None else outcome.error.message) == shown
    assert MADE == []


async def test_a_call_that_may_be_repeated_runs_again_under_its_id_and_key() -> None:
    run = Resumed(entry("file", "aborted", effect="idempotent"))
    outcome = await run.call("file")
    assert (outcome.call_id, outcome.result) == ("call_file", "filed")
    assert MADE == [("ann", "msg:c1")]
    assert run.ledger.get("call_file").status == "done"


async def test_another_call_in_the_place_of_an_earlier_one_runs_under_a_key_of_its_own() -> None:
    outcome = await Resumed(entry("send", "done", result="sent before")).call("send", to="bob")
    assert outcome.result == "sent"
    [(to, key)] = MADE
    assert to == "bob"
    assert key not in (None, "msg:c1")


ANSWERS: list[tuple[bool, str | None, str, str, int]] = [
    (True, "done", "done", "it took effect", 0),
    (True, "Done.", "done", "it took effect", 0),
    (True, "not done", "aborted", "did not take effect", 0),
    (True, "try again", "done", "sent", 1),
    (True, "ask Bob", "uncertain", "ask Bob", 0),
    (True, None, "uncertain", "a person answered", 0),
    (False, "no idea", "uncertain", "nobody knew (no idea)", 0),
    (False, None, "uncertain", "nobody knew", 0),
]


@pytest.mark.promise("runs-go-on-after-a-crash")
@pytest.mark.parametrize(("approved", "text", "status", "shown", "made"), ANSWERS)
async def test_the_person_of_a_call_that_acts_is_asked_and_it_runs_again_only_if_they_say_so(
    *, approved: bool, text: str | None, status: str, shown: str, made: int
) -> None:
    run = Resumed(entry("send", "uncertain"))
    question = await run.call("send")
    assert (question.call_id, question.status) == ("call_send", "pending")
    assert run.ledger.get("call_send").status == "uncertain"
    outcome = await run.answer(question, approved=approved, text=text)
    assert (outcome.call_id, outcome.status) == ("call_send", status)
    assert shown in (outcome.result if outcome.error is None else outcome.error.message)
    assert [("ann", "msg:c1")] * made == MADE
    assert run.ledger.get("call_send").status == status


async def test_a_call_below_a_function_that_is_repeated_is_uncertain_and_not_made_again() -> None:
    run = Resumed(
        entry("forward", "aborted", effect="idempotent"), entry("send", "uncertain", key="msg:c1:0")
    )
    outcome = await run.call("forward")
    assert outcome.status in ("failed", "uncertain")
    assert outcome.error is not None
    assert "not known whether it took effect" in outcome.error.message
    assert MADE == []


async def test_a_finished_call_below_a_function_that_is_repeated_gives_what_it_gave() -> None:
    done = entry("send", "done", key="msg:c1:0", result="sent before")
    run = Resumed(entry("forward", "aborted", effect="idempotent"), done)
    assert (await run.call("forward")).result == "sent before"
    assert MADE == []


async def test_an_uncertain_call_whose_operation_is_gone_stays_uncertain() -> None:
    run = Resumed(entry("send", "uncertain"))
    run.calls._registry.remove("mail.send")
    outcome = await run.call("send")
    assert (outcome.status, outcome.ok) == ("uncertain", False)
    assert MADE == []


async def test_operations_that_come_back_are_waited_for() -> None:
    registry = Registry(send)
    await registry.wait_until_registered(["mail.send"], seconds=0)
    await registry.wait_until_registered(["mail.gone"], seconds=0)
    assert registry._listeners == ()
