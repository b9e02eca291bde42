"""What a sub-agent may call: the intersection of its policy and its callers'."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import events as e
from dragoman.agent.hooks.events import Ask, Block, Modify, PreToolUse
from dragoman.agent.hooks.hooks import Hooks
from dragoman.agent.settings import RunLimits
from dragoman.operations.permission.policy import Policy, Rule
from tests.agent.scripted import add, send
from tests.agent.team import TASK, Letters, approving, driven, lead, outputs, outputs_in, worker

NOTE = ("mail_note", {"text": "x"})
ALL = Policy()


def rules(*pairs: tuple[str, str], agents: tuple[str, ...] = ()) -> Policy:
    return Policy([Rule(decision=word, operations=(what,), agents=agents) for word, what in pairs])  # type: ignore[arg-type]


DENY = rules(("deny", "mail.note"))
ASK = rules(("ask", "mail.note"))
ALLOW = rules(("allow", "mail.note"))


@pytest.mark.promise("a-sub-agent-may-no-more-than-who-asks-it")
@pytest.mark.parametrize(
    ("above", "own", "requests", "ran"),
    [
        (ALL, ALL, 0, True),
        (DENY, ALL, 0, False),
        (ALL, DENY, 0, False),
        (DENY, ALLOW, 0, False),
        (ALLOW, DENY, 0, False),
        (ASK, ALLOW, 1, True),
        (ALLOW, ASK, 1, True),
        (ASK, ASK, 1, True),
        (DENY, ASK, 0, False),
        (ASK, DENY, 0, False),
    ],
)
async def test_the_stricter_of_both_policies_counts(
    above: Policy, own: Policy, requests: int, ran: bool
) -> None:
    letters = Letters()
    helper, inner = worker([NOTE], "Over.", operations=letters.operations, policy=own)
    agent, _ = lead([TASK], "Done.", operations=[helper], policy=above)
    async with agent:
        events, result = await driven(agent.spawn("Note it."), approving())
    assert (result.exit_reason, outputs_in(events)) == ("success", ["Over."])
    assert [isinstance(event, e.ToolApprovalRequest) for event in events].count(True) == requests
    assert letters.noted == (["x"] if ran else [])
    assert outputs(inner.requests[1]) == ["noted x" if ran else "You may not call mail.note"]


async def test_the_policy_of_the_uppermost_counts_two_levels_down() -> None:
    letters = Letters()
    clerk, lowest = worker([NOTE], "Over.", name="clerk", operations=letters.operations)
    helper, _ = worker([("agents_clerk", {"prompt": "x"})], "Over.", operations=[clerk])
    agent, _ = lead([TASK], "Done.", operations=[helper], policy=DENY)
    async with agent:
        await driven(agent.spawn("Note it."))
    assert (letters.noted, outputs(lowest.requests[1])) == ([], ["You may not call mail.note"])


async def test_a_rule_for_an_agent_holds_for_those_who_work_for_it() -> None:
    letters = Letters()
    both = rules(("deny", "mail.note"), agents=("lead",))
    helper, _ = worker([NOTE], "Over.", operations=letters.operations)
    agent, _ = lead([TASK], "Done.", operations=[helper], policy=both)
    async with agent:
        await driven(agent.spawn("Note it."))
    assert letters.noted == []


@pytest.mark.parametrize(("policy", "own"), [(DENY, ALL), (ALL, DENY)])
async def test_what_it_may_not_call_it_does_not_find(policy: Policy, own: Policy) -> None:
    letters = Letters()
    look = [
        ("hub_search", {"q": "write something down"}),
        ("hub_list", {}),
        ("hub_schema", {"tool": "mail.note"}),
    ]
    helper, inner = worker(look, "Over.", operations=letters.operations, policy=own, meta_tools=True)
    agent, _ = lead([TASK], "Done.", operations=[helper], policy=policy)
    async with agent:
        await driven(agent.spawn("Note it."))
    found, listed, schema = outputs(inner.requests[1])
    assert "mail.note" not in str(found)
    assert [tool["tool"] for tool in listed["tools"]] == ["mail.send"]
    assert "There is no operation 'mail.note'" in schema


async def test_an_agent_that_nobody_may_call_is_not_called() -> None:
    helper, inner = worker("Over.")
    agent, model = lead([TASK], "Done.", operations=[helper], policy=rules(("deny", "agents.*")))
    async with agent:
        await driven(agent.spawn("Go."))
    assert (len(inner.requests), outputs(model.requests[1])) == (0, ["You may not call agents.worker"])


async def test_an_approval_of_the_agent_itself_is_asked_for_before_it_begins() -> None:
    helper, inner = worker("Over.")
    agent, _ = lead([TASK], "Done.", operations=[helper], policy=rules(("ask", "agents.*")))
    async with agent:
        run = agent.spawn("Go.")
        async for event in run.events():
            if isinstance(event, e.ToolApprovalRequest):
                assert inner.requests == []
                await run.approve(event.approval_id)
        result = await run.result
    assert (result.exit_reason, len(inner.requests)) == ("success", 1)


def noting(name: str, log: list[str], decision: Any = None) -> Hooks:
    """Hooks that write down what they are told, and say something of a letter's call."""

    def before(event: PreToolUse) -> Any:
        log.append(f"{name} before {event.operation} by {event.agent}")
        return decision if event.operation.startswith("mail.") else None

    return (
        Hooks()
        .on("pre_tool_use", before)
        .on("post_tool_use", lambda event: log.append(f"{name} after {event.operation}"))
    )


async def hooked(outer: Any, inner: Any) -> tuple[list[str], Letters, list[Any]]:
    """What hooks of both are told, in order; what was done; and what the sub-agent's model is told."""
    log: list[str] = []
    letters = Letters()
    helper, model = worker([NOTE], "Over.", operations=letters.operations, hooks=noting("inner", log, inner))
    agent, _ = lead([TASK], "Done.", operations=[helper], hooks=noting("outer", log, outer))
    async with agent:
        _, result = await driven(agent.spawn("Note it."), approving())
    assert result.exit_reason == "success"
    return log, letters, outputs(model.requests[1])


async def test_hooks_of_both_are_asked_the_outer_ones_first_and_told_last() -> None:
    log, letters, _ = await hooked(None, None)
    assert log == [
        "outer before agents.worker by lead",
        "outer before mail.note by worker",
        "inner before mail.note by worker",
        "inner after mail.note",
        "outer after mail.note",
        "outer after agents.worker",
    ]
    assert letters.noted == ["x"]


@pytest.mark.parametrize(("outer", "inner"), [(Block("no"), None), (None, Block("no"))])
async def test_either_ones_hooks_can_block(outer: Any, inner: Any) -> None:
    log, letters, output = await hooked(outer, inner)
    assert (letters.noted, output) == ([], ["mail.note was blocked: no"])
    assert ("inner before mail.note by worker" in log) is (outer is None)


async def test_the_inner_hooks_see_what_the_outer_ones_made_of_the_input() -> None:
    _, letters, _ = await hooked(Modify({"text": "outer"}), None)
    assert letters.noted == ["outer"]
    _, letters, _ = await hooked(Modify({"text": "outer"}), Modify({"text": "inner"}))
    assert letters.noted == ["inner"]


@pytest.mark.parametrize(("outer", "inner"), [(Ask("sure?"), None), (None, Ask("sure?"))])
async def test_either_ones_hooks_can_ask_for_approval(outer: Any, inner: Any) -> None:
    _, letters, output = await hooked(outer, inner)
    assert (letters.noted, output) == (["x"], ["noted x"])


async def test_results_go_through_the_hooks_of_both() -> None:
    helper, model = worker(
        [("math_add", {"a": 1, "b": 1})],
        "Over.",
        operations=[add, send],
        hooks=Hooks().on("post_tool_use", lambda event: Modify(output=event.output + 10)),
    )
    doubled = Hooks().on("post_tool_use", lambda event: Modify(output=event.output * 2), match="math.*")
    agent, _ = lead([TASK], "Done.", operations=[helper], hooks=doubled)
    async with agent:
        await driven(agent.spawn("Add."))
    assert outputs(model.requests[1]) == [24]


async def test_calls_below_count_in_the_limit_of_calls() -> None:
    letters = Letters()
    helper, inner = worker([NOTE] * 3, "Over.", operations=letters.operations)
    agent, _ = lead([TASK], "Done.", operations=[helper], limits=RunLimits(max_calls=3))
    async with agent:
        await driven(agent.spawn("Note it."))
    assert letters.noted == ["x", "x"]
    assert outputs(inner.requests[1])[2] == "The budget of 3 calls is used up."
