"""The question operation: the model asks the user and continues with the answer."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import Agent, ScriptedModel
from dragoman import events as e
from dragoman.agent.approval_events import UNANSWERED
from dragoman.errors import Conflict, NotFound
from dragoman.messages import ToolPart
from dragoman.operations import Calls, Context, Registry
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.permission.policy import Policy, Rule
from dragoman.tools.question import parse_question, question
from tests.agent.team import answering, driven, outputs, outputs_in, questions_in

WHERE = ("user_question", {"text": "Where to?", "options": ["Bonn", "Berlin", "Bonn"]})


def asker(*more: Any, **options: Any) -> tuple[Agent[Any], ScriptedModel]:
    model = ScriptedModel([WHERE, *more])
    return Agent(model, operations=[question], **options), model


async def test_the_answer_to_a_question_is_what_the_model_is_told() -> None:
    agent, model = asker("So to Bonn.")
    async with agent:
        events, result = await driven(agent.spawn("Travel."), answering("Bonn"))
    assert (result.exit_reason, result.text, outputs_in(events)) == ("success", "So to Bonn.", ["Bonn"])
    assert outputs(model.requests[1]) == ["Bonn"]
    [part] = questions_in(result)
    assert (part.type, part.data["status"], part.data["answer"]) == ("data-question", "answered", "Bonn")
    assert (part.data["text"], part.data["options"]) == ("Where to?", ["Bonn", "Berlin"])
    [call] = [part for part in result.messages[-1].parts if isinstance(part, ToolPart)]
    assert (call.state, part.data["toolCallId"], part.id) == (
        "output-available",
        call.tool_call_id,
        part.data["id"],
    )


@pytest.mark.parametrize(("reason", "output"), [("Ask him.", f"{UNANSWERED}: Ask him."), (None, UNANSWERED)])
async def test_a_question_that_is_declined_is_reported_as_declined(reason: str | None, output: str) -> None:
    agent, model = asker("Then not.")

    def decline(run: Any, event: e.Event) -> Any:
        asks = isinstance(event, e.Data) and event.data["status"] == "pending"
        return run.deny(event.id or "", reason=reason) if asks and isinstance(event, e.Data) else None

    async with agent:
        _, result = await driven(agent.spawn("Travel."), decline)
    assert (result.exit_reason, outputs(model.requests[1])) == ("success", [output])
    [part] = questions_in(result)
    assert (part.data["status"], part.data.get("reason")) == ("declined", reason)


async def test_nobody_answers_in_time() -> None:
    policy = Policy([Rule(decision="ask", operations=("user.question",), expires=0.05)])
    agent, model = asker("Then not.", policy=policy)
    async with agent:
        _, result = await driven(agent.spawn("Travel."))
    assert outputs(model.requests[1]) == [f"{UNANSWERED}: nobody answered in time"]
    assert (result.exit_reason, questions_in(result)[0].data["status"]) == ("success", "declined")


async def test_a_question_is_answered_once_and_by_its_call_or_its_id() -> None:
    agent, _ = asker("So to Bonn.")
    async with agent:
        run = agent.spawn("Travel.")
        async for event in run.events():
            if isinstance(event, e.Data) and event.data["status"] == "pending":
                with pytest.raises(NotFound, match="no question 'x'"):
                    await run.answer("x", "Bonn")
                with pytest.raises(Conflict, match="asks a question"):
                    run.add_tool_result(event.data["toolCallId"], "Bonn")
                await run.answer(event.data["toolCallId"], "Bonn")
                with pytest.raises(Conflict, match="already has an answer"):
                    await run.answer(event.id or "", "Berlin")
        assert (await run.result).text == "So to Bonn."


async def test_the_policy_can_forbid_to_ask() -> None:
    agent, model = asker("Then not.", policy=Policy([Rule(decision="deny", operations=("user.*",))]))
    async with agent:
        _, result = await driven(agent.spawn("Travel."))
    assert outputs(model.requests[1]) == ["You may not call user.question"]
    assert questions_in(result) == []


@pytest.mark.parametrize("input", [{}, {"text": "  "}, {"text": ""}, {"text": "x", "options": [""]}])
async def test_what_is_no_question_is_not_asked(input: dict[str, Any]) -> None:
    model = ScriptedModel([("user_question", input), "Sorry."])
    async with Agent(model, operations=[question]) as agent:
        _, result = await driven(agent.spawn("Travel."))
    assert (result.exit_reason, questions_in(result)) == ("success", [])
    assert "text" in outputs(model.requests[1])[0] or "options" in outputs(model.requests[1])[0]


async def test_two_questions_of_one_step_are_both_answered() -> None:
    calls = [("user_question", {"text": "Where?"}), ("user_question", {"text": "When?"})]
    model = ScriptedModel([calls, "Fine."])
    async with Agent(model, operations=[question]) as agent:
        events, result = await driven(agent.spawn("Travel."), answering("Bonn"))
    assert (result.text, outputs_in(events)) == ("Fine.", ["Bonn", "Bonn"])
    assert [part.data["status"] for part in questions_in(result)] == ["answered", "answered"]


async def test_a_run_that_is_aborted_while_it_waits_for_an_answer_is_closed() -> None:
    agent, _ = asker()
    async with agent:
        run = agent.spawn("Travel.")
        async for event in run.events():
            if isinstance(event, e.Data):
                run.abort("enough")
        result = await run.result
    [call] = [part for part in result.messages[-1].parts if isinstance(part, ToolPart)]
    assert (result.exit_reason, call.state, call.error_text) == ("aborted", "output-error", "enough")


async def test_a_question_that_a_program_asks_waits_for_its_answer_too() -> None:
    async with Calls(Registry(question), MemoryLedger()) as calls:
        waiting = await calls.call("user.question", {"text": "Where?"}, context=Context())
        assert (waiting.status, waiting.approval_id is not None) == ("pending", True)
        id = waiting.approval_id or ""
        stored = await calls.answer_approval(id, approved=True, by=Context().identity)
        assert (stored.question, stored.answer) == (parse_question({"text": "Where?"}), "yes")
        done = await calls.call("user.question", {"text": "Where?"}, context=Context(approval=id))
        assert (done.result, done.call_id) == ("yes", waiting.call_id)
