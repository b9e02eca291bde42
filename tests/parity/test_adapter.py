"""Adapters: `init`, `spawn`, `cleanup`, `overhead`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman import (
    Agent,
    AnthropicProvider,
    Conflict,
    Model,
    OllamaProvider,
    OpenAIProvider,
    RunLimits,
    StepChange,
    StepContext,
    operation,
    steps,
    tool_called,
)
from dragoman import events as e
from tests.parity.upstream import Answer, call, claude, ollama, openai_model, refusal, text, upstream

SERVER = Path(__file__).with_name("mcp_server.py")
LISTS = ("mcp_server_list_items", "server_list_items")


@operation(namespace="math", effect="read")
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


ADDS = call("math_add", {"a": 2, "b": 2})


@asynccontextmanager
async def listening(way: str) -> AsyncIterator[str]:
    """The MCP server over HTTP, in a process of its own; its address."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, str(SERVER), way, stdout=pipe)
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        yield f"http://127.0.0.1:{port}/{'sse' if way == 'sse' else 'mcp'}"
    finally:
        process.kill()
        await process.wait()


async def lists_items(server: Any, name: str) -> None:
    """A model of OpenAI's language calls the server's tool, and is told what it gave."""
    async with (
        openai_model(call(name, {}), text("A hat.")) as (up, model),
        Agent(model, mcp=[server]) as agent,
    ):
        assert name in agent.overhead().names
        result = await agent.spawn([{"role": "user", "content": "List all items"}]).result
    assert (result.exit_reason, result.text) == ("success", "A hat.")
    assert name in [tool["function"]["name"] for tool in up.bodies[0]["tools"]]
    assert up.bodies[1]["messages"][-1]["content"] == '{"result":["hat"]}'


def at(family: str, url: str) -> tuple[Any, Answer]:
    """A provider of this family, and an answer in its language."""
    match family:
        case "openai":
            return OpenAIProvider(base_url=f"{url}/v1", api_key="sk-0123456789"), text("Hi.")
        case "anthropic":
            return AnthropicProvider(base_url=url, api_key="sk-0123456789"), claude("Hi.")
        case _:
            return OllamaProvider(base_url=url), ollama({"content": "Hi."})


@pytest.mark.parametrize("family", ["openai", "anthropic", "ollama"])
async def test_a_model_of_any_provider_answers(family: str) -> None:
    _, answer = at(family, "http://127.0.0.1:9")
    async with upstream(answer) as up:
        provider, _ = at(family, up.url)
        async with provider:
            result = await Agent(provider.model("any")).spawn("Hello?").result
    assert (result.exit_reason, result.text) == ("success", "Hi.")
    assert up.bodies[0]["model"] == "any"


def test_a_model_may_be_a_name_of_which_the_environment_knows_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    result = Agent("openai/any").run_sync("Hello?")
    assert result.exit_reason == "crashed"
    assert result.error.category == "network"


async def test_a_path_is_a_server_over_stdio() -> None:
    await lists_items(SERVER, LISTS[0])


async def test_a_command_is_a_server_over_stdio() -> None:
    await lists_items([sys.executable, str(SERVER)], LISTS[0])


async def test_an_address_that_ends_in_sse_is_a_server_over_sse() -> None:
    async with listening("sse") as url:
        await lists_items(url, LISTS[1])


async def test_any_other_address_is_a_server_over_streamable_http() -> None:
    async with listening("http") as url:
        await lists_items(url, LISTS[1])


async def test_an_agent_needs_no_server() -> None:
    async with openai_model(ADDS, text("4.")) as (up, model):
        result = await Agent(model, operations=[add]).spawn("2 + 2?").result
    assert (result.text, up.bodies[1]["messages"][-1]["content"]) == ("4.", "4")


async def test_fifty_steps_are_taken_unless_something_else_is_said() -> None:
    async with openai_model(ADDS) as (up, model):
        result = await Agent(model, operations=[add]).spawn("Go on and on.").result
    assert (result.exit_reason, result.steps, len(up.received)) == ("steps_exhausted", 50, 50)


@pytest.mark.parametrize(
    ("options", "word", "count"),
    [
        ({"stop_when": steps(3)}, "steps_exhausted", 3),
        ({"limits": RunLimits(max_steps=2)}, "steps_exhausted", 2),
        ({"stop_when": tool_called("math_add")}, "success", 1),
        ({"stop_when": [steps(4), lambda done: done.taken == 2]}, "success", 2),
    ],
)
async def test_a_stop_condition_ends_the_loop(options: Any, word: str, count: int) -> None:
    async with openai_model(ADDS) as (up, model):
        result = await Agent(model, operations=[add], **options).spawn("Go on.").result
    assert (result.exit_reason, result.steps, len(up.received)) == (word, count, count)


async def test_options_go_to_the_provider_as_the_model_the_agent_and_the_step_say() -> None:
    async with openai_model(text("Hi.")) as (up, model):
        agent = Agent(
            model.using(temperature=0.5, top_p=0.5, seed=1),
            options={"top_p": 0.9, "reasoning_effort": "low"},
            on_prepare_step=lambda _: StepChange(options={"seed": 7}),
        )
        await agent.spawn("Hello?").result
    sent = up.bodies[0]
    options = [sent[word] for word in ("temperature", "top_p", "reasoning_effort", "seed")]
    assert options == [0.5, 0.9, "low", 7]


async def test_an_option_that_the_provider_has_no_word_for_is_told_in_the_notices() -> None:
    async with (
        upstream(claude("Hi.")) as up,
        AnthropicProvider(base_url=up.url, api_key="sk-0123456789") as provider,
    ):
        result = await Agent(provider.model("any"), options={"temprature": 1}).spawn("Hello?").result
    assert result.notices == ("anthropic/any does not support 'temprature'; it is not sent",)


async def test_a_hook_before_each_step_sees_it_and_may_change_it() -> None:
    seen: list[tuple[int, list[str]]] = []

    async def prepare(step: StepContext) -> StepChange | None:
        seen.append((step.number, [tool.name for tool in step.tools]))
        return StepChange(model=Model(model.provider, "cheap"), tools=[]) if step.number == 2 else None

    async with openai_model(ADDS, text("4.")) as (up, model):
        await Agent(model, operations=[add], on_prepare_step=prepare).spawn("2 + 2?").result
    assert seen == [(1, ["math_add"]), (2, ["math_add"])]
    assert [sent["model"] for sent in up.bodies] == ["any", "cheap"]
    assert ["tools" in sent for sent in up.bodies] == [True, False]


@pytest.mark.parametrize(("options", "requests"), [({}, 1), ({"retries": 2}, 3)])
async def test_no_request_is_made_again_unless_that_is_wanted(options: Any, requests: int) -> None:
    busy = refusal(503, {"error": {"message": "busy"}}, retry_after_ms="1")
    async with openai_model(busy, busy, text("Hi.")) as (up, model):
        result = await Agent(model, **options).spawn("Hello?").result
    assert len(up.received) == requests
    assert result.exit_reason == ("success" if requests == 3 else "crashed")


async def test_servers_are_connected_by_a_call_and_let_go_by_another() -> None:
    async with openai_model(text("Hi.")) as (_, model):
        agent = Agent(model, mcp=[SERVER])
        with pytest.raises(Conflict, match="not connected"):
            agent.spawn("Hello?")
        for _ in range(2):  # what was let go may be connected again
            await agent.connect()
            await agent.connect()
            assert [status.state for status in agent.servers] == ["ready"]
            assert (await agent.spawn("Hello?").result).exit_reason == "success"
            await agent.cleanup()
            assert agent.overhead().names == []


async def test_letting_go_aborts_what_still_runs() -> None:
    endless = text("I", " think", endless=True)
    async with openai_model(endless) as (up, model):
        agent = Agent(model)
        run = agent.spawn("Hello?")
        async for event in run.events():
            if isinstance(event, e.TextDelta):
                break
        await agent.cleanup()
        assert run.result.done
        assert (await run.result).exit_reason == "aborted"
        async with asyncio.timeout(120):
            await up.left.wait()


async def test_overhead_lists_the_tools_of_servers_and_of_its_own() -> None:
    async with (
        openai_model(text("Hi.")) as (_, model),
        Agent(model, operations=[add], mcp=[SERVER], instructions="Be brief.") as agent,
    ):
        overhead = agent.overhead()
    assert {"math_add", "mcp_server_list_items", "mcp_server_create_item"} <= set(overhead.names)
    assert overhead.tokens == overhead.instructions + sum(tool.tokens for tool in overhead.tools) > 50
