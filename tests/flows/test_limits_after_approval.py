"""Limits and costs of an answer count across its waits for approval."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Served, ask, frames_in, serving, text_of, usage

PRICES = {"sim/*": {"input": 1, "output": 10}}
ASKED = {"name": "user_question", "input": {"text": "Go on?"}}
STEPS = [{"tools": [ASKED], "usage": usage(100_000, 1_000)}] * 5 + [
    {"text": "Done.", "usage": usage(100_000, 1_000)}
]


async def played(hub: Served) -> list[Mapping[str, Any]]:
    """The frames of all runs of one answer: as long as something is asked, it is answered in the chat."""
    frames = await hub.chat()
    all_frames: list[Mapping[str, Any]] = list(frames)
    while frames[-1]["finishReason"] == "tool-calls":
        [*_, answer] = await hub.messages()
        call = next(part for part in reversed(answer["parts"]) if part["type"] == "tool-user_question")
        part = {**call, "state": "output-available", "output": "yes"}
        message = {**answer, "parts": [*answer["parts"][:-2], part, answer["parts"][-1]]}
        response = await hub.http.post("/api/chat", json={**ask("hi"), "messages": [message]})
        frames = frames_in(response.text)
        all_frames += frames
    return all_frames


@pytest.mark.parametrize(
    ("limits", "steps", "answers", "text"),
    [
        ({"max_usd": 0.3}, 3, 2, "Stopped: the budget of this run is spent."),
        ({"max_calls": 2}, 6, 2, "Done."),
        ({"stop_when": [{"cost": 0.3}]}, 3, 3, "Stopped: it cost 0.3 US dollars."),
        ({"stop_when": [{"tokens": 200_000}]}, 2, 2, "Stopped: it used 200,000 tokens."),
        ({"max_steps": 4}, 4, 4, "Stopped after 4 steps, the most that this agent may take in one answer."),
    ],
)
async def test_limits_hold_for_an_answer_that_had_to_wait(
    limits: dict[str, Any], steps: int, answers: int, text: str, tmp_path: Path
) -> None:
    agents = {"default": {"operations": ["user.question"], **limits}}
    async with serving(tmp_path, STEPS, play="turns", agents=agents, prices=PRICES) as hub:
        frames = await played(hub)
        [*_, answer] = await hub.messages()
    assert text_of([dict(frame) for frame in frames]).endswith(text)
    assert answer["metadata"]["steps"] == steps
    assert answer["metadata"]["cost"] == pytest.approx(0.11 * steps)
    questions = [part["state"] for part in answer["parts"] if part["type"] == "tool-user_question"]
    assert questions.count("output-available") == answers
