"""Arguments of `spawn`, the run handle and the result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman import Agent, ContextPolicy, RunLimits, Tool, operation
from dragoman import events as e
from tests.parity.upstream import Answer, call, openai, openai_call, openai_model, refusal, text

USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 10,
    "total_tokens": 110,
    "prompt_tokens_details": {"cached_tokens": 40},
    "completion_tokens_details": {"reasoning_tokens": 4},
}
ASK = [{"role": "user", "content": [{"type": "text", "text": "List all items"}]}]


@operation(namespace="items", effect="read")
def find(name: str) -> str:
    """Find an item."""
    return f"{name} is there"


@operation(namespace="items")
def drop(name: str) -> str:
    """Drop an item."""
    return f"{name} is gone"


def tools(body: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in body.get("tools", [])]


async def test_messages_are_the_conversation() -> None:
    before = [
        {"role": "user", "content": "Is the hat there?"},
        {"role": "assistant", "content": "It is."},
    ]
    async with openai_model(text("A hat.")) as (up, model):
        await Agent(model).spawn([*before, *ASK]).result
    assert up.bodies[0]["messages"] == [*before, {"role": "user", "content": "List all items"}]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, ["ask_me", "items_drop", "items_find"]),
        ({"allowed_tools": ["items_find"]}, ["items_find"]),
        ({"allowed_tools": "items_find"}, ["items_find"]),
        ({"allowed_tools": ["items_find"], "disallowed_tools": ["items_find"]}, ["items_find"]),
        ({"disallowed_tools": ["items_drop", "ask_me"]}, ["items_find"]),
        ({"disallowed_tools": ["items.*"]}, ["ask_me"]),
        ({"allowed_tools": []}, []),
    ],
)
async def test_allowed_tools_are_all_that_there_are_and_go_before_disallowed_ones(
    options: Any, shown: list[str]
) -> None:
    outside = Tool("ask_me", "Ask.", {"type": "object"})
    async with openai_model(text("Hi.")) as (up, model):
        agent = Agent(model, operations=[find, drop], client_tools=[outside])
        await agent.spawn("Hello?", **options).result
        assert sorted(tools(up.bodies[0])) == shown


async def test_a_name_that_means_no_tool_is_told_in_the_notices() -> None:
    async with openai_model(text("Hi.")) as (_, model):
        agent = Agent(model, operations=[find])
        result = await agent.spawn("Hello?", disallowed_tools=["items_dorp", "*"]).result
    assert result.notices == ("disallowed_tools: there is no tool 'items_dorp'",)


def test_a_script_may_choose_tools_too() -> None:
    from dragoman import ScriptedModel  # late: the only row that needs no server

    model = ScriptedModel(["Hi.", "Hi."])
    agent = Agent(model, operations=[find, drop])
    agent.run_sync("Hello?", allowed_tools=["items_find"])
    agent.run_sync("Hello?", disallowed_tools=["items_find"])
    shown = [[tool.name for tool in request.tools] for request in model.requests]
    assert shown == [["items_find"], ["items_drop"]]


async def test_the_handle_comes_at_once_and_its_result_when_the_loop_is_over() -> None:
    gate = asyncio.Event()
    async with openai_model(text("A ", "hat.", gate=gate)) as (up, model):
        run = Agent(model).spawn(ASK)
        assert not run.result.done
        assert up.received == []
        gate.set()
        assert (await run.result).text == "A hat."
        assert (await run.result) is (await run.result)


async def test_abort_ends_the_loop_and_drops_the_connection() -> None:
    async with openai_model(text("I", " think", endless=True)) as (up, model):
        run = Agent(model).spawn(ASK)
        async for event in run.events():
            if isinstance(event, e.TextDelta):
                run.abort("enough")
                run.abort("twice is once")
        result = await run.result
        async with asyncio.timeout(120):
            await up.left.wait()
    assert (result.exit_reason, result.stopped_by, up.gone) == ("aborted", "enough", 1)
    assert result.text.startswith("I")
    assert [message.role for message in result.messages] == ["user", "assistant"]


LONG = {"message": "This model's maximum context length is 10 tokens.", "code": "context_length_exceeded"}
CALLS = call("items_find", {"name": "hat"}, usage=USAGE)


@pytest.mark.parametrize(
    ("word", "answer", "limits"),
    [
        ("success", text("A hat."), RunLimits()),
        ("steps_exhausted", CALLS, RunLimits(max_steps=2)),
        ("budget_exhausted", CALLS, RunLimits(max_budget_usd=0.011)),
        ("context_limit", refusal(400, {"error": LONG}), RunLimits()),
        ("context_limit", text("A ha", finish="length"), RunLimits()),
        ("aborted", text("I", " think", endless=True), RunLimits(timeout=0.2)),
        ("crashed", refusal(500, {"error": {"message": "boom"}}), RunLimits()),
        ("crashed", Answer(pieces=[b'data: {"choi']), RunLimits()),
        ("unknown", openai({"content": "hm"}, finish="strange"), RunLimits()),
    ],
)
async def test_every_exit_reason_is_told_and_an_error_exactly_when_it_crashed(
    word: str, answer: Answer, limits: RunLimits
) -> None:
    async with openai_model(answer, name="gpt-4o") as (_, model):
        result = await Agent(model, operations=[find], limits=limits).spawn(ASK).result
    assert result.exit_reason == word
    assert (result.error is not None) is (word == "crashed")
    if result.exit_reason == "crashed":
        assert result.error.message
        assert result.error.category == "api_error"
        assert result.error.transient is True


async def test_steps_usage_duration_session_calls_and_text_are_told() -> None:
    twice = openai(
        *openai_call("items_find", '{"name":"hat"}', id="c1"),
        *openai_call("items_find", '{"name":"cap"}', id="c2", index=1),
        finish="tool_calls",
        usage=USAGE,
    )
    again = call("items_find", {"name": "hat"}, id="c3", usage=USAGE)
    async with openai_model(twice, again, text("A hat", " and a cap.", usage=USAGE)) as (_, model):
        result = await Agent(model, operations=[find]).spawn(ASK, session_id="mine").result
    assert (result.steps, result.text, result.session_id) == (3, "A hat and a cap.", "mine")
    assert 0 < result.duration < 60  # seconds
    used = result.usage
    assert (used.input_tokens, used.output_tokens, used.reasoning_tokens) == (300, 30, 12)
    assert (used.cache_read_input_tokens, used.cache_creation_input_tokens) == (120, None)
    calls = result.tool_calls
    assert (calls.total, calls.unique) == (3, 2)
    assert calls.most_repeated is not None
    assert (calls.most_repeated.signature, calls.most_repeated.count) == ('items_find({"name":"hat"})', 2)


async def test_runs_have_ids_of_their_own_and_share_an_agent() -> None:
    async with openai_model(text("Hi.")) as (_, model):
        agent = Agent(model, context=ContextPolicy())
        results = await asyncio.gather(*(agent.spawn(f"Hello {at}?").result for at in range(20)))
    assert len({result.session_id for result in results}) == 20
    assert {result.exit_reason for result in results} == {"success"}
