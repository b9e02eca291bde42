"""`stop_when` of a served hub's agents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import parse_config
from dragoman.errors import ConfigError
from tests.serving import Served, serving, text_of, types, usage

HERE = Path(__file__).parent
BENCH, OWN = str(HERE / "slow_operations.py"), HERE / "configured_functions.py"
PRICES = {"sim/*": {"input": 1, "output": 10}}


def step(name: str = "time_now", text: str = "let me see", **input: Any) -> dict[str, Any]:
    """A step of 100 tokens in and 10 out, 0.0002 dollars, with a call."""
    return {"text": text, "tools": [{"name": name, "input": input}], "usage": usage(100, 10)}


def batch(*tools: str) -> dict[str, Any]:
    calls = [{"tool": tool, "input": {"name": "x"} if tool == "lab.fail" else {}} for tool in tools]
    return step("hub_call", calls=calls)


LAST = {"text": "Done.", "usage": usage(100, 10)}
TURNS = [step(), step(), step(), step(), LAST]


async def ended(
    hub: Served, *, session: str = "s"
) -> tuple[int, str, Mapping[str, Any], list[dict[str, Any]]]:
    """The steps that the model took, what was said last, and the metadata of the answer."""
    frames = await hub.chat(session=session)
    metadata = frames[-1]["messageMetadata"]
    last = frames[len(frames) - [frame["type"] for frame in frames][::-1].index("start-step") :]
    return metadata["steps"], text_of(last), metadata, frames


@pytest.mark.parametrize(
    ("stops", "steps", "text"),
    [
        ([{"tool": "time.now"}], 1, "Stopped: time.now was called."),
        ([{"text": "LET"}, {"text": "let me"}], 1, "Stopped: the model said 'let me'."),
        ([{"matches": r"\bsee$"}], 1, "Stopped: what the model said fits '\\\\bsee$'."),
        ([{"steps": 3}], 3, "Stopped: it took 3 steps."),
        ([{"tokens": 200}], 2, "Stopped: it used 200 tokens."),
        ([{"cost": 0.0005}], 3, "Stopped: it cost 0.0005 US dollars."),
        ([{"time": 0.0000001}], 1, "Stopped: it took 1e-07 seconds."),
        (
            [{"all": [{"steps": 2}, {"any": [{"tool": "no.such"}, {"text": "let"}]}]}],
            2,
            "it took 2 steps and",
        ),
        ([{"use": f"{OWN}:enough"}], 2, "Stopped: enough says so."),
        ([{"time": "2min"}, {"cost": 5}, {"no_progress": 3}], 5, "Done."),
    ],
)
async def test_an_answer_ends_when_the_agent_says_so(
    stops: list[dict[str, Any]], steps: int, text: str, tmp_path: Path
) -> None:
    agents = {"default": {"operations": ["time.now"], "stop_when": stops}}
    async with serving(tmp_path, TURNS, play="turns", agents=agents, prices=PRICES) as hub:
        taken, last, metadata, frames = await ended(hub)
    assert (taken, text in last) == (steps, True), last
    assert metadata["cost"] == pytest.approx(0.0002 * steps)
    assert types(frames)[-1] == "finish"


async def test_what_a_batch_calls_counts_as_called_and_what_fails_in_it_as_failed(tmp_path: Path) -> None:
    agents = {
        "default": {"stop_when": [{"use": f"{OWN}:lucky"}]},
        "stubborn": {"stop_when": [{"no_progress": 2}]},
    }
    steps = [batch("lab.fail"), batch("time.now", "lab.fail"), batch("time.now"), LAST]
    async with serving(tmp_path, steps, play="turns", operations=[BENCH], agents=agents) as hub:
        taken, last, metadata, _ = await ended(hub)
        assert (taken, last) == (2, "Stopped: tool_called('lab.fail') and tool_called('time.now').")
        assert metadata["finishReason"] == "other"
        frames = await hub.chat(session="t", agent="stubborn")
    assert text_of(frames).endswith("Stopped: the same call failed 2 times.")
    assert frames[-1]["messageMetadata"]["finishReason"] == "max-steps"


async def test_a_reload_changes_when_answers_end_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    agents: dict[str, Any] = {"default": {"operations": ["time.now"], "stop_when": [{"steps": 2}]}}
    async with serving(tmp_path, TURNS, play="turns", agents=agents) as hub:
        assert (await ended(hub))[0] == 2
        raw = {
            "providers": {"sim": {"type": "scripted", "script": str(tmp_path / "script.json")}},
            "model": "sim/any",
        }
        for bad, why in {
            "no.such.module:x": "agents.default.stop_when[0].use: There is no module 'no.such.module'",
            f"{OWN}:nothing": "has no function 'nothing'",
            f"{OWN}:NUMBER": "is not a function",
            f"{OWN}:later": "is async; a stop condition is a plain function",
        }.items():
            agents["default"]["stop_when"] = [{"use": bad}]
            with pytest.raises(ConfigError) as caught:
                await hub.hub.reload(parse_config({**raw, "agents": agents}))
            assert why in caught.value.message
        assert (await ended(hub, session="t"))[0] == 2
        agents["default"]["stop_when"] = [{"tool": "time.now"}]
        await hub.hub.reload(parse_config({**raw, "agents": agents}))
        assert (await ended(hub, session="u"))[0] == 1


async def test_an_answer_says_what_it_cost_where_that_is_known(tmp_path: Path) -> None:
    steps = [step(), LAST]
    async with serving(tmp_path, steps, play="turns", pinned=["time.now"], prices=PRICES) as hub:
        frames = await hub.post(
            {"id": "s", "messages": [{"id": "u", "role": "user", "parts": [{"type": "text", "text": "hi"}]}]},
            params={"dialect": "hub"},
        )
        assert (frames[-1]["cost"], frames[-1]["metadata"]["cost"]) == (0.0004, 0.0004)
        [_, stored] = await hub.messages()
        assert stored["metadata"]["cost"] == 0.0004
        rows = (await hub.http.get("/api/usage")).json()["rows"]
        assert [row["cost"] for row in rows] == [0.0002, 0.0002]
    async with serving(tmp_path / "free", steps, play="turns", pinned=["time.now"]) as hub:
        assert "cost" not in (await hub.chat())[-1]["messageMetadata"]


async def test_an_answer_that_goes_on_after_an_output_adds_up_what_it_cost(tmp_path: Path) -> None:
    tool = {"name": "confirm", "description": "Ask.", "inputSchema": {"type": "object"}}
    agents = {"default": {"client_tools": [tool]}}
    async with serving(tmp_path, [step("confirm"), LAST], agents=agents, prices=PRICES) as hub:
        assert (await hub.chat())[-1]["messageMetadata"]["cost"] == 0.0002
        [_, answer] = await hub.messages()
        call = next(part for part in answer["parts"] if part["type"].startswith("tool-"))
        call.update(state="output-available", output="yes")
        frames = await hub.post({"id": "s", "messages": [answer], "trigger": "submit-message"})
    assert frames[-1]["messageMetadata"]["cost"] == 0.0004
