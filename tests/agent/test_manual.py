"""Manual mode and approvals: the run waits for outputs and resumes with them."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import events as e
from dragoman.agent.agent import Agent
from dragoman.errors import Conflict, NotFound
from dragoman.messages import ToolPart
from dragoman.model_request import Tool
from dragoman.providers.scripted import ScriptedCall
from tests.agent.scripted import ASK, CALL, add, calling, provider, scripted, send, types, until
from tests.loop_clock import LoopClock

WHERE = Tool("where_am_i", "Say where the user is.", {"type": "object", "properties": {}})
SEND = ScriptedCall("mail_send", {"to": "bob"}, id="s1")


def output(result: Any) -> list[Any]:
    """What the calls of the last message gave."""
    calls = [part for part in result.messages[-1].parts if isinstance(part, ToolPart)]
    return [call.output if call.state == "output-available" else call.error_text for call in calls]


async def test_in_manual_mode_the_caller_runs_each_call_and_the_model_goes_on() -> None:
    agent = Agent(scripted(calling(text="Let me"), "It is {outputs}."), operations=[add], manual=True)
    run = agent.spawn(ASK)
    async for event in run.events():
        if isinstance(event, e.ToolInputAvailable):
            run.add_tool_result(event.tool_call_id, event.input["a"] + event.input["b"])
    result = await run.result
    assert (result.exit_reason, result.text, result.steps) == ("success", "It is 4.", 2)
    assert output(result) == [4]


async def test_a_failure_may_be_handed_in_too() -> None:
    agent = Agent(scripted(calling(), "I see."), operations=[add], manual=True)
    run = agent.spawn(ASK)
    run_id = (await until(run, "tool-input-available")).tool_call_id
    run.add_tool_result(run_id, error="no numbers today")
    assert output(await run.result) == ["no numbers today"]


async def test_a_run_waits_for_a_client_tool_while_its_other_calls_run() -> None:
    both = calling(CALL, ScriptedCall("where_am_i", {}, id="w1"))
    agent = Agent(scripted(both, "In Rome it is 4."), operations=[add], client_tools=[WHERE])
    run = agent.spawn(ASK)
    assert (await until(run, "tool-output-available")).tool_call_id == "c1"
    assert not run.result.done
    run.add_tool_result("w1", {"city": "Rome"})
    assert output(await run.result) == [4, {"city": "Rome"}]


async def test_an_output_is_taken_once_and_only_for_a_call_that_waits() -> None:
    agent = Agent(scripted(calling(), "4"), operations=[add], manual=True)
    run = agent.spawn(ASK)
    with pytest.raises(NotFound):
        run.add_tool_result("c1", 4)
    await until(run, "tool-input-available")
    run.add_tool_result("c1", 4)
    with pytest.raises(Conflict, match="takes one"):
        run.add_tool_result("c1", 5)
    assert output(await run.result) == [4]
    with pytest.raises((Conflict, NotFound)):
        run.add_tool_result("c1", 5)


async def test_a_call_that_runs_by_itself_takes_no_output_from_outside() -> None:
    agent = Agent(scripted(calling(SEND), "done"), operations=[send])
    run = agent.spawn(ASK)
    await until(run, "tool-input-available")
    with pytest.raises(Conflict, match=r"not run outside|approval"):
        run.add_tool_result("s1", "sent")
    run.abort()
    await run.result


@pytest.mark.parametrize(
    ("approved", "outputs", "words"),
    [
        (True, ["sent to bob"], ["tool-approval-response", "tool-output-available"]),
        (False, [None], ["tool-approval-response", "tool-output-denied"]),
    ],
)
async def test_a_call_that_wants_approval_waits_for_the_answer(
    approved: bool, outputs: Any, words: list[str]
) -> None:
    agent = Agent(scripted(calling(SEND), "done"), operations=[send])
    run = agent.spawn(ASK)
    approval_request = await until(run, "tool-approval-request")
    assert not run.result.done
    await (
        run.approve(approval_request.approval_id)
        if approved
        else run.deny(approval_request.approval_id, reason="not now")
    )
    result = await run.result
    assert (result.exit_reason, result.text) == ("success", "done")
    assert output(result) == outputs
    event_types = await types(run)
    assert event_types[event_types.index("tool-approval-request") + 1 :][:2] == words


async def test_an_approval_that_there_is_not_cannot_be_given() -> None:
    agent = Agent(scripted(calling(SEND), "done"), operations=[send])
    run = agent.spawn(ASK)
    await until(run, "tool-approval-request")
    with pytest.raises(NotFound):
        await run.approve("apr_nothing")
    run.abort()
    await run.result


def test_a_script_that_nobody_can_answer_ends_where_it_would_wait() -> None:
    agent = Agent(scripted(calling(SEND), "done"), operations=[send])
    result = agent.run_sync(ASK)
    assert (result.exit_reason, result.steps) == ("unknown", 1)
    assert "approval" in (result.stopped_by or "")


async def test_a_conversation_with_an_open_call_goes_on_with_its_output() -> None:
    first = Agent(scripted(calling()), operations=[add], manual=True)
    run = first.spawn(ASK)
    await until(run, "tool-input-available")
    conversation: list[Any] = [*ASK, run.message]  # kept by the caller, while the run is given up
    run.abort()
    await run.result
    agent = Agent(scripted("It is {outputs}."), operations=[add], manual=True)
    again = agent.spawn(conversation)
    again.add_tool_result("c1", 4)
    result = await again.result
    assert (result.text, len(result.messages)) == ("It is 4.", 2)
    assert len(provider(agent).requests) == 1


async def test_a_run_that_waits_is_aborted_at_once() -> None:
    agent = Agent(scripted(calling(), "4"), operations=[add], manual=True)
    run = agent.spawn(ASK)
    await until(run, "tool-input-available")
    run.abort("enough")
    with LoopClock().stopped():  # nothing waits for a time
        result = await run.result
    assert (result.exit_reason, result.stopped_by) == ("aborted", "enough")
    assert output(result) == ["enough"]
