"""The `ui` and `hub` stream dialects at the gateway's endpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import pytest

from tests.clients.driver import violations_in
from tests.gateway.recordings import ANTHROPIC, OLLAMA, OPENAI, Said, decoded, known_ids
from tests.gateway.upstream import LINES, Answer, Stage, document
from tests.serving import Frames, frames_in
from tests.wire.openai_streams import chunk, sse

HEADERS = {"ui": "x-vercel-ai-ui-message-stream", "hub": "x-dragoman-stream"}
ASK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 99}
DOORS = ("/v1/chat/completions", "/v1/messages")
ANSWERS = {
    "oai/m": [
        OPENAI[name] for name in ("openai_text", "openai_calls", "deepseek", "openrouter_image", "kimi")
    ],
    "ant/m": [ANTHROPIC[name] for name in ("thinking", "calls", "search", "refusal")],
    "oll/m": [OLLAMA[name] for name in ("calls", "thinking", "cut")],
}
CASES = [(model, number) for model, answers in ANSWERS.items() for number in range(len(answers))]


@pytest.fixture(scope="module")
def http(stage: Stage) -> Iterator[httpx2.Client]:
    headers = {"authorization": f"Bearer {stage.key}"}
    with httpx2.Client(base_url=stage.url, headers=headers, trust_env=False, timeout=60) as client:
        yield client


def answer(model: str, raw: bytes) -> Answer:
    return Answer(body=raw, headers=LINES, seed=2) if model == "oll/m" else Answer(body=raw, seed=2)


def collect(frames: Frames) -> Said:
    """What the frames say, in either dialect."""
    last = frames[-1]
    assert last["type"] == "finish"
    ends = next(frame for frame in frames if frame["type"] in ("finish-step", "step-finish", "finish"))
    usage = last.get("usage") or (last.get("messageMetadata") or {}).get("usage") or {}
    words = [(frame["type"], frame.get("delta", "")) for frame in frames]
    return Said(
        text="".join(delta for kind, delta in words if kind == "text-delta"),
        reasoning="".join(delta for kind, delta in words if kind == "reasoning-delta"),
        calls=[
            (frame["toolCallId"], frame["toolName"], frame["input"])
            for frame in frames
            if frame["type"] in ("tool-input-available", "tool-input-error")
            and not frame.get("providerExecuted")
        ],
        finish=last.get("finishReason") or ends.get("finishReason"),
        tokens=(
            usage.get("promptTokens", usage.get("inputTokens")),
            usage.get("completionTokens", usage.get("outputTokens")),
        ),
    )


@pytest.mark.parametrize("dialect", ["ui", "hub"])
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("model", "number"), CASES)
def test_frames_say_what_the_upstream_said(
    stage: Stage, http: httpx2.Client, door: str, model: str, number: int, dialect: str
) -> None:
    raw = ANSWERS[model][number]
    stage.upstream.play(answer(model, raw))
    response = http.post(door, params={"dialect": dialect}, json={"model": model, **ASK})
    assert (response.status_code, HEADERS[dialect] in response.headers) == (200, True)
    frames = frames_in(response.text)
    want = decoded(model.partition("/")[0], raw)
    assert isinstance(want, Said)
    reply = collect(frames)
    if dialect == "ui":
        reply = msgspec.structs.replace(
            reply, tokens=want.tokens
        )  # the AI SDK's finish has no place for them
    assert known_ids(reply, raw) == known_ids(want, raw)
    assert [frame["type"] for frame in frames[:2]] == [
        "start",
        "start-step" if dialect == "ui" else "step-start",
    ]


def test_the_ai_sdk_takes_every_frame(stage: Stage, http: httpx2.Client) -> None:
    bodies: list[dict[str, Any]] = []
    searched = ("ant/m", 2)  # the judge knows no results of tools that a provider runs by itself
    for model, number in CASES:
        if (model, number) == searched:
            continue
        stage.upstream.play(answer(model, ANSWERS[model][number]))
        response = http.post(DOORS[0], params={"dialect": "ui"}, json={"model": model, **ASK})
        bodies.append({"body": response.text, "headers": dict(response.headers)})
    for broken in (OPENAI["gpustack_error"], OPENAI["swallowed"]):
        stage.upstream.play(Answer(body=broken))
        response = http.post(DOORS[0], params={"dialect": "ui"}, json={"model": "oai/m", **ASK})
        bodies.append({"body": response.text, "headers": dict(response.headers)})
    assert violations_in(bodies) == [[] for _ in bodies]


@pytest.mark.parametrize("model", ["oai/m", "ant/m", "oll/m"])
def test_several_answers_are_refused_since_the_dialects_show_one(
    stage: Stage, http: httpx2.Client, model: str
) -> None:
    stage.upstream.play(answer("oai/m", OPENAI["openai_two_choices"]))
    for dialect in HEADERS:
        response = http.post(DOORS[0], params={"dialect": dialect}, json={"model": model, "n": 2, **ASK})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
    assert not stage.upstream.requests


@pytest.mark.parametrize("accept", ["text/event-stream; dialect=hub", 'text/event-stream;dialect="hub"'])
@pytest.mark.parametrize("door", DOORS)
def test_a_dialect_may_be_asked_for_in_a_header(
    stage: Stage, http: httpx2.Client, door: str, accept: str
) -> None:
    stage.upstream.play(Answer(body=OPENAI["openai_text"]))
    response = http.post(door, headers={"accept": accept}, json={"model": "oai/m", **ASK})
    types = [frame["type"] for frame in frames_in(response.text)]
    assert types[:3] == ["start", "step-start", "text-start"]
    assert types[-2:] == ["step-finish", "finish"]


@pytest.mark.parametrize("dialect", ["ui", "hub"])
def test_an_answer_that_breaks_off_ends_with_an_error_frame(
    stage: Stage, http: httpx2.Client, dialect: str
) -> None:
    stage.upstream.play(Answer(body=sse(chunk({"content": "Hel"}), done=False)))
    response = http.post(DOORS[0], params={"dialect": dialect}, json={"model": "oai/m", **ASK})
    frames = frames_in(response.text)
    [error] = [frame for frame in frames if frame["type"] == "error"]
    assert "without a finish reason" in error["errorText"]
    assert [frame["type"] for frame in frames].index("text-end") < frames.index(error)
    assert not any(frame.get("finishReason") == "stop" for frame in frames)


@pytest.mark.parametrize("door", DOORS)
def test_an_error_before_the_first_frame_has_the_endpoints_own_format(
    stage: Stage, http: httpx2.Client, door: str
) -> None:
    stage.upstream.play(document({"error": {"message": "No", "type": "x", "code": None}}, 429))
    response = http.post(door, params={"dialect": "ui"}, json={"model": "oai/m", **ASK})
    assert response.status_code == 429
    assert response.json()["error"]["message"] == "No"
    assert response.json().get("type") == ("error" if door == "/v1/messages" else None)


def test_a_dialect_that_there_is_not_is_a_bad_request(http: httpx2.Client) -> None:
    response = http.post(DOORS[0], params={"dialect": "klingon"}, json={"model": "oai/m", **ASK})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "dialect")


def test_what_an_answer_costs_is_said_at_its_end(stage: Stage, http: httpx2.Client) -> None:
    stage.upstream.play(Answer(body=OPENAI["openai_text"]))
    response = http.post(DOORS[0], params={"dialect": "hub"}, json={"model": "oai/m", **ASK})
    usage = frames_in(response.text)[-1]["usage"]
    cost = (usage["promptTokens"] + 2 * usage["completionTokens"]) / 1e6
    text = response.text.rstrip().rpartition(": x-dragoman-cost ")[2]
    assert 0 < float(text) <= cost
