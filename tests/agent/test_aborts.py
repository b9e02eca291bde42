"""Aborts at any moment: the provider's socket closes, no task is left, the history can be sent again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import msgspec
import pytest

from dragoman.agent.agent import Agent
from dragoman.agent.result import Result
from dragoman.agent.run import Run
from dragoman.events import Usage
from dragoman.fold import Fold
from dragoman.messages import FINAL_STATES, Message, ReasoningPart, TextPart, ToolPart, decode, encode
from dragoman.model_request import ModelRequest
from dragoman.providers.anthropic import AnthropicProvider
from dragoman.providers.model import Model
from dragoman.providers.ollama import OllamaProvider
from dragoman.providers.openai import OpenAIProvider
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.scripted import ScriptedCall, Step
from tests.agent.scripted import ASK, add, calling, fail, scripted, send, wait
from tests.effort import rounds
from tests.loop_clock import LoopClock
from tests.providers.servers import Peer, chunk, serving
from tests.waiting import until
from tests.wire.openai_streams import chunk as said
from tests.wire.openai_streams import sse

ABORTS = rounds(quick=200, thorough=500)
SLOW = 0.0005  # seconds between deltas
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
SCRIPT = [
    Step(
        reasoning="two and two",
        text="Let me see what that is.",
        tools=[
            ScriptedCall("math_add", {"a": 2, "b": 2}),
            ScriptedCall("lab_fail", {"why": "no"}),
            ScriptedCall("nothing", {}),
            ScriptedCall("math_add", '{"a": 2'),
        ],
        delay=SLOW,
    ),
    Step(text="And again.", tools=[ScriptedCall("math_add", {"a": 4, "b": 4})], delay=SLOW),
    Step(text="It is eight.", tools=[ScriptedCall("lab_wait", {})], delay=SLOW),
]
LANGUAGES: Sequence[RemoteProvider] = [
    OpenAIProvider(base_url="http://127.0.0.1:9/v1", api_key="k"),
    AnthropicProvider(base_url="http://127.0.0.1:9", api_key="k"),
    OllamaProvider(base_url="http://127.0.0.1:9"),
]


def check_valid(messages: Sequence[Message]) -> None:
    """Every block is closed, every call answered; it folds, and each provider can be sent it."""
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolPart):
                assert part.state in FINAL_STATES, part
                assert not part.preliminary
            if isinstance(part, TextPart | ReasoningPart):
                assert part.state != "streaming"
        assert decode(encode(message)) == message
        Fold(message)
    go_on = (*messages, Message("u2", "user", (TextPart("Go on."),)))
    request = ModelRequest(model="any", messages=go_on)
    for provider in LANGUAGES:
        assert list(provider.check(request)) == []
        body = msgspec.json.decode(provider._adapter.encode(request, drop=()))
        check_pairs(body["messages"])


def check_pairs(sent: Sequence[dict[str, object]]) -> None:
    """Each tool call is followed by its result, by whatever name a provider calls these."""
    sent_json = msgspec.json.encode(sent).decode()
    calls = sent_json.count('"type":"tool_use"') + sent_json.count('"function":{')
    results = sent_json.count('"type":"tool_result"') + sent_json.count('"role":"tool"')
    assert calls == results, sent_json


def tasks() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def aborted(run: Run, after: float) -> Result:
    """The result of a run that is aborted after so many seconds."""
    await asyncio.sleep(after)
    run.abort()
    async with asyncio.timeout(120):
        return await run.result


@pytest.mark.promise("abort-leaves-a-valid-conversation")
async def test_a_run_that_is_aborted_at_any_moment_leaves_a_valid_conversation_and_no_task() -> None:
    chance = random.Random(5)
    words: set[str] = set()
    for _ in range(ABORTS):
        agent = Agent(scripted(*SCRIPT), operations=[add, fail, send, wait])
        before = tasks()
        run = agent.spawn(ASK)
        result = await aborted(run, chance.choice((0, chance.uniform(0, 0.06))))
        await run.wait_closed()
        words.add(result.exit_reason)
        check_valid(result.messages)
        assert tasks() <= before
        assert [event.type async for event in run.events()][-1] == "finish"
    assert words == {"aborted"}


async def talk(peer: Peer) -> None:
    """Answer without an end, until the client is gone."""
    await peer.request()
    await peer.send(HEAD)
    leaving = asyncio.ensure_future(peer.gone())
    try:
        while not leaving.done():
            await peer.send(chunk(sse(said({"content": "word "}), done=False)))
            await asyncio.wait([leaving], timeout=0.001)
    finally:
        leaving.cancel()


async def test_the_providers_socket_is_closed_at_once() -> None:
    chance, clock = random.Random(7), LoopClock()
    async with serving(talk) as server:
        agent = Agent(OpenAIProvider(base_url=f"{server.url}/v1").model("any"))
        for number in range(100):
            before, run = server.connections, agent.spawn(ASK)
            if number % 2:  # every other one is aborted once it is connected
                await until(lambda before=before: server.connections > before)  # type: ignore[misc]
            for _ in range(chance.randint(0, 40)):
                await asyncio.sleep(0)
            with clock.stopped():  # nothing waits for a time
                run.abort()
                await server.wait_closed(server.connections)
                result = await run.result
            assert result.exit_reason == "aborted"
            check_valid(result.messages)
        assert server.connections >= 50


async def test_calls_under_way_are_cancelled_and_their_outputs_say_why() -> None:
    agent = Agent(scripted(calling(ScriptedCall("lab_wait", {}), text="So")), operations=[wait])
    run = agent.spawn(ASK)
    async for event in run.events():
        if event.type == "tool-output-available":  # it says that it waits
            break
    run.abort("the user has left")
    result = await run.result
    assert (result.exit_reason, result.stopped_by, result.text) == ("aborted", "the user has left", "So")
    [call] = [part for part in result.messages[-1].parts if isinstance(part, ToolPart)]
    assert (call.state, call.error_text) == ("output-error", "the user has left")


async def test_an_abort_after_the_end_changes_nothing() -> None:
    run = Agent(scripted("hi")).spawn("hi")
    result = await run.result
    run.abort()
    assert await run.result is result


async def test_the_usage_of_steps_before_an_abort_is_kept() -> None:
    used = Usage(input_tokens=10, output_tokens=2)
    agent = Agent(scripted(calling(ScriptedCall("lab_wait", {}), usage=used)), operations=[wait])
    run = agent.spawn(ASK)
    async for event in run.events():
        if event.type == "tool-output-available":
            break
    run.abort()
    result = await run.result
    assert (result.usage.input_tokens, result.usage.output_tokens) == (10, 2)
    assert not result.usage.estimated


def test_a_program_that_ends_while_a_run_is_under_way_still_closes_it() -> None:
    runs: list[Run] = []

    async def leave() -> None:
        runs.append(Agent(scripted(calling(ScriptedCall("lab_wait", {}))), operations=[wait]).spawn(ASK))

    asyncio.run(leave())
    assert runs[0].result.done
    check_valid([runs[0].message])


@pytest.mark.parametrize("model", [Model(LANGUAGES[0], "any")])
async def test_a_provider_that_is_not_there_is_a_crash(model: Model) -> None:
    result = await Agent(model).spawn("hi").result
    assert result.exit_reason == "crashed"
    assert (result.error.category, result.error.transient) == ("network", True)
