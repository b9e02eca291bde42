"""Hooks and approvals: the call that is approved is the call that runs, and hooks can ask for approval."""

from __future__ import annotations

import pytest

from dragoman.agent.hooks.events import Ask, Modify
from dragoman.agent.hooks.hooks import Hooks
from dragoman.identity import Identity
from dragoman.operations.permission.policy import Rule
from tests.agent.hooked import ANN, SEND, Post, context_of


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.promise("approved-is-what-runs")
async def test_an_approval_is_for_what_runs_and_not_for_what_was_asked() -> None:
    post = Post(Rule(decision="ask", operations=("mail.send",)))
    to = ["carol"]
    hooks = Hooks().on("pre_tool_use", lambda _: Modify({"to": to[0]}))
    async with post.open() as calls:
        waiting = await calls.call("mail.send", SEND, context=context_of(hooks))
        assert waiting.approval_id is not None
        approval = await calls.access_control.approvals.get(waiting.approval_id)
        assert [item.input for item in approval.items] == [{"to": "carol"}]
        await calls.answer_approval(waiting.approval_id, approved=True, by=ANN)
        to[0] = "eve"  # the hook changes its mind: nobody approved that
        other = await calls.call("mail.send", SEND, context=context_of(hooks, approval=waiting.approval_id))
        assert (other.status, post.sent) == ("pending", [])
        assert other.approval_id not in (None, waiting.approval_id)


async def test_an_approved_change_runs() -> None:
    post = Post(Rule(decision="ask", operations=("mail.send",)))
    hooks = Hooks().on("pre_tool_use", lambda _: Modify({"to": "carol"}))
    async with post.open() as calls:
        waiting = await calls.call("mail.send", SEND, context=context_of(hooks))
        await calls.answer_approval(waiting.approval_id or "", approved=True, by=ANN)
        done = await calls.call("mail.send", SEND, context=context_of(hooks, approval=waiting.approval_id))
        assert (done.ok, post.sent) == (True, ["carol"])


@pytest.mark.parametrize(
    "rules", [(), (Rule(decision="ask", operations=("mail.send",), answerers=("boss",)),)]
)
async def test_a_hook_can_ask_for_approval_which_is_given_once(rules: tuple[Rule, ...]) -> None:
    post, boss = Post(*rules), Identity(owner="boss" if rules else "ann")
    hooks = Hooks().on("pre_tool_use", lambda _: Ask("it is mail"))
    async with post.open() as calls:
        waiting = await calls.call("mail.send", SEND, context=context_of(hooks))
        assert (waiting.status, post.sent) == ("pending", [])
        approval = await calls.access_control.approvals.get(waiting.approval_id or "")
        assert approval.answerers == (("boss",) if rules else ("owner",))
        await calls.answer_approval(waiting.approval_id or "", approved=True, by=boss)
        context = context_of(hooks, approval=waiting.approval_id)
        other = await calls.call("mail.send", {"to": "eve"}, context=context)
        done = await calls.call("mail.send", SEND, context=context)
        again = await calls.call("mail.send", SEND, context=context)
        assert (other.ok, done.ok, again.ok, post.sent) == (False, True, False, ["bob"])
