"""Real SDKs on the Responses API: AI SDK 6 and 7, OpenAI's Agents SDK in JavaScript and Python.

Each asks, runs its own tool, and asks again with what its SDK makes of the conversation: whole items, or
references to them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool, set_tracing_disabled
from agents.exceptions import AgentsException
from agents.memory import OpenAIResponsesCompactionSession, SQLiteSession
from openai import AsyncOpenAI

from tests.clients.driver import player
from tests.effort import rows
from tests.gateway.upstream import Answer, Stage, document
from tests.responses.answers import FAMILIES, call, say, sent
from tests.wire.responses_streams import (
    CALLS,
    THOUGHT,
    call_events,
    ending,
    message,
    opening,
    reasoning_events,
    sse,
    text_events,
)

pytestmark = pytest.mark.timeout(300)
CLIENTS_FOLDER = Path(__file__).parent / "clients"
JAVASCRIPT = ("ai6", "ai7", "agents")
CLIENTS = (*JAVASCRIPT, "python")
OSLO = '{"city":"Oslo"}'
set_tracing_disabled(True)


@function_tool
def weather(city: str) -> str:
    """The weather."""
    return f"{city}: 3 degrees"


def drive(stage: Stage, client: str, *prompts: str, model: str, stream: bool) -> dict[str, Any]:
    """Hold a conversation; what each turn came to, and the errors."""
    task = {"client": client, "url": stage.url, "key": stage.key, "model": model, "prompts": prompts}
    if client == "python":
        return stage.do(drive_python(stage, prompts, model=model, stream=stream))
    report: dict[str, Any] = player("drive.mjs", folder=CLIENTS_FOLDER).play({**task, "stream": stream})
    return report


async def drive_python(stage: Stage, prompts: Sequence[str], *, model: str, stream: bool) -> dict[str, Any]:
    report: dict[str, Any] = {"turns": [], "errors": []}
    provider = OpenAIProvider(api_key=stage.key, base_url=f"{stage.url}/v1", use_responses=True)
    agent = Agent(name="helper", instructions="Be brief.", model=model, tools=[weather])
    config = RunConfig(model_provider=provider)
    messages: list[Any] = []
    try:
        for prompt in prompts:
            messages.append({"role": "user", "content": prompt})
            if stream:
                result: Any = Runner.run_streamed(agent, messages, run_config=config, max_turns=5)
                async for _ in result.stream_events():
                    pass
            else:
                result = await Runner.run(agent, messages, run_config=config, max_turns=5)
            messages = result.to_input_list()
            calls = [item.raw_item for item in result.new_items if item.type == "tool_call_item"]
            report["turns"].append(
                {
                    "text": result.final_output,
                    "steps": len(result.raw_responses),
                    "usage": {"inputTokens": result.raw_responses[-1].usage.input_tokens},
                    "calls": [[it.name, it.arguments, it.type != "function_call"] for it in calls],
                }
            )
    except (AgentsException, Exception) as error:  # noqa: BLE001 - whatever a client raises is what is tested
        report["errors"].append(repr(error))
    return report


def arguments_of(called: Sequence[Any]) -> Mapping[str, Any]:
    value = called[1]
    parsed: Mapping[str, Any] = json.loads(value) if isinstance(value, str) else value
    return parsed


TURNS = [(client, family, stream) for client in CLIENTS for family in FAMILIES for stream in (True, False)]


@pytest.mark.parametrize(("client", "family", "stream"), rows(TURNS, quick=5))
def test_a_client_runs_its_tool_and_goes_on_with_what_was_before(
    stage: Stage, client: str, family: str, stream: bool
) -> None:
    stage.upstream.play(
        call(family, "weather", OSLO), say(family, "It is 3 degrees."), say(family, "You are welcome.")
    )
    report = drive(stage, client, "Is it cold in Oslo?", "Thanks!", model=f"{family}/house", stream=stream)
    assert report["errors"] == []
    first, second = report["turns"]
    assert (first["text"], first["steps"]) == ("It is 3 degrees.", 2)
    assert (second["text"], second["steps"], second["calls"]) == ("You are welcome.", 1, [])
    assert [(it[0], arguments_of(it), it[2]) for it in first["calls"]] == [
        ("weather", {"city": "Oslo"}, False)
    ]
    assert second["usage"]["inputTokens"] == 36
    assert len(stage.upstream.requests) == 3
    for words in ("Is it cold in Oslo?", OSLO, "Oslo: 3 degrees", "It is 3 degrees.", "Thanks!"):
        assert words in sent(stage.upstream)


REASONED = sse(
    *opening(),
    *reasoning_events(0, THOUGHT),
    *call_events(1, CALLS[0], OSLO),
    ending(THOUGHT, CALLS[0]),
)


@pytest.mark.parametrize("client", CLIENTS)
def test_encrypted_reasoning_comes_back_to_the_provider_also_by_reference(stage: Stage, client: str) -> None:
    stage.upstream.play(Answer(body=REASONED), say("res", "Cold."))
    report = drive(stage, client, "Is it cold in Oslo?", model="res/gpt-5.1", stream=True)
    assert report["errors"] == []
    assert report["turns"][0]["text"] == "Cold."
    items = json.loads(stage.upstream.requests[-1].body)["input"]
    assert [item["encrypted_content"] for item in items if item.get("type") == "reasoning"] == ["gAAA+/="]


ON = text_events(0, message("On"), "On")
BROKEN: dict[str, tuple[Answer, int]] = {
    "401": (document({"error": {"message": "No."}}, 401), 1),
    "429": (document({"error": {"message": "Slow."}}, 429), 3),
    "500": (document({"error": {"message": "Oh."}}, 500), 3),
    "cut": (Answer(body=sse(*opening(), *ON[:-1])), 1),
    "failed": (
        Answer(
            body=sse(*opening(), ending(status="failed", error={"code": "server_error", "message": "Oh."}))
        ),
        1,
    ),
}
FAILURES = [(client, name, stream) for client in CLIENTS for name in BROKEN for stream in (True, False)]


@pytest.mark.parametrize(("client", "name", "stream"), rows(FAILURES, quick=7))
def test_a_failure_reaches_the_client_once_and_its_retries_ask_no_provider_again(
    stage: Stage, client: str, name: str, stream: bool
) -> None:
    answer, requests = BROKEN[name]
    stage.upstream.play(answer)
    report = drive(stage, client, "Hi", model="res-again/house", stream=stream)
    assert report["errors"]
    assert len(stage.upstream.requests) == requests


@pytest.mark.parametrize("mode", ["input", "previous_response_id"])
def test_a_session_of_the_agents_sdk_is_compacted_by_the_hub(
    stage: Stage, tmp_path: Path, mode: Literal["input", "previous_response_id"]
) -> None:
    async def converse() -> str:
        api = AsyncOpenAI(base_url=f"{stage.url}/v1", api_key=stage.key)
        session = OpenAIResponsesCompactionSession(
            "s",
            SQLiteSession("s", tmp_path / "sessions"),
            client=api,
            model="oai/gpt-4.1",
            compaction_mode=mode,
            should_trigger_compaction=lambda context: len(context["session_items"]) == 2,
        )
        config = RunConfig(model_provider=OpenAIProvider(openai_client=api, use_responses=True))
        agent = Agent(name="helper", model="oai/gpt-4.1")
        await Runner.run(agent, "Is it cold in Oslo?", session=session, run_config=config)
        result = await Runner.run(agent, "Still?", session=session, run_config=config)
        await api.close()
        return str(result.final_output)

    stage.upstream.play(say("oai", "It is 3 degrees."), say("oai", "Oslo: cold."), say("oai", "Still cold."))
    assert stage.do(converse()) == "Still cold."
    assert len(stage.upstream.requests) == 3
    assert "Write a summary" in sent(stage.upstream, 1)
    assert all(words in sent(stage.upstream) for words in ("Is it cold in Oslo?", "Oslo: cold.", "Still?"))
    assert "It is 3 degrees." not in sent(stage.upstream)
