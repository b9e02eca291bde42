"""What can change a step: on_prepare_step, hooks, the context policy, the output type."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dragoman import operation
from dragoman.agent.agent import Agent
from dragoman.agent.context.policy import ContextPolicy
from dragoman.agent.hooks.events import Block, Modify, PostModel, PreModel, RunEnd, UserPromptSubmit
from dragoman.agent.hooks.hooks import Hooks
from dragoman.agent.hooks.http import event_body
from dragoman.agent.structured_output import Output
from dragoman.agent.turn_spec import StepChange, StepContext
from dragoman.messages import ToolPart
from dragoman.model_request import Tool
from dragoman.providers.scripted import Failure, ScriptedCall, Step
from tests.agent.scripted import ASK, add, calling, fail, provider, scripted, types

ROLES = ("user", "assistant")
LONG = [{"role": ROLES[number % 2], "content": f"{number} " + "word " * 60} for number in range(9)]


async def test_a_step_is_prepared_with_what_is_known_before_it() -> None:
    seen: list[tuple[Any, ...]] = []

    async def note(step: StepContext) -> None:
        seen.append((step.number, step.model, [tool.name for tool in step.tools], step.so_far.text))

    agent = Agent(scripted(calling(text="Let me"), "4"), operations=[add], on_prepare_step=note)
    await agent.spawn(ASK).result
    assert seen == [(1, "any", ["math_add"], ""), (2, "any", ["math_add"], "Let me")]


async def test_a_step_may_change_model_tools_messages_instructions_and_options_for_itself_alone() -> None:
    other = scripted("from the other")

    def change(step: StepContext) -> StepChange | None:
        if step.number > 1:
            return None
        return StepChange(
            model=other,
            tools=[],
            messages=[{"role": "user", "content": "Something else"}],  # type: ignore[list-item]
            instructions="Be other.",
            options={"temperature": 0},
        )

    agent = Agent(
        scripted("own"), operations=[add], on_prepare_step=change, options={"top_p": 1}, instructions="Be."
    )
    assert (await agent.spawn(ASK).result).text == "from the other"
    [sent] = other.provider.requests  # type: ignore[attr-defined]
    assert (sent.tools, sent.instructions) == ((), "Be other.")
    assert sent.options == {"top_p": 1, "temperature": 0}
    assert sent.messages[0].parts[0].text == "Something else"
    assert provider(agent).requests == []


async def test_a_tool_that_a_step_does_not_show_cannot_be_called_in_it() -> None:
    def only(_: StepContext) -> StepChange:
        return StepChange(tools=["lab.fail"])

    agent = Agent(scripted(calling(), "so"), operations=[add, fail], on_prepare_step=only)
    result = await agent.spawn(ASK).result
    [call] = [part for part in result.messages[-1].parts if isinstance(part, ToolPart)]
    assert call.error_text == "there is no tool 'math_add'; the tools are lab_fail."


async def test_a_change_that_cannot_be_made_says_why() -> None:
    agent = Agent(scripted("hi"), operations=[add], on_prepare_step=lambda _: StepChange(tools=["nothing"]))
    result = await agent.spawn(ASK).result
    assert result.exit_reason == "crashed"
    assert result.error.message == "StepChange(tools=): there is no tool 'nothing'; there are math.add"


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["math.add"], ["math_add"]),
        (["math_add"], ["math_add"]),
        (["add"], ["math_add"]),
        (["math.*"], ["math_add"]),
        (["*_fail", "page"], ["lab_fail", "page"]),
        (["*"], ["math_add", "lab_fail", "page"]),
        ([], []),
        (["math.ad"], "did you mean 'math.add'?"),
        (["ad"], "did you mean 'math.add'?"),
        (["math.add", "lab.*", "shop.*"], "there is no tool 'shop.*'"),
        (["pag"], "did you mean 'page'?"),
    ],
)
async def test_a_step_names_tools_as_allowed_tools_does(names: list[str], shown: Any) -> None:
    page = Tool("page", "", {"type": "object"})
    agent = Agent(
        scripted("hi"),
        operations=[add, fail],
        client_tools=[page],
        on_prepare_step=lambda _: StepChange(tools=names),
    )
    result = await agent.spawn(ASK).result
    if isinstance(shown, str):
        assert result.error is not None
        assert shown in result.error.message
        return
    [sent] = provider(agent).requests
    assert sorted(tool.name for tool in sent.tools) == sorted(shown)


async def test_hooks_see_a_whole_run_in_order() -> None:
    hooks, heard = Hooks(), list[str]()

    @hooks.user_prompt_submit
    def user_prompt_submit(event: UserPromptSubmit) -> None:
        heard.append(f"user: {event.text}")

    @hooks.pre_model
    def asking(event: PreModel) -> None:
        heard.append(f"ask {event.step}")

    @hooks.pre_tool_use
    def before(event: Any) -> None:
        heard.append(f"call {event.tool}")

    @hooks.post_tool_use
    async def after(event: Any) -> None:
        heard.append(f"gave {event.output}")

    @hooks.post_model
    def answered(event: PostModel) -> None:
        heard.append(f"said {event.text!r}")

    @hooks.run_end
    def ended(event: RunEnd) -> None:
        heard.append(f"end {event.reason} after {event.steps}")

    async with Agent(scripted(calling(text="Hm"), "4"), operations=[add], hooks=hooks) as agent:
        await agent.spawn(ASK).result
    assert heard == [
        "user: What is 2 + 2?",
        "ask 1", "call math_add", "gave 4", "said 'Hm'",
        "ask 2", "said '4'",
        "end stop after 2",
    ]  # fmt: skip


@pytest.mark.parametrize("event", ["user_prompt_submit", "pre_model"])
async def test_a_hook_that_blocks_ends_the_run_with_its_reason(event: Any) -> None:
    hooks = Hooks().on(event, lambda _: Block("not on Sundays"))
    async with Agent(scripted("hi"), hooks=hooks) as agent:
        run = agent.spawn("hi")
        assert (await types(run))[-1] == "finish"
        result = await run.result
        assert (result.exit_reason, result.stopped_by) == ("aborted", "not on Sundays")
        assert provider(agent).requests == []


async def test_a_hook_may_change_what_the_user_said_and_what_the_model_is_asked() -> None:
    hooks = Hooks().on("user_prompt_submit", lambda event: Modify(input=event.text.upper()))
    hooks.on("pre_model", lambda event: Modify(request=replace(event.request, options={"temperature": 1})))
    async with Agent(scripted("hi"), hooks=hooks) as agent:
        result = await agent.spawn("be loud").result
        [sent] = provider(agent).requests
    assert sent.options == {"temperature": 1}
    assert sent.messages[0].parts[0].text == "BE LOUD"  # type: ignore[union-attr]
    assert result.messages[0] == sent.messages[0]


async def test_hooks_see_runs_that_fail_or_are_aborted() -> None:
    hooks, heard = Hooks(), list[Any]()
    hooks.on("run_end", lambda event: heard.append((event.reason, event.error)))
    hooks.on("post_model", lambda event: heard.append(event.error))
    crashing = Agent(scripted(Step(error=Failure("down"))), hooks=hooks)
    run = crashing.spawn("hi")
    await run.result
    await run.wait_closed()
    waiting = Agent(scripted(calling()), operations=[add], manual=True, hooks=hooks)
    run = waiting.spawn(ASK)
    async for event in run.events():
        if event.type == "tool-input-available":
            run.abort()
    await run.wait_closed()
    hooks.close()
    assert heard == ["down", ("error", "down"), ("aborted", None)]


async def test_a_conversation_that_is_too_long_is_cut_and_that_is_told() -> None:
    policy = ContextPolicy(kind="truncate", limit=300)
    agent = Agent(scripted("hi"), context=policy)
    run = agent.spawn(LONG)
    assert "data-context" in await types(run)
    assert len(provider(agent).requests[0].messages) < len(LONG)
    assert (await run.result).exit_reason == "success"


async def test_what_a_provider_refuses_as_too_long_is_cut_and_asked_again() -> None:
    too_long = Step(error=Failure("too long", category="context_limit"))
    agent = Agent(scripted(too_long, "hi"), context=ContextPolicy(kind="truncate"))
    result = await agent.spawn(LONG).result
    assert (result.exit_reason, result.text) == ("success", "hi")
    first, second = provider(agent).requests
    assert len(second.messages) < len(first.messages)


class Sum(msgspec.Struct):
    """What came out."""

    total: int


@pytest.mark.parametrize("broken", [0, 1, 2, 3])
async def test_an_answer_of_a_type_is_asked_for_until_it_is_one(broken: int) -> None:
    script = ['{"total": "four"}'] * broken + ['{"total": 4}'] * (broken < 3)
    agent = Agent(scripted(calling(), *script), operations=[add], output=Sum)
    result = await agent.spawn(ASK).result
    if broken == 3:
        assert result.exit_reason == "crashed"
        assert (result.output, result.steps) == (None, 4)
        assert (result.error.category, result.error.transient) == ("output_invalid", False)
        assert result.error.message.startswith("the answer does not fit Sum, asked 3 times: Expected `int`")
        assert "attempts" in (result.error.hint or "")
    else:
        assert (result.exit_reason, result.output) == ("success", Sum(total=4))
        assert result.steps == 2 + broken


async def test_a_last_tool_gives_the_answer_where_a_provider_has_no_schemas() -> None:
    wrong = ScriptedCall("final_answer", {"total": "four"}, id="f1")
    right = ScriptedCall("final_answer", {"total": 4}, id="f2")
    model = scripted(calling(), calling(wrong), calling(right))
    agent = Agent(model, operations=[add], output=Output(Sum, way="tool"))
    run = agent.spawn(ASK)
    assert (await types(run)).count("tool-output-available") == 2
    result = await run.result
    assert (result.exit_reason, result.output, result.steps) == ("success", Sum(total=4), 3)
    assert [tool.name for tool in provider(agent).requests[0].tools] == ["math_add", "final_answer"]
    assert isinstance(provider(agent).requests[0].tools[0], Tool)


@operation(namespace="final", effect="read")
async def answer(name: str) -> str:
    """An operation that a model is shown as `final_answer`."""
    return f"answered {name}"


@pytest.mark.parametrize("way", ["schema", "tool", "words"])
async def test_an_operation_with_the_name_of_the_last_tool_runs_like_any_other(way: Any) -> None:
    own = ScriptedCall("final_answer", {"name": "ann"}, id="f1")
    last = calling(ScriptedCall("final_answer_2", {"total": 4}, id="f2")) if way == "tool" else '{"total": 4}'
    agent = Agent(scripted(calling(own), last), operations=[answer], output=Output(Sum, way=way))
    result = await agent.run(ASK)
    assert (result.exit_reason, result.output) == ("success", Sum(total=4))
    [call, *_] = result.messages[-1].tool_calls
    assert (call.name, call.output) == ("final_answer", "answered ann")


@pytest.mark.parametrize(
    ("schema", "script", "value"),
    [
        (
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            ['{"a": 1}'],
            {"a": 1},
        ),
        (
            {"$schema": "https://json-schema.org/draft/2020-12/schema", "enum": ["yes", "no"]},
            ['{"value": "no"}'],
            "no",
        ),
        (
            {"type": "array", "items": {"$ref": "#/definitions/n"}, "definitions": {"n": {"minimum": 1}}},
            ['{"value": [0]}', '{"value": [2]}'],
            [2],
        ),
    ],
)
async def test_a_json_schema_will_do_as_the_form_of_an_answer(
    schema: Any, script: list[str], value: Any
) -> None:
    agent = Agent(scripted(*script), output=schema)
    result = await agent.spawn(ASK).result
    assert (result.exit_reason, result.output) == ("success", value)
    sent_schema = provider(agent).requests[0].options["response_format"]["json_schema"]["schema"]
    assert (sent_schema["type"], "$schema" in sent_schema) == ("object", False)


async def test_a_result_says_that_nobody_tried_again_where_that_would_help() -> None:
    busy = Failure("busy", category="rate_limit", transient=True)
    result = await Agent(scripted(Step(error=busy))).spawn(ASK).result
    assert [note[:41] for note in result.notices] == ["the agent did not retry (retries=0); erro"]
    wrong = Failure("wrong", category="bad_request")
    assert (await Agent(scripted(Step(error=wrong))).spawn(ASK).result).notices == ()


async def test_hooks_see_what_kind_of_failure_ended_a_run_and_when_to_try_again() -> None:
    hooks, heard = Hooks(), list[RunEnd]()
    hooks.on("run_end", heard.append)
    busy = Failure("slow down", category="rate_limit", transient=True, retry_after=7)
    steps: list[Any] = [Step(error=busy), "fine"]
    for step in steps:
        run = Agent(scripted(step), hooks=hooks).spawn("hi")
        await run.wait_closed()
    failed, done = heard
    endings: list[tuple[Any, ...]] = [
        (end.reason, end.error, end.category, end.transient, end.retry_delay) for end in (failed, done)
    ]
    assert endings == [("error", "slow down", "rate_limit", True, 7), ("stop", None, None, None, None)]
    assert event_body(failed)["retryDelay"] == 7
