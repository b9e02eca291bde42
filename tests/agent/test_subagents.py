"""Sub-agents, called like any operation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman import Agent, Context, ScriptedModel, operation
from dragoman import events as e
from dragoman.agent.settings import RunLimits
from dragoman.agent.subagent import MAX_DEPTH
from dragoman.errors import ProviderError
from dragoman.operations import Calls, Registry
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.operation import Operation
from dragoman.providers.scripted import Step
from tests.agent.scripted import add
from tests.agent.team import TASK, driven, lead, outputs, outputs_in, seen, slow, worker

ADD = ("math_add", {"a": 2, "b": 2})


class City(msgspec.Struct):
    """A city."""

    name: str
    people: int


async def test_only_the_final_text_of_a_sub_agent_reaches_who_asked() -> None:
    helper, inner = worker([ADD], "It is 4.", operations=[add], instructions="Do sums.")
    agent, model = lead([TASK], "Done.", operations=[helper])
    async with agent:
        events, result = await driven(agent.spawn("What is 2 + 2?"))
    assert (result.exit_reason, result.text, outputs_in(events)) == ("success", "Done.", ["It is 4."])
    assert outputs(model.requests[1]) == ["It is 4."]
    assert [message.text for message in inner.requests[0].messages] == ["Do it."], "a context of its own"
    assert inner.requests[0].instructions == "Do sums."
    assert (result.steps, result.tool_calls.total) == (2, 1)


async def test_what_it_does_is_shown_as_preliminary_output() -> None:
    helper, _ = worker([ADD], slow("It is 4 and no more", 0.1), operations=[add])
    agent, _ = lead([TASK], "Done.", operations=[helper])
    async with agent:
        events, _ = await driven(agent.spawn("What is 2 + 2?"))
    shown = seen(events)
    assert [message["role"] for message in shown] == ["assistant"] * len(shown)
    types = [[part["type"] for part in message["parts"]] for message in shown]
    assert ["step-start", "tool-math_add", "step-start", "text"] in types
    assert len({message["id"] for message in shown}) == 1
    at = [event for event in events if isinstance(event, e.ToolOutputAvailable)]
    assert [event.preliminary for event in at] == [True] * len(shown) + [None]


async def test_the_value_of_an_agent_with_an_output_is_its_result() -> None:
    helper, _ = worker('{"name": "Bonn", "people": 335000}', output=City)
    agent, model = lead([TASK], "Done.", operations=[helper])
    async with agent:
        events, _ = await driven(agent.spawn("Which city?"))
    assert outputs_in(events) == [{"name": "Bonn", "people": 335000}]
    assert outputs(model.requests[1]) == [{"name": "Bonn", "people": 335000}]


async def test_an_output_that_never_fits_is_a_failure() -> None:
    helper, _ = worker(*["Bonn"] * 8, output=City)
    agent, model = lead([TASK], "Done.", operations=[helper])
    async with agent:
        await driven(agent.spawn("Which city?"))
    [error] = outputs(model.requests[1])
    assert error.startswith("worker did not finish: ")


def broken(why: str, **more: Any) -> ProviderError:
    return ProviderError(why, **more)


@pytest.mark.parametrize(
    ("steps", "limits", "message"),
    [
        ([broken("it is down", category="network")], {}, "worker did not finish: it is down"),
        (
            [Step(text="So far", finish="length")],
            {},
            (
                "worker did not finish: the answer was cut: it reached its limit of tokens; `max_tokens` in"
                " the model's options sets it; its text so far: So far"
            ),
        ),
        ([[ADD], [ADD]], {"max_steps": 2}, "worker did not finish: steps(2)"),
        (
            [broken("too long", category="context_limit")],
            {},
            "worker did not finish: too long",
        ),
        ([ValueError("a bug")], {}, "ValueError: a bug"),
        ([Step(text="", finish="stop")], {}, ""),
    ],
)
async def test_how_a_sub_agent_failed_is_reported_to_the_model_and_the_caller(
    steps: list[Any], limits: dict[str, Any], message: str
) -> None:
    helper, _ = worker(*steps, operations=[add], limits=RunLimits(**limits))
    agent, model = lead([TASK], "Done.", operations=[helper])
    async with agent:
        _, result = await driven(agent.spawn("Go."))
    assert (result.exit_reason, outputs(model.requests[1])) == ("success", [message])


async def test_whoever_calls_it_from_a_program_gets_an_outcome() -> None:
    helper, _ = worker("It is 4.", broken("busy", category="overloaded", transient=True))
    async with Calls(Registry(helper), MemoryLedger()) as calls:
        done = await calls.call("agents.worker", {"prompt": "Do it."}, context=Context())
        failed = await calls.call("agents.worker", {"prompt": "Do it."}, context=Context())
        bad = await calls.call("agents.worker", {}, context=Context())
    assert (done.ok, done.result) == (True, "It is 4.")
    assert failed.error is not None
    assert (failed.error.code, failed.error.transient) == ("call_failed", True)
    assert bad.error is not None
    assert bad.error.code == "invalid_input"


async def test_an_agent_that_calls_itself_is_stopped_five_deep() -> None:
    operations: list[Operation] = []

    @operation(namespace="lab")
    async def again(context: Context) -> Any:
        """Call the agent again."""
        return await context.call("agents.worker", {"prompt": "Again."})

    model = ScriptedModel([[("lab_again", {})]] * MAX_DEPTH + ["I give up."] * MAX_DEPTH)
    agent = Agent(model, operations=[again], name="worker")
    operations.append(agent.as_operation("It asks itself."))
    agent._resources.here().tools.registry.add(operations[0])
    async with Calls(Registry(operations[0]), MemoryLedger()) as calls:
        done = await calls.call("agents.worker", {"prompt": "Begin."}, context=Context())
    assert (done.ok, done.result, len(model.requests)) == (True, "I give up.", 2 * MAX_DEPTH)
    [error] = outputs(model.requests[MAX_DEPTH])
    assert error == (
        "agents may be nested 5 deep at most: worker > worker > worker > worker > worker > worker"
    )


async def test_sub_agents_of_one_step_work_at_the_same_time() -> None:
    one, _ = worker(slow("one is done"), name="one")
    two, _ = worker(slow("two is done"), name="two")
    calls = [("agents_one", {"prompt": "x"}), ("agents_two", {"prompt": "y"})]
    agent, model = lead(calls, "Done.", operations=[one, two])
    async with agent:
        events, _ = await driven(agent.spawn("Go."))
    assert sorted(outputs_in(events)) == ["oneisdone", "twoisdone"]
    assert outputs(model.requests[1]) == ["oneisdone", "twoisdone"], "in the order of the calls"


async def test_an_agent_has_the_name_and_namespace_that_it_is_given() -> None:
    agent = Agent(ScriptedModel([]), name="helper")
    made = agent.as_operation("Helps.", name="sums", namespace="school")
    assert (made.id, made.description, made.effect, made.resumes) == ("school.sums", "Helps.", "once", True)
    assert agent.as_operation("Helps.").id == "agents.helper"


async def test_its_calls_know_whose_they_are() -> None:
    seen: list[Context] = []

    @operation(namespace="lab", effect="read")
    async def look(context: Context) -> str:
        """Look."""
        seen.append(context)
        return "seen"

    helper, _ = worker([("lab_look", {})], "Done.", operations=[look])
    agent, _ = lead([TASK], "Done.", operations=[helper])
    async with agent:
        run = agent.spawn("Go.", session_id="ses_1")
        await driven(run)
    [context] = seen
    assert (context.agent, context.run_id, context.session_id) == ("worker", run.id, "ses_1")
    assert [above.agent for above in context.parent_agents] == ["lead"]
