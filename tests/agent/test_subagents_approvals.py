"""Sub-agents that wait for an approval or an answer, and resume after it."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import Context, operation
from dragoman import events as e
from dragoman.messages import ToolPart
from dragoman.operations import Calls, Registry
from dragoman.operations.approval import MemoryApprovalStore
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.permission.access_control import AccessControl
from dragoman.operations.permission.policy import Policy, Rule
from dragoman.tools.question import question
from tests.agent.scripted import until
from tests.agent.team import (
    TASK,
    Letters,
    answering,
    approving,
    driven,
    lead,
    outputs,
    outputs_in,
    questions_in,
    seen,
    worker,
)

SEND = ("mail_send", {"to": "bob"})
EVE = ("mail_send", {"to": "eve"})
NOTE = ("mail_note", {"text": "x"})


def requests(events: list[e.Event]) -> list[e.ToolApprovalRequest]:
    return [event for event in events if isinstance(event, e.ToolApprovalRequest)]


async def test_what_a_sub_agent_wants_approved_is_asked_of_the_callers_person() -> None:
    letters = Letters()
    helper, inner = worker([SEND], "Sent.", operations=letters.operations)
    agent, model = lead([TASK], "Done.", operations=[helper])
    async with agent:
        events, result = await driven(agent.spawn("Write to Bob."), approving())
    assert (result.exit_reason, letters.sent, outputs_in(events)) == ("success", ["bob"], ["Sent."])
    assert outputs(inner.requests[1]) == ["sent to bob"]
    assert (len(inner.requests), len(model.requests)) == (2, 2)
    [request] = requests(events)
    call = next(part for part in result.messages[-1].parts if isinstance(part, ToolPart))
    assert (request.tool_call_id, call.state) == (call.tool_call_id, "output-available")
    assert seen(events), "what it did until then, and from then on, is shown"


async def test_the_request_says_whose_model_asks_for_what() -> None:
    letters, approvals = Letters(), MemoryApprovalStore(lambda: 0.0)
    helper, _ = worker([SEND], operations=letters.operations)
    agent, _ = lead([TASK], operations=[helper], approvals=approvals)
    async with agent:
        run = agent.spawn("Write to Bob.")
        wanted = await until(run, "tool-approval-request")
        run.abort()
        await run.result
    stored = await approvals.get(wanted.approval_id)
    [item] = stored.items
    assert (stored.operation, stored.agent, stored.state is None) == ("agents.worker", "lead", False)
    assert (item.operation, item.input, item.agent) == ("mail.send", {"to": "bob"}, "worker")
    assert letters.sent == []


@pytest.mark.parametrize("reason", ["not him", None])
async def test_a_sub_agent_is_told_that_it_may_not_and_goes_on(reason: str | None) -> None:
    letters = Letters()
    helper, inner = worker([SEND], "I could not.", operations=letters.operations)
    agent, model = lead([TASK], "Well.", operations=[helper])
    async with agent:
        events, result = await driven(agent.spawn("Write."), approving(False, reason))
    assert (result.exit_reason, letters.sent, outputs_in(events)) == ("success", [], ["I could not."])
    assert outputs(model.requests[1]) == ["I could not."]
    parts = [part for part in inner.requests[1].messages[-1].parts if isinstance(part, ToolPart)]
    assert [part.state for part in parts] == ["output-denied"]
    assert parts[0].approval is not None
    assert (parts[0].approval.approved, parts[0].approval.reason) == (False, reason)


async def test_nobody_approves_in_time() -> None:
    letters = Letters()
    policy = Policy([Rule(decision="ask", operations=("mail.send",), expires=0.05)])
    helper, inner = worker([SEND], "I could not.", operations=letters.operations, policy=policy)
    agent, _ = lead([TASK], "Well.", operations=[helper])
    async with agent:
        events, result = await driven(agent.spawn("Write."))
    assert (result.exit_reason, letters.sent, outputs_in(events)) == ("success", [], ["I could not."])
    parts = [part for part in inner.requests[1].messages[-1].parts if isinstance(part, ToolPart)]
    assert parts[0].approval is not None
    assert parts[0].approval.reason == "nobody answered in time"


async def test_a_sub_agent_asks_the_person_a_question() -> None:
    helper, inner = worker([("user_question", {"text": "Where?"})], "To Bonn.", operations=[question])
    agent, _ = lead([TASK], "Done.", operations=[helper])
    async with agent:
        events, result = await driven(agent.spawn("Travel."), answering("Bonn"))
    assert (result.text, outputs_in(events), outputs(inner.requests[1])) == ("Done.", ["To Bonn."], ["Bonn"])
    [part] = questions_in(result)
    assert (part.data["text"], part.data["answer"]) == ("Where?", "Bonn")


async def test_two_levels_down_somebody_is_asked_and_only_once() -> None:
    letters = Letters()
    clerk, lowest = worker([NOTE, SEND], "Sent.", name="clerk", operations=letters.operations)
    helper, middle = worker([("agents_clerk", {"prompt": "Write."})], "He did.", operations=[clerk])
    agent, model = lead([TASK], "Done.", operations=[helper])
    async with agent:
        events, result = await driven(agent.spawn("Write to Bob."), approving())
    assert (result.exit_reason, outputs_in(events), letters.sent) == ("success", ["He did."], ["bob"])
    assert letters.noted == ["x"], "what was done before the wait is not done again"
    assert [len(each.requests) for each in (lowest, middle, model)] == [2, 2, 2]
    assert len(requests(events)) == 1
    assert outputs(lowest.requests[1]) == ["noted x", "sent to bob"]


async def test_several_calls_of_a_step_wait_one_after_the_other() -> None:
    letters = Letters()
    helper, inner = worker([SEND, NOTE, EVE], "Both.", operations=letters.operations)
    agent, _ = lead([TASK], "Done.", operations=[helper])
    answers = iter([False, True])

    def act(run: Any, event: e.Event) -> Any:
        asks = isinstance(event, e.ToolApprovalRequest)
        return run.approve(event.approval_id, next(answers)) if asks else None  # type: ignore[union-attr]

    async with agent:
        events, result = await driven(agent.spawn("Write."), act)
    assert (result.exit_reason, outputs_in(events)) == ("success", ["Both."])
    assert (letters.sent, letters.noted) == (["eve"], ["x"])
    assert len(requests(events)) == 2
    assert len({event.approval_id for event in requests(events)}) == 2
    parts = [part for part in inner.requests[1].messages[-1].parts if isinstance(part, ToolPart)]
    assert [part.state for part in parts] == ["output-denied", "output-available", "output-available"]


async def test_it_may_have_to_wait_again_later() -> None:
    letters = Letters()
    helper, _ = worker([SEND], [NOTE], [EVE], "All.", operations=letters.operations)
    agent, _ = lead([TASK], "Done.", operations=[helper])
    async with agent:
        events, result = await driven(agent.spawn("Write."), approving())
    assert (result.exit_reason, outputs_in(events), letters.sent) == ("success", ["All."], ["bob", "eve"])
    assert letters.noted == ["x"]


async def test_it_may_ask_one_question_after_the_other() -> None:
    asks = [("user_question", {"text": "Where?"})], [("user_question", {"text": "When?"})]
    helper, inner = worker(*asks, "Fine.", operations=[question])
    agent, _ = lead([TASK], "Done.", operations=[helper])
    async with agent:
        events, result = await driven(agent.spawn("Travel."), answering("so"))
    assert (result.exit_reason, outputs_in(events)) == ("success", ["Fine."])
    assert outputs(inner.requests[2]) == ["so", "so"]
    assert [part.data["status"] for part in questions_in(result)] == ["answered", "answered"]


async def test_two_sub_agents_of_one_step_wait_each_for_its_own_word() -> None:
    letters = Letters()
    one, _ = worker([SEND], "One.", name="one", operations=letters.operations)
    two, _ = worker([EVE], "Two.", name="two", operations=letters.operations)
    calls = [("agents_one", {"prompt": "x"}), ("agents_two", {"prompt": "y"})]
    agent, model = lead(calls, "Done.", operations=[one, two])
    async with agent:
        _, result = await driven(agent.spawn("Write."), approving())
    assert (result.exit_reason, sorted(letters.sent)) == ("success", ["bob", "eve"])
    assert outputs(model.requests[1]) == ["One.", "Two."]


async def test_in_a_batch_only_the_call_that_waits_goes_on() -> None:
    letters = Letters()
    helper, inner = worker([SEND], "Sent.", operations=letters.operations)
    batch = [
        {"tool": "mail.note", "input": {"text": "first"}},
        {"tool": "agents.worker", "input": {"prompt": "Write."}},
        {"tool": "nothing.here", "input": {}},
        {"tool": "mail.note", "input": {"text": "last"}},
    ]
    operations = [helper, *letters.operations]
    agent, model = lead([("hub_call", {"calls": batch})], "Done.", operations=operations, meta_tools=True)
    async with agent:
        events, result = await driven(agent.spawn("Write."), approving())
    assert (result.exit_reason, sorted(letters.noted), letters.sent) == (
        "success",
        ["first", "last"],
        ["bob"],
    )
    [output] = outputs_in(events)
    assert [entry["success"] for entry in output] == [True, True, False, True]
    assert [entry.get("result") for entry in output] == ["noted first", "Sent.", None, "noted last"]
    assert (len(inner.requests), outputs(model.requests[1])) == (2, [output])


async def test_in_a_batch_two_that_wait_are_asked_about_in_turn() -> None:
    letters = Letters()
    one, first = worker([SEND], "One.", name="one", operations=letters.operations)
    two, second = worker([EVE], "Two.", name="two", operations=letters.operations)
    batch = [{"tool": f"agents.{name}", "input": {"prompt": "x"}} for name in ("one", "two")]
    agent, _ = lead([("hub_call", {"calls": batch})], "Done.", operations=[one, two], meta_tools=True)
    answers = iter([True, False])

    def act(run: Any, event: e.Event) -> Any:
        asks = isinstance(event, e.ToolApprovalRequest)
        return run.approve(event.approval_id, next(answers), reason="so") if asks else None  # type: ignore[union-attr]

    async with agent:
        events, result = await driven(agent.spawn("Write."), act)
    assert (result.exit_reason, letters.sent, len(requests(events))) == ("success", ["bob"], 2)
    assert [entry["result"] for entry in outputs_in(events)[0]] == ["One.", "Two."]
    assert [len(first.requests), len(second.requests)] == [2, 2]


async def test_a_program_calls_again_once_it_is_approved_and_the_agent_goes_on() -> None:
    letters = Letters()
    helper, inner = worker([NOTE], [SEND], "Sent.", operations=letters.operations)
    call = {"prompt": "Write to Bob."}
    ledger = MemoryLedger()
    async with Calls(Registry(helper), ledger) as calls:
        waiting = await calls.call("agents.worker", call, context=Context())
        assert (waiting.status, len(inner.requests)) == ("pending", 2)
        same = await calls.call("agents.worker", call, context=Context(approval=waiting.approval_id))
        assert (same.ok, same.error is not None) == (False, True), "nobody has said anything yet"
        await calls.answer_approval(waiting.approval_id or "", approved=True, by=Context().identity)
        done = await calls.call("agents.worker", call, context=Context())
    assert (done.ok, done.result, done.call_id) == (True, "Sent.", waiting.call_id)
    assert (letters.noted, letters.sent, len(inner.requests)) == (["x"], ["bob"], 3)


async def test_a_program_that_is_refused_has_the_agent_go_on_as_well() -> None:
    letters, now = Letters(), [1_000.0]
    approvals = MemoryApprovalStore(lambda: now[0])
    guard = AccessControl(Policy(), approvals, clock=lambda: now[0], approval_seconds=60)
    helper, _ = worker([SEND], "No.", [SEND], "Late.", operations=letters.operations)
    call = {"prompt": "Write."}
    async with Calls(Registry(helper), MemoryLedger(), access_control=guard, clock=lambda: now[0]) as calls:
        first = await calls.call("agents.worker", call, context=Context())
        await calls.answer_approval(first.approval_id or "", approved=False, by=Context().identity)
        denied = await calls.call("agents.worker", call, context=Context(approval=first.approval_id))
        second = await calls.call("agents.worker", call, context=Context())
        now[0] += 61
        late = await calls.call("agents.worker", call, context=Context(approval=second.approval_id))
        again = await calls.call("agents.worker", call, context=Context(approval=second.approval_id))
    assert (denied.result, late.result, letters.sent) == ("No.", "Late.", [])
    assert (again.ok, again.status) == (False, "failed"), "its approval was used up"


async def test_within_another_operation_nobody_can_be_waited_for() -> None:
    letters = Letters()
    helper, inner = worker([SEND], "I may not.", operations=letters.operations)

    @operation(namespace="lab")
    async def ask(context: Context) -> Any:
        """Ask the agent."""
        return await context.call("agents.worker", {"prompt": "Write."})

    async with Calls(Registry(helper, ask), MemoryLedger()) as calls:
        done = await calls.call("lab.ask", {}, context=Context())
    assert (done.result, letters.sent) == ("I may not.", [])
    assert "it cannot wait for approval" in outputs(inner.requests[1])[0]


@pytest.mark.parametrize("approved", [True, False])
async def test_two_levels_down_a_question_is_asked_and_then_an_approval(approved: bool) -> None:
    letters = Letters()
    ask = ("user_question", {"text": "To whom?"})
    clerk, lowest = worker([ask], [SEND], "Over.", name="clerk", operations=[*letters.operations, question])
    helper, _ = worker([("agents_clerk", {"prompt": "Write."})], "He did.", operations=[clerk])
    agent, _ = lead([TASK], "Done.", operations=[helper])
    answer, approve = answering("Bob"), approving(approved)
    asking: list[str] = []

    def act(run: Any, event: e.Event) -> Any:
        if isinstance(event, e.ToolApprovalRequest):
            asking.append(event.approval_id)
            return approve(run, event) if len(asking) > 1 else None  # the first one goes with the question
        return answer(run, event)

    async with agent:
        events, result = await driven(agent.spawn("Write."), act)
    assert (result.exit_reason, outputs_in(events)) == ("success", ["He did."])
    assert (letters.sent, len(set(asking))) == (["bob"] if approved else [], 2)
    parts = [part for part in lowest.requests[2].messages[-1].parts if isinstance(part, ToolPart)]
    assert [part.state for part in parts] == [
        "output-available",
        "output-available" if approved else "output-denied",
    ]
