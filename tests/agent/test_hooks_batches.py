"""Hooks and batches: each call is decided once, and none runs while one of them waits."""

from __future__ import annotations

import pytest

from dragoman.agent.hooks.events import Ask, Block, Modify, PreToolUse
from dragoman.agent.hooks.guards.rate_limit import rate_limit
from dragoman.agent.hooks.hooks import Hooks
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.permission.policy import Rule
from tests.agent.hooked import ANN, Post, context_of


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def batch(*names: str) -> dict[str, object]:
    return {"calls": [{"tool": "mail.send", "input": {"to": name}} for name in names]}


async def test_each_call_of_a_batch_is_asked_about_once() -> None:
    post, called = Post(), list[str]()

    def note(event: PreToolUse) -> Block | Modify | None:
        called.append(event.input["to"])
        decisions: dict[str, Block | Modify] = {"eve": Block("not eve"), "bob": Modify({"to": "carol"})}
        return decisions.get(event.input["to"])

    async with post.open() as calls:
        context = context_of(Hooks().on("pre_tool_use", note))
        outcome = await MetaTools(post.registry, calls).run(
            "hub_call", batch("ann", "bob", "eve"), context=context
        )
    assert [each["success"] for each in outcome.result] == [True, True, False]
    assert (sorted(called), sorted(post.sent)) == (["ann", "bob", "eve"], ["ann", "carol"])
    assert "not eve" in outcome.result[2]["error"]["message"]
    assert "carol" in outcome.result[1]["notes"][0]


async def test_a_batch_waits_for_what_a_hook_asks_and_then_runs_once() -> None:
    post = Post()
    hooks = Hooks().on("pre_tool_use", lambda e: Ask("it is bob") if e.input["to"] == "bob" else None)
    async with post.open() as calls:
        meta = MetaTools(post.registry, calls)
        waiting = await meta.run("hub_call", batch("ann", "bob"), context=context_of(hooks))
        assert (waiting.status, post.sent) == ("pending", [])
        approval = await calls.access_control.approvals.get(waiting.approval_id or "")
        assert [(item.input, item.reason) for item in approval.items] == [({"to": "bob"}, "it is bob")]
        await calls.answer_approval(approval.id, approved=True, by=ANN)
        done = await meta.run(
            "hub_call", batch("ann", "bob"), context=context_of(hooks, approval=approval.id)
        )
        assert [each["success"] for each in done.result] == [True, True]
        again = await meta.run(
            "hub_call", batch("ann", "bob"), context=context_of(hooks, approval=approval.id)
        )
    assert (again.ok, sorted(post.sent)) == (False, ["ann", "bob"])


async def test_a_batch_asks_for_what_will_run_and_not_for_what_was_written() -> None:
    post, to = Post(Rule(decision="ask", operations=("mail.send",))), ["carol"]
    hooks = Hooks().on("pre_tool_use", lambda _: Modify({"to": to[0]}))
    async with post.open() as calls:
        meta = MetaTools(post.registry, calls)
        waiting = await meta.run("hub_call", batch("bob"), context=context_of(hooks))
        approval = await calls.access_control.approvals.get(waiting.approval_id or "")
        assert [item.input for item in approval.items] == [{"to": "carol"}]
        await calls.answer_approval(approval.id, approved=True, by=ANN)
        to[0] = "eve"
        other = await meta.run("hub_call", batch("bob"), context=context_of(hooks, approval=approval.id))
        assert (other.status, post.sent) == ("pending", [])


async def test_a_rate_counts_the_calls_of_a_batch_once() -> None:
    post = Post()
    async with post.open() as calls:
        context = context_of(Hooks().on("pre_tool_use", rate_limit("3/minute")))
        outcome = await MetaTools(post.registry, calls).run(
            "hub_call", batch("a", "b", "c", "d"), context=context
        )
    assert [each["success"] for each in outcome.result] == [True, True, True, False]
