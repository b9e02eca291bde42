"""`ui_stream`: library runs as UI message streams."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest
from starlette.responses import StreamingResponse

from dragoman import Agent, ProviderError, Run, RunLimits, ScriptedModel, Tool, operation, ui_stream
from dragoman import events as e
from dragoman.providers.scripted import ScriptedCall, Step
from tests.agent.scripted import ASK, PRICES, USED, add, calling, fail, send, wait
from tests.clients.driver import violations_in

SECRETS = ("cost", "key", "price", "costUsd")


def helper(*script: Any) -> Any:
    return Agent(ScriptedModel(list(script)), operations=[add], prices=PRICES, name="helper").as_operation(
        "Helps."
    )


def agent(*script: Any, **options: Any) -> Agent[Any]:
    options.setdefault("operations", [add, fail])
    return Agent(ScriptedModel(list(script)), prices=PRICES, **options)


TASK = ScriptedCall("agents_helper", {"prompt": "Add."})
UNSAFE = ScriptedCall("math_add", {"a": 1, "b": 2, "__proto__": {"x": 1}})
SCENES: dict[str, Any] = {
    "text": lambda: agent(Step(text="Hello.", usage=USED)),
    "reasoning": lambda: agent(Step(reasoning="Hm.", text="Hello.", usage=USED)),
    "calls": lambda: agent(calling(text="Let me", usage=USED), "4"),
    "failed call": lambda: agent(calling(ScriptedCall("lab_fail", {"why": "no"})), "So."),
    "unknown tool": lambda: agent(calling(ScriptedCall("nothing", {})), "So."),
    "invalid arguments": lambda: agent(calling(ScriptedCall("math_add", {"a": "x"}), UNSAFE), "So."),
    "batch": lambda: agent(
        calling(ScriptedCall("hub_call", {"calls": [{"tool": "math.add", "input": {"a": 1, "b": 2}}]})),
        "3",
        meta_tools=True,
    ),
    "sub-agent": lambda: agent(calling(TASK, usage=USED), "4", operations=[helper(calling(usage=USED), "4")]),
    "structured": lambda: agent('{"value": 4}', output=int),
    "error": lambda: agent(ProviderError("down", category="overloaded", transient=True)),
    "error after text": lambda: agent(calling(usage=USED), ProviderError("down", category="api_error")),
    "out of budget": lambda: agent("4", limits=RunLimits(max_budget_usd=0.0001)),
    "out of steps": lambda: agent(calling(), calling(), limits=RunLimits(max_steps=1)),
}


async def body_of(run: Run[Any], *, sdk: Any = 6) -> str:
    return b"".join([frames async for frames in ui_stream(run, sdk=sdk)]).decode()


def frames_of(body: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def names_in(value: Any) -> set[str]:
    """All names of fields of the hub's own in a frame; not those of inputs and outputs."""
    if isinstance(value, list):
        return set().union(*map(names_in, value))
    if not isinstance(value, dict):
        return set()
    inner = [names_in(each) for name, each in value.items() if name not in ("input", "output")]
    return set(value).union(*inner)


async def stopped_body() -> str:
    running = Agent(ScriptedModel([("lab_wait", {})]), operations=[wait]).spawn(ASK)
    async for event in running.events():
        if event.type == "tool-output-available":
            running.abort("enough")
    return await body_of(running)


async def denied_body(sdk: int) -> str:
    """The stream of a run whose approval is declined, as a reader gets it that comes later."""
    asking = Agent(ScriptedModel([("mail_send", {"to": "ann"}), "So."]), operations=[send]).spawn(ASK)
    async for event in asking.events():
        if isinstance(event, e.ToolApprovalRequest):
            await asking.deny(event.approval_id, reason="no")
    return await body_of(asking, sdk=sdk)


async def test_every_frame_follows_the_schemas_of_the_ai_sdk() -> None:
    headers = {**ui_stream(agent("x").spawn(ASK)).headers}
    cases: list[dict[str, Any]] = []
    for sdk in (6, 7):
        bodies = [await body_of(make().spawn(ASK), sdk=sdk) for make in SCENES.values()]
        bodies += [await stopped_body(), await denied_body(sdk)]
        cases += [{"body": body, "headers": headers, "sdk7": sdk == 7} for body in bodies]
    names = [*SCENES, "stopped", "denied"] * 2
    verdicts = zip(names, violations_in(cases), strict=True)
    assert {name: wrong for name, wrong in verdicts if wrong} == {}


@pytest.mark.parametrize("scene", SCENES)
async def test_frames_hold_no_key_names_and_no_costs(scene: str) -> None:
    run = SCENES[scene]().spawn(ASK)
    frames = frames_of(await body_of(run))
    assert frames[0]["type"] == "start"
    assert frames[-1]["type"] == "finish"
    assert names_in(frames).isdisjoint(SECRETS)
    result = await run.result
    if result.cost is not None:
        assert str(result.cost) not in json.dumps(frames)


async def test_usage_and_model_stay_in_the_metadata() -> None:
    frames = frames_of(await body_of(agent(Step(text="Hello.", usage=USED)).spawn(ASK)))
    assert frames[-1]["messageMetadata"]["usage"]["inputTokens"] == 100
    assert frames[-1]["messageMetadata"]["steps"] == 1


async def test_two_readers_one_late_get_the_same_frames() -> None:
    run = agent(calling(), "4").spawn(ASK)
    first = await body_of(run)
    assert frames_of(await body_of(run)) == frames_of(first)


@pytest.mark.parametrize("detached", [False, True])
async def test_closing_the_stream_aborts_the_run_unless_it_is_detached(detached: bool) -> None:
    opened = asyncio.Event()

    @operation
    async def hang() -> str:
        """Wait."""
        await opened.wait()
        return "done"

    run = Agent(ScriptedModel([("tools_hang", {}), "So."]), operations=[hang]).spawn(ASK, detached=detached)
    stream = aiter(ui_stream(run))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator, as a web server finds out
    opened.set()
    assert (await run.result).exit_reason == ("success" if detached else "aborted")


async def test_a_client_that_leaves_a_starlette_response_aborts_the_run() -> None:
    run = Agent(ScriptedModel([("lab_wait", {})]), operations=[wait]).spawn(ASK)
    stream = ui_stream(run)
    began = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await began.wait()
        return {"type": "http.disconnect"}

    async def send_message(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert (b"x-vercel-ai-ui-message-stream", b"v1") in message["headers"]
        elif b"tool-input-available" in message["body"]:
            began.set()

    response = StreamingResponse(stream, headers=dict(stream.headers))
    await response({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send_message)
    del response
    gc.collect()
    assert (await run.result).exit_reason == "aborted"


async def test_a_message_of_a_browser_is_a_conversation() -> None:
    sent = [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}]
    tool = Tool("ask_user", "Asks.", {"type": "object"})
    frames = frames_of(await body_of(agent("Hello.", client_tools=[tool]).spawn(sent)))
    assert "".join(frame.get("delta", "") for frame in frames) == "Hello."
