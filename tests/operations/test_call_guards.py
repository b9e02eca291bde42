"""Checks before a call: policy, approvals, budgets, limits, repeated failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.errors import ConfigError, Forbidden, Unavailable
from dragoman.identity import LOCAL, Identity
from dragoman.operations import Calls, Context, Operation, Registry, operation
from dragoman.operations.approval import MemoryApprovalStore
from dragoman.operations.budget import Budget
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.permission.access_control import AccessControl
from dragoman.operations.permission.policy import Policy, Rule
from tests.waiting import LIMIT

ANN, BOB = Identity(owner="ann"), Identity(owner="bob")
MODEL = Context(identity=ANN, for_model=True, run_id="run_1", tool_call_id="tc_1")


class Post:
    """Operations that somebody may have to approve; what they did."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.now = 1000.0
        self.ledger = MemoryLedger()

    def operations(self) -> list[Any]:
        @operation("mail", approval=True)
        async def send(to: str) -> str:
            self.sent.append(to)
            return f"sent to {to}"

        @operation("mail", effect="read")
        async def count() -> int:
            return len(self.sent)

        @operation("mail")
        async def forward(context: Context) -> Any:
            return await context.call("mail.send", {"to": "eve"})

        return [send, count, forward]

    @asynccontextmanager
    async def open(self, policy: Policy | None = None) -> AsyncIterator[tuple[Calls, MetaTools]]:
        registry = Registry(*self.operations())
        guard = AccessControl(
            policy or Policy(),
            MemoryApprovalStore(lambda: self.now),
            clock=lambda: self.now,
            approval_seconds=60,
        )
        async with (
            asyncio.timeout(LIMIT),
            Calls(registry, self.ledger, access_control=guard, clock=lambda: self.now) as calls,
        ):
            yield calls, MetaTools(registry, calls)


@pytest.fixture
def post() -> Post:
    return Post()


async def test_a_call_that_wants_approval_waits_and_runs_once_it_is_approved(post: Post) -> None:
    async with post.open() as (calls, _):
        pending = await calls.call("mail.send", {"to": "bob"}, context=MODEL)
        assert (pending.ok, pending.status, post.sent) == (False, "pending", [])
        assert post.ledger.get(pending.call_id).status == "pending"
        assert pending.approval_id is not None
        await calls.answer_approval(pending.approval_id, approved=True, by=ANN)
        done = await calls.call("mail.send", {"to": "bob"}, context=with_approval(pending.approval_id))
        assert (done.ok, done.result, done.call_id) == (True, "sent to bob", pending.call_id)
        assert post.ledger.get(pending.call_id).status == "done"
        assert post.sent == ["bob"]


def with_approval(id: str, **changes: Any) -> Context:
    fields: dict[str, Any] = {name: getattr(MODEL, name) for name in ("identity", "for_model", "run_id")}
    return Context(**{**fields, "tool_call_id": "tc_1", "approval": id, **changes})


@pytest.mark.parametrize(
    ("input", "changes", "expected_message"),
    [
        ({"to": "eve"}, {}, "is for another operation, or for other arguments"),
        ({"to": "bob"}, {"identity": BOB}, "belongs to another owner"),
        ({"to": "bob"}, {"id": "apr_nothing"}, "no approval"),
        ({"to": "bob"}, {"tool_call_id": "tc_2"}, "is for another tool call"),
    ],
)
async def test_a_changed_or_foreign_approval_is_refused(
    post: Post, input: dict[str, Any], changes: dict[str, Any], expected_message: str
) -> None:
    async with post.open() as (calls, _):
        pending = await calls.call("mail.send", {"to": "bob"}, context=MODEL)
        assert pending.approval_id is not None
        await calls.answer_approval(pending.approval_id, approved=True, by=ANN)
        context = with_approval(**{"id": pending.approval_id, **changes})
        outcome = await calls.call("mail.send", input, context=context)
        assert outcome.error is not None
        assert expected_message in outcome.error.message
        assert post.sent == []


async def test_an_approval_is_good_for_one_call(post: Post) -> None:
    async with post.open() as (calls, _):
        pending = await calls.call("mail.send", {"to": "bob"}, context=MODEL)
        assert pending.approval_id is not None
        await calls.answer_approval(pending.approval_id, approved=True, by=ANN)
        context = with_approval(pending.approval_id)
        outcomes = await asyncio.gather(
            *(calls.call("mail.send", {"to": "bob"}, context=context) for _ in range(5))
        )
        assert sorted(outcome.ok for outcome in outcomes) == [False] * 4 + [True]
        assert post.sent == ["bob"]


async def test_an_answer_that_comes_too_late_or_from_another_does_not_count(post: Post) -> None:
    async with post.open() as (calls, _):
        pending = await calls.call("mail.send", {"to": "bob"}, context=MODEL)
        assert pending.approval_id is not None
        with pytest.raises(Forbidden):
            await calls.answer_approval(pending.approval_id, approved=True, by=BOB)
        await calls.answer_approval(pending.approval_id, approved=True, by=ANN)
        post.now += 61
        late = await calls.call("mail.send", {"to": "bob"}, context=with_approval(pending.approval_id))
        assert late.error is not None
        assert "expired" in late.error.message


async def test_a_declined_call_is_denied(post: Post) -> None:
    async with post.open() as (calls, _):
        pending = await calls.call("mail.send", {"to": "bob"}, context=MODEL)
        assert pending.approval_id is not None
        await calls.answer_approval(pending.approval_id, approved=False, by=ANN, reason="not today")
        entry = post.ledger.get(pending.call_id)
        assert (entry.status, entry.error and entry.error.hint) == ("denied", "not today")


async def test_nothing_of_a_batch_runs_until_what_needs_it_is_approved(post: Post) -> None:
    batch = {"calls": [{"tool": "mail.count"}, {"tool": "mail.send", "input": {"to": "bob"}}]}
    async with post.open() as (calls, meta):
        pending = await meta.run("hub_call", batch, context=MODEL)
        assert (pending.status, post.ledger.children(pending.call_id)) == ("pending", ())
        assert pending.approval_id is not None
        approval = await calls.access_control.approvals.get(pending.approval_id)
        assert [(item.operation, item.input) for item in approval.items] == [("mail.send", {"to": "bob"})]
        await calls.answer_approval(pending.approval_id, approved=True, by=ANN)
        done = await meta.run("hub_call", batch, context=with_approval(pending.approval_id))
        assert done.result == [
            {"success": True, "result": 0},
            {"success": True, "result": "sent to bob"},
        ]


async def test_a_caller_without_a_run_repeats_the_call_after_it_was_approved(post: Post) -> None:
    program = Context(identity=ANN)
    async with post.open() as (calls, _):
        pending = await calls.call("mail.send", {"to": "bob"}, context=program)
        again = await calls.call("mail.send", {"to": "bob"}, context=program)
        assert again.approval_id == pending.approval_id
        assert pending.approval_id is not None
        await calls.answer_approval(pending.approval_id, approved=True, by=ANN)
        done = await calls.call("mail.send", {"to": "bob"}, context=program)
        more = await calls.call("mail.send", {"to": "bob"}, context=program)
        assert (done.ok, more.status, post.sent) == (True, "pending", ["bob"])


async def test_an_operation_called_from_within_another_cannot_wait_for_approval(post: Post) -> None:
    async with post.open() as (calls, _):
        outcome = await calls.call("mail.forward", context=MODEL)
        assert outcome.error is not None
        assert (outcome.error.code, post.sent) == ("approval_needed", [])
        [child] = post.ledger.children(outcome.call_id)
        assert child.status == "denied"


async def test_what_the_policy_denies_is_not_run_and_not_shown(post: Post) -> None:
    policy = Policy([Rule(decision="deny", operations=("mail.send",), reason="no mail")])
    async with post.open(policy) as (calls, meta):
        outcome = await calls.call("mail.send", {"to": "bob"}, context=MODEL)
        assert outcome.error is not None
        assert (outcome.status, outcome.error.code) == ("failed", "not_found")
        outcome = await calls.call("mail.send", {"to": "bob"}, context=replace(MODEL, for_model=False))
        assert outcome.error is not None
        assert (outcome.status, outcome.error.message) == ("denied", "You may not call mail.send: no mail")
        listed = (await meta.run("hub.list", {}, context=MODEL)).result
        assert [tool["tool"] for tool in listed["tools"]] == ["mail.count", "mail.forward"]
        found = (await meta.run("hub.search", {"q": "mail send"}, context=MODEL)).result
        assert "mail.send" not in str(found)
        schema = await meta.run("hub.schema", {"tool": "mail.sends"}, context=MODEL)
        unknown = await meta.run("hub.schema", {"tool": "mail.send"}, context=MODEL)
        assert (schema.ok, unknown.ok) == (False, False)
        assert "mail.send'" not in str(schema.error)


async def test_the_budget_of_a_tree_bounds_its_calls_and_its_money() -> None:
    @operation("t", effect="read")
    async def pay(context: Context) -> str:
        context.spend(0.4)
        return "paid"

    budget = Budget(usd=1.0, calls=5)
    ledger = MemoryLedger()
    async with Calls(Registry(pay), ledger) as calls:
        outcomes = [await calls.call("t.pay", context=Context(budget=budget)) for _ in range(5)]
    assert [each.ok for each in outcomes] == [True, True, False, False, False]
    assert ledger.get(outcomes[0].call_id).cost == 0.4
    assert (budget.calls_made, round(budget.spent, 2)) == (3, 1.2)


async def test_a_transient_failure_is_tried_again_with_the_same_key_where_that_is_harmless() -> None:
    keys: list[str | None] = []

    @operation("t", effect="idempotent", retries=3)
    async def flaky(context: Context) -> int:
        keys.append(context.idempotency_key)
        if len(keys) < 3:
            raise Unavailable("later")
        return len(keys)

    ledger = MemoryLedger()
    async with Calls(Registry(flaky), ledger) as calls:
        outcome = await calls.call("t.flaky", context=Context())
    assert (outcome.result, len(set(keys)), ledger.get(outcome.call_id).attempts) == (3, 1, 3)


def test_what_acts_again_each_time_cannot_have_retries() -> None:
    with pytest.raises(ConfigError, match="cannot have retries"):

        @operation("t", retries=1)
        def pay() -> None: ...


async def test_an_operation_takes_so_many_calls_at_a_time_and_so_many_a_minute() -> None:
    running = most = 0

    @operation("t", effect="read", concurrency=2, rate="5/minute")
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    async with Calls(Registry(work), MemoryLedger()) as calls:
        outcomes = await asyncio.gather(*(calls.call("t.work", context=Context()) for _ in range(7)))
    assert most == 2
    assert [outcome.error.code for outcome in outcomes if outcome.error] == ["rate_limited"] * 2


async def test_the_same_failing_call_is_noticed_and_then_refused() -> None:
    tried: list[int] = []

    async def refuse(input: Any, _context: Context) -> None:
        tried.append(input["n"])
        raise ValueError("no such thing")

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    broken = Operation.from_schema(refuse, schema, namespace="t", name="broken")
    async with Calls(Registry(broken), MemoryLedger()) as calls:
        failures = [(await calls.call(broken, {"n": 1}, context=MODEL)).error for _ in range(4)]
        other = await calls.call(broken, {"n": 2}, context=MODEL)
        program = await calls.call(broken, {"n": 1}, context=Context(identity=LOCAL))
    assert [failure and failure.hint for failure in failures[:3]] == [
        None,
        "This call has now failed 2 times; do not repeat it unchanged.",
        "This call has now failed 3 times; do not repeat it unchanged.",
    ]
    assert failures[3] is not None
    assert failures[3].code == "repeated_failure"
    assert tried == [1, 1, 1, 2, 1]
    assert (other.ok, program.ok) == (False, False)


async def test_a_failure_that_may_pass_may_be_tried_as_often_as_one_likes() -> None:
    tried: list[int] = []

    @operation("t", effect="read")
    async def away() -> int:
        tried.append(len(tried))
        if len(tried) < 6:
            raise Unavailable("later")
        return len(tried)

    async with Calls(Registry(away), MemoryLedger()) as calls:
        outcomes = [await calls.call("t.away", context=MODEL) for _ in range(6)]
    assert [outcome.ok for outcome in outcomes] == [False] * 5 + [True]
