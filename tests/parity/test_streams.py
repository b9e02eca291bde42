"""Streams of both formats: text, thinking, tool calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman import Agent, Model, OllamaProvider, OpenAIProvider, operation
from dragoman import events as e
from dragoman.providers.provider import close_provider
from tests.parity.upstream import Answer, Upstream, ollama, openai, openai_call, openai_model, text, upstream


@operation(namespace="weather", effect="read")
def look(location: str, days: int = 1) -> str:
    """Look up the weather."""
    return f"{days} days of sun in {location}"


def model_at(up: Upstream, family: str) -> Model:
    if family == "openai":
        return OpenAIProvider(base_url=f"{up.url}/v1", api_key="sk-0123456789").model("any")
    return OllamaProvider(base_url=up.url).model("any")


def saying(family: str, *pieces: str, gate: asyncio.Event) -> Answer:
    if family == "openai":
        return text(*pieces, gate=gate)
    return ollama(*({"content": piece} for piece in pieces), {}, gate=gate)


@pytest.mark.parametrize("family", ["openai", "ollama"])
async def test_text_is_heard_while_the_answer_is_still_being_written(family: str) -> None:
    gate = asyncio.Event()
    async with upstream(saying(family, "H", "i", gate=gate)) as up:
        model = model_at(up, family)
        async with Agent(model) as agent:
            heard = []
            async for event in agent.spawn("Hello?").events():
                if isinstance(event, e.TextDelta):
                    heard.append(event.delta)
                    if "".join(heard) == "Hi":  # the server has not said its last word yet
                        gate.set()
        await close_provider(model.provider)
    assert "".join(heard) == "Hi"


async def test_openai_is_asked_at_chat_completions_for_a_stream() -> None:
    async with openai_model(text("Hi.")) as (up, model):
        await Agent(model).spawn("Hello?").result
    assert up.received[0].line == "POST /v1/chat/completions HTTP/1.1"
    assert up.bodies[0]["stream"] is True


async def test_ollama_is_asked_by_its_own_api_with_its_own_options() -> None:
    async with upstream(ollama({"content": "Hi."})) as up, OllamaProvider(base_url=up.url) as provider:
        model = provider.model("qwen3", num_ctx=8192, think=True, temperature=0)
        result = await Agent(model).spawn("Hello?", system="Be brief.").result
    assert up.received[0].line == "POST /api/chat HTTP/1.1"
    [body] = up.bodies
    assert (body["options"], body["think"]) == ({"num_ctx": 8192, "temperature": 0}, True)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (result.usage.input_tokens, result.usage.output_tokens) == (7, 3)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(ollama({"thinking": "Two "}, {"thinking": "and two."}, {"content": "4"}), id="ollama"),
        pytest.param(
            openai({"reasoning_content": "Two "}, {"reasoning_content": "and two."}, {"content": "4"}),
            id="openai",
        ),
        pytest.param(ollama({"content": "<think>Two "}, {"content": "and two.</think>4"}), id="tags"),
    ],
)
async def test_thinking_is_heard_apart_from_the_text(answer: Answer) -> None:
    async with upstream(answer) as up:
        model = model_at(up, "ollama" if answer.kind.endswith("ndjson") else "openai")
        async with model.provider as _:  # type: ignore[attr-defined]
            run = Agent(model).spawn("2 + 2?")
            events: list[Any] = [event async for event in run.events()]
            result = await run.result
    thought = "".join(event.delta for event in events if isinstance(event, e.ReasoningDelta))
    assert (thought, result.text) == ("Two and two.", "4")
    words = [event.type for event in events]
    assert words.index("reasoning-end") < words.index("text-start")


async def test_a_tool_call_in_many_fragments_is_one_call() -> None:
    fragments = openai_call("weather_look", '{"loc', "ation", '":"Ro', 'me","da', 'ys":', "2}")
    gate = asyncio.Event()
    answer = openai(*fragments, finish="tool_calls", gate=gate, gate_at=3)
    events: list[Any] = []
    async with openai_model(answer, text("Sun.")) as (up, model):
        async for event in Agent(model, operations=[look]).spawn("How is Rome?").events():
            events.append(event)
            if isinstance(event, e.ToolInputDelta):  # of the first ones: the server holds the rest back
                gate.set()
    [call] = [event for event in events if isinstance(event, e.ToolInputAvailable)]
    assert call.input == {"location": "Rome", "days": 2}
    written = [event.input_text_delta for event in events if isinstance(event, e.ToolInputDelta)]
    assert "".join(written) == '{"location":"Rome","days":2}'
    assert len(written) > 1
    assert up.bodies[1]["messages"][-1]["content"] == "2 days of sun in Rome"


async def test_two_tool_calls_whose_fragments_alternate_stay_two() -> None:
    one = openai_call("weather_look", '{"location":', '"Rome"}', id="a")
    two = openai_call("weather_look", '{"location":', '"Oslo"}', id="b", index=1)
    mixed = [delta for pair in zip(one, two, strict=True) for delta in pair]
    async with openai_model(openai(*mixed, finish="tool_calls"), text("Sun.")) as (up, model):
        await Agent(model, operations=[look]).spawn("How are Rome and Oslo?").result
    outputs_by_id = {each["tool_call_id"]: each["content"] for each in up.bodies[1]["messages"][-2:]}
    assert outputs_by_id == {"a": "1 days of sun in Rome", "b": "1 days of sun in Oslo"}


@pytest.mark.parametrize("at", [0, 1])
async def test_ollamas_whole_calls_are_run_whichever_line_they_stand_on(at: int) -> None:
    calls = {"tool_calls": [{"function": {"name": "weather_look", "arguments": {"location": "Rome"}}}]}
    lines: list[dict[str, Any]] = [{}, {}]
    lines[at] = calls
    async with (
        upstream(ollama(*lines), ollama({"content": "Sun."})) as up,
        OllamaProvider(base_url=up.url) as provider,
    ):
        result = await Agent(provider.model("any"), operations=[look]).spawn("How is Rome?").result
    assert (result.text, result.tool_calls.total) == ("Sun.", 1)
    *_, call_message, output_message = up.bodies[1]["messages"]
    assert call_message["tool_calls"][0]["function"] == {
        "name": "weather_look",
        "arguments": {"location": "Rome"},
    }
    assert (output_message["role"], output_message["content"]) == ("tool", "1 days of sun in Rome")
