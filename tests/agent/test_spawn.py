"""Spawning a run: live events, the result, and invalid arguments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman import events as e
from dragoman.agent.agent import Agent
from dragoman.agent.result import Repeated, ToolCallSummary, UsageSummary
from dragoman.agent.settings import RunLimits
from dragoman.errors import BadRequest, ConfigError, Conflict
from dragoman.events import Usage
from dragoman.messages import Message, TextPart, ToolPart
from dragoman.providers.scripted import Failure, ScriptedCall, Step
from tests.agent.scripted import ASK, CALL, USED, add, calling, fail, provider, scripted, send, types, wait

TWO_STEPS = [
    "start", "start-step",
    "text-start", "text-delta", "text-delta", "text-end",
    "tool-input-start", "tool-input-delta", "tool-input-delta", "tool-input-available",
    "tool-output-available", "finish-step",
    "start-step", "text-start", "text-delta", "text-end", "finish-step",
    "finish",
]  # fmt: skip


@pytest.mark.promise("nothing-hidden")
async def test_everything_that_happens_is_an_event_under_its_canonical_name() -> None:
    agent = Agent(scripted(calling(text="Let me"), "4"), operations=[add])
    async with agent:
        run = agent.spawn(ASK)
        assert await types(run) == TWO_STEPS
        result = await run.result
    assert (result.exit_reason, result.text, result.steps) == ("success", "4", 2)
    assert result.tool_calls == ToolCallSummary(
        total=1, unique=1, most_repeated=Repeated('math_add({"a":2,"b":2})', 1)
    )
    assert result.session_id == run.session_id
    assert result.duration > 0
    assert result.stopped_by is None


@pytest.mark.parity
async def test_any_number_may_listen_and_late_listeners_get_everything() -> None:
    agent = Agent(scripted(calling(text="Let me"), "4"), operations=[add])
    run = agent.spawn(ASK)
    early = await asyncio.gather(types(run), types(run), types(run))
    assert list(early) == [TWO_STEPS] * 3
    assert await types(run) == TWO_STEPS


async def test_a_listener_that_leaves_disturbs_no_other_and_not_the_run() -> None:
    agent = Agent(scripted(calling(text="Let me"), "4"), operations=[add])
    run = agent.spawn(ASK)
    leaving = asyncio.ensure_future(types(run))
    staying = asyncio.ensure_future(types(run))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == TWO_STEPS
    assert (await run.result).exit_reason == "success"


async def test_the_result_may_be_awaited_by_many_and_giving_up_changes_nothing() -> None:
    agent = Agent(scripted(calling(), "4"), operations=[add])
    run = agent.spawn(ASK)
    promise = run.result
    giving_up = asyncio.ensure_future(promise)
    await asyncio.sleep(0)
    giving_up.cancel()
    results = await asyncio.gather(promise, run.result, asyncio.wait_for(run.result, 120))
    assert results[0] is results[1] is results[2] is await promise


async def test_usage_is_that_of_all_steps_and_marked_where_it_is_estimated() -> None:
    cached = Usage(200, 20, 220, reasoning_tokens=5, cached_input_tokens=50, cache_write_tokens=7)
    cached_agent = Agent(scripted(calling(usage=USED), Step(text="4", usage=cached)), operations=[add])
    assert (await cached_agent.spawn(ASK).result).usage == UsageSummary(
        input_tokens=300,
        output_tokens=30,
        total_tokens=330,
        cache_creation_input_tokens=7,
        cache_read_input_tokens=50,
        reasoning_tokens=5,
    )
    untold = Agent(scripted("4"))
    estimate = (await untold.spawn(ASK).result).usage
    assert (estimate.output_tokens, estimate.estimated) == (1, True)


async def test_a_conversation_goes_on_from_the_result() -> None:
    agent = Agent(scripted(calling(), "4", "8"), operations=[add])
    first = await agent.spawn(ASK).result
    second = await agent.spawn([*first.messages, {"role": "user", "content": "And twice that?"}]).result
    assert second.text == "8"
    assert [message.role for message in second.messages] == ["user", "assistant", "user", "assistant"]
    sent = provider(agent).requests[-1].messages
    assert [message.role for message in sent] == ["user", "assistant", "user"]


@pytest.mark.parity
@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "messages is empty"),
        ([{"role": "user", "content": ""}], "messages[0] is empty"),
        ([{"role": "user", "content": "  \n"}], "messages[0] is empty"),
        ([{"role": "user", "content": []}], "messages[0] is empty"),
        ("", "messages[0] is empty"),
        ([{"role": "system", "content": "be good"}], "instructions only"),
        ([{"role": "uncle", "content": "hi"}], "messages[0].role"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        ([{"role": "tool", "content": "4", "tool_call_id": "x"}], "tool_call_id"),
        ([{"role": "user", "parts": [{"type": "what"}]}], "messages[0].parts[0]"),
        ([Message("m", "user", (TextPart("hi"),)), {"role": "uncle", "content": "hi"}], "messages[1]"),
        ({"role": "user", "content": "hi"}, "must be a list"),
        (7, "must be a list"),
        ([7], "messages[0]"),
    ],
)
async def test_messages_that_cannot_be_sent_are_refused_at_once(messages: Any, says: str) -> None:
    agent = Agent(scripted("hi"))
    with pytest.raises(BadRequest) as refused:
        agent.spawn(messages)
    assert says in refused.value.message
    assert provider(agent).requests == []


@pytest.mark.parametrize(
    "messages",
    [
        "hi",
        [{"role": "user", "content": "hi"}],
        [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        [{"role": "user", "content": ["hi"]}],
        [{"role": "user", "content": [TextPart("hi")]}],
        [{"role": "user", "parts": [{"type": "text", "text": "hi"}]}],
        [{"id": "u1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}],
        [Message("u1", "user", (TextPart("hi"),))],
    ],
)
async def test_messages_may_be_written_in_many_ways(messages: Any) -> None:
    agent = Agent(scripted("ho"))
    assert (await agent.spawn(messages).result).text == "ho"
    [sent] = provider(agent).requests
    [message] = sent.messages
    assert (message.role, message.parts) == ("user", (TextPart("hi"),))


async def test_calls_and_outputs_of_openai_messages_are_understood() -> None:
    agent = Agent(scripted("4"), operations=[add])
    calls = [{"id": "x", "type": "function", "function": {"name": "math_add", "arguments": '{"a":2,"b":2}'}}]
    await agent.spawn(
        [
            *ASK,
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "x", "content": "4"},
        ]
    ).result
    [sent] = provider(agent).requests
    [part] = sent.messages[1].parts
    assert isinstance(part, ToolPart)
    assert (part.tool_call_id, part.state, part.output) == ("x", "output-available", "4")


@pytest.mark.parity
async def test_system_takes_the_place_of_the_instructions() -> None:
    agent = Agent(scripted("a", "b"), instructions="Be brief.")
    await agent.spawn("hi").result
    await agent.spawn("hi", system="Be long.").result
    assert [sent.instructions for sent in provider(agent).requests] == ["Be brief.", "Be long."]


@pytest.mark.parametrize(
    ("allowed", "disallowed", "shown"),
    [
        (None, None, ["lab_fail", "mail_send", "math_add"]),
        (["math_add"], None, ["math_add"]),
        (["math.add"], ["math_add"], ["math_add"]),  # what is allowed is so even where it is disallowed
        (["add"], ["*"], ["math_add"]),
        (None, ["mail_send"], ["lab_fail", "math_add"]),
        (None, ["m*"], ["lab_fail"]),
        (["lab.*", "send"], None, ["lab_fail", "mail_send"]),
        ([], None, []),
    ],
)
async def test_allowed_tools_override_disallowed_ones(allowed: Any, disallowed: Any, shown: Any) -> None:
    agent = Agent(scripted("hi"), operations=[add, fail, send])
    await agent.spawn("hi", allowed_tools=allowed, disallowed_tools=disallowed).result
    assert [tool.name for tool in provider(agent).requests[0].tools] == shown


@pytest.mark.parity
@pytest.mark.parametrize("meta", [False, True])
async def test_a_tool_that_is_not_allowed_does_not_run_when_a_model_calls_it_all_the_same(meta: bool) -> None:
    called = calling(CALL)
    if meta:
        called = Step(tools=[_call("hub_call", {"calls": [{"tool": "math.add", "input": {"a": 1, "b": 1}}]})])
    agent = Agent(scripted(called, "so"), operations=[add, fail], meta_tools=meta)
    run = agent.spawn("hi", disallowed_tools=["math_add"])
    result = await run.result
    [call] = [part for part in result.messages[-1].parts if isinstance(part, ToolPart)]
    assert "no tool 'math_add'" in (call.error_text or "") or "There is no operation 'math.add'" in str(
        call.output
    )


async def test_many_operations_are_shown_as_the_four_meta_tools() -> None:
    agent = Agent(scripted("hi", "ho"), operations=[add], meta_tools=True)
    await agent.spawn("hi").result
    names = [tool.name for tool in provider(agent).requests[0].tools]
    assert names == ["hub_list", "hub_search", "hub_schema", "hub_call"]


async def test_overhead_lists_the_tools_with_what_they_cost() -> None:
    agent = Agent(scripted("hi"), operations=[add, send], instructions="Be brief. " * 40)
    overhead = agent.overhead()
    assert overhead.names == ["mail_send", "math_add"]
    assert all(tool.tokens > 10 for tool in overhead.tools)
    assert overhead.instructions == 100
    assert overhead.tokens == 100 + sum(tool.tokens for tool in overhead.tools)


async def test_a_failure_of_the_model_is_a_crash_with_its_error() -> None:
    error = Failure("too many requests", category="rate_limit", transient=True)
    agent = Agent(scripted(calling(), Step(text="half an", error=error)), operations=[add])
    run = agent.spawn(ASK)
    assert (await types(run))[-3:] == ["finish-step", "error", "finish"]
    result = await run.result
    assert result.exit_reason == "crashed"
    assert (result.error.message, result.error.category) == ("too many requests", "rate_limit")
    assert (result.error.transient, result.error.retry_delay) == (True, None)
    assert (result.text, result.steps, result.tool_calls.total) == ("half an", 2, 1)


@pytest.mark.parametrize(
    ("step", "word"),
    [
        (Step(error=Failure("too long", category="context_limit")), "context_limit"),
        (Step(text="cut", finish="length"), "context_limit"),
        (Step(text="hm", finish="content-filter"), "crashed"),
        (Step(text="hm", finish="other"), "unknown"),
        (Step(text="hm"), "success"),
        (Step(error=Failure("who are you", category="auth")), "crashed"),
    ],
)
async def test_every_end_has_its_word(step: Step, word: str) -> None:
    result = await Agent(scripted(step)).spawn("hi").result
    assert result.exit_reason == word
    assert (result.error is not None) is (word == "crashed")


async def test_a_run_ends_after_as_many_steps_as_it_may_take() -> None:
    agent = Agent(scripted(*[calling()] * 3), operations=[add], limits=RunLimits(max_steps=3))
    result = await agent.spawn(ASK).result
    assert (result.exit_reason, result.steps, result.stopped_by) == ("steps_exhausted", 3, "steps(3)")
    assert result.tool_calls.total == 3


async def test_a_run_ends_when_its_time_is_over() -> None:
    agent = Agent(scripted(calling(_call("lab_wait"))), operations=[wait], limits=RunLimits(timeout=0.1))
    result = await agent.spawn(ASK).result
    assert (result.exit_reason, result.stopped_by) == ("aborted", "its time is over")


async def test_a_failure_that_may_pass_is_tried_again_only_when_that_is_wanted() -> None:
    busy = Step(error=Failure("busy", category="overloaded", transient=True))
    once = await Agent(scripted(busy, "hi")).spawn("hi").result
    assert once.exit_reason == "crashed"
    again = await Agent(scripted(busy, "hi"), retries=1).spawn("hi").result
    assert (again.exit_reason, again.text, again.steps) == ("success", "hi", 1)


async def test_an_error_of_our_own_hook_is_a_crash_and_not_an_exception() -> None:
    def broken(_: object) -> None:
        raise ValueError("no idea")

    result = await Agent(scripted("hi"), on_prepare_step=broken).spawn("hi").result
    assert result.exit_reason == "crashed"
    assert (result.error.category, result.error.message) == ("unknown", "ValueError: no idea")


async def test_closing_the_agent_aborts_what_still_runs() -> None:
    agent = Agent(scripted(calling(_call("lab_wait"))), operations=[wait])
    async with agent:
        run = agent.spawn(ASK)
        await _submit(run, "waiting")
    assert run.result.done
    result = await run.result
    assert (result.exit_reason, result.stopped_by) == ("aborted", "the agent is closed")


def test_a_script_needs_no_event_loop() -> None:
    agent = Agent(scripted(calling(), "4"), operations=[add])
    assert agent.run_sync(ASK).text == "4"
    with pytest.raises(Conflict, match="no event loop"):
        agent.spawn(ASK)


async def test_run_sync_does_not_wait_inside_an_event_loop() -> None:
    with pytest.raises(Conflict, match="inside an event loop"):
        Agent(scripted("hi")).run_sync("hi")


def test_a_model_must_be_one() -> None:
    with pytest.raises(ConfigError, match="gibberish"):
        Agent("gibberish").run_sync("hi")
    with pytest.raises(TypeError, match="colour"):
        Agent(scripted("hi"), colour="red")  # type: ignore[call-overload]


async def test_events_are_ours_and_may_be_matched() -> None:
    run = Agent(scripted("one two")).spawn("hi")
    deltas = [event.delta async for event in run.events() if isinstance(event, e.TextDelta)]
    assert "".join(deltas) == "one two"


def _call(name: str, input: Any = None) -> Any:
    return ScriptedCall(name, input or {}, id="c1")


async def _submit(run: Any, output: Any) -> None:
    async for event in run.events():
        if isinstance(event, e.ToolOutputAvailable) and event.output == output:
            return
