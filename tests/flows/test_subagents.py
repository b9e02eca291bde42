"""Sub-agents of a served hub."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import parse_config
from dragoman.errors import ConfigError
from dragoman.identity import Identity
from dragoman.operations.context import Context
from tests.flows.test_calls import settled
from tests.serving import Served, ask, serving, text_of, usage, write_script
from tests.waiting import poll

BENCH = str(Path(__file__).parent / "slow_operations.py")
TASK = {"tools": [{"name": "agents_helper", "input": {"prompt": "Do it."}, "id": "c1"}]}
DONE = {"text": "Done.", "usage": usage(100, 10)}
WORK = [
    {"tools": [{"name": "lab_count", "input": {"to": 4}}], "usage": usage(100, 10)},
    {"text": "I counted.", "usage": usage(200, 10)},
]
PRICES = {"*": {"input": 1.0, "output": 10.0}}
STEP = 100e-6 + 10 * 10e-6


def team(
    folder: Path, work: Sequence[Any] = WORK, *, lead: Sequence[Any] = (TASK, DONE), **agent: Any
) -> dict[str, Any]:
    """A hub whose agent has a helper, each with a model of its own."""
    places = {
        name: write_script(folder / name, steps, play="turns")
        for name, steps in (("sim", lead), ("help", work))
    }
    helper = {"model": "help/any", "description": "Counts things.", "operations": ["lab.count"], **agent}
    return {
        "providers": {name: {"type": "scripted", "script": str(path)} for name, path in places.items()},
        "agents": {"default": {"operations": ["agents.helper"]}, "helper": helper},
        "operations": [BENCH],
        "prices": PRICES,
    }


def outputs(frames: Sequence[dict[str, Any]]) -> list[Any]:
    return [f["output"] for f in frames if f["type"] == "tool-output-available" and not f.get("preliminary")]


def errors(frames: Sequence[dict[str, Any]]) -> list[str]:
    return [f["errorText"] for f in frames if f["type"] == "tool-output-error"]


async def call(hub: Served, prompt: str = "Do it.", **options: Any) -> dict[str, Any]:
    """What a program gets that calls the helper."""
    response = await hub.http.post("/api/operations/agents.helper/call", json={"prompt": prompt}, **options)
    found: dict[str, Any] = response.json()
    return found


async def test_a_pinned_agent_is_a_tool_and_its_final_text_the_output(tmp_path: Path) -> None:
    async with serving(tmp_path, **team(tmp_path)) as hub:
        frames = await hub.chat()
        assert (outputs(frames), text_of(frames)) == (["I counted."], "Done.")
        shown = [f["output"] for f in frames if f.get("preliminary")]
        assert "tool-lab_count" in [part["type"] for message in shown for part in message["parts"]]
        stored = (await hub.messages())[1]["parts"][1]
        assert (stored["output"], "preliminary" in stored) == ("I counted.", False)


async def test_an_agent_is_found_described_and_called_as_an_operation(tmp_path: Path) -> None:
    lead = [
        {"tools": [{"name": "hub_search", "input": {"q": "counts things"}}]},
        {"tools": [{"name": "hub_schema", "input": {"tool": "agents.helper"}}]},
        {
            "tools": [
                {
                    "name": "hub_call",
                    "input": {"calls": [{"tool": "agents.helper", "input": {"prompt": "x"}}]},
                }
            ]
        },
        DONE,
    ]
    config = team(tmp_path, lead=lead)
    config["agents"]["default"] = {}
    async with serving(tmp_path, **config) as hub:
        found, schema, called = outputs(await hub.chat())
        assert found["tools"][0]["tool"] == "agents.helper"
        assert schema["inputSchema"]["required"] == ["prompt"]
        assert called == [{"success": True, "result": "I counted."}]
        done = await call(hub)
        assert (done["success"], done["result"]) == (True, "I counted.")
        listed = (await hub.http.get("/api/operations")).text
        assert "agents.helper" in listed


async def test_the_model_calls_of_an_agent_stand_below_its_call_and_are_paid(tmp_path: Path) -> None:
    first = {**TASK, "usage": usage(0, 0)}
    async with serving(tmp_path, **team(tmp_path, lead=(first, DONE))) as hub:
        frames = await hub.chat()
        assert frames[-1]["messageMetadata"]["cost"] == pytest.approx(STEP)
        rows = (await hub.http.get("/api/usage")).json()["rows"]
        below = [row for row in rows if row.get("callId")]
        assert [row["modelAsked"] for row in below] == ["help/any"] * 2
        assert sum(row["cost"] for row in below) == pytest.approx(STEP + 300e-6)
        [run] = {row["runId"] for row in rows}
        tree = (await hub.http.get(f"/api/calls/{run}/tree")).json()["tree"]
        node = next(each for model in tree["children"] for each in model.get("children", ()))
        assert (node["name"], node["kind"], node["cost"]) == ("agents.helper", "call", pytest.approx(5e-4))
        assert [(each["kind"], each["name"]) for each in node["children"]] == [("model", "help/any")] * 2
        assert [each["name"] for each in node["children"][0]["children"]] == ["lab.count"]


async def test_a_program_that_calls_an_agent_pays_for_it(tmp_path: Path) -> None:
    async with serving(tmp_path, **team(tmp_path)) as hub:
        done = await call(hub)
        rows = (await hub.http.get("/api/usage")).json()["rows"]
        assert {row["callId"] for row in rows} == {done["callId"]}
        assert [row.get("runId") for row in rows] == [None, None]


async def test_an_agent_without_a_description_is_none_to_call(tmp_path: Path) -> None:
    config = team(tmp_path)
    del config["agents"]["helper"]["description"]
    config["agents"]["default"] = {}
    async with serving(tmp_path, **config) as hub:
        assert (await hub.http.post("/api/operations/agents.helper/call", json={})).status_code == 404
    config["agents"]["default"] = {"operations": ["agents.helper"]}
    with pytest.raises(ConfigError, match="agent 'helper' has no description, so it cannot be called"):
        async with serving(tmp_path / "b", **config):
            pass


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"max_usd": 0.0003}, "helper did not finish: The budget of 0.0003 USD has"),
        ({"max_calls": 1}, None),
        ({"timeout": 0.05}, "agents.helper timed out: it did not end by its deadline."),
        ({"max_steps": 1}, "helper did not finish: steps(1)"),
    ],
)
async def test_an_agents_own_limits_hold_also_when_another_one_calls_it(
    tmp_path: Path, limits: dict[str, Any], text: str | None
) -> None:
    options: dict[str, Any] = {"options": {"max_tokens": 10}} if "max_usd" in limits else {}
    async with serving(tmp_path, **team(tmp_path, WORK, **limits, **options)) as hub:
        frames = await hub.chat()
        assert text_of(frames) == "Done."
        assert errors(frames)[:1] == [text] or [*errors(frames), ""][0].startswith(text or "")
        done = await call(hub)
        assert done["success"] is (text is None)
        if "max_usd" in limits:
            assert done["error"]["code"] == "insufficient_quota"


async def test_a_key_may_ask_its_models_only_also_through_an_agent(tmp_path: Path) -> None:
    async with serving(tmp_path, **team(tmp_path)) as hub:
        ann = Identity(owner="ann", models=("sim/*",))
        context = Context(identity=ann)
        done = await hub.hub._services.calls.call("agents.helper", {"prompt": "x"}, context=context)
        assert done.error is not None
        assert (done.ok, "help/any" in done.error.message) == (False, True)


async def test_the_budget_of_an_answer_holds_for_the_agents_below(tmp_path: Path) -> None:
    config = team(tmp_path)
    config["agents"]["default"] |= {"max_usd": 0.012}
    async with serving(tmp_path, **config) as hub:
        frames = await hub.chat()
        assert "The budget of 0.012 USD has" in "".join(errors(frames))


async def test_the_policy_may_hide_and_forbid_agents(tmp_path: Path) -> None:
    config = team(tmp_path)
    config["policy"] = [{"deny": "agents.*"}]
    async with serving(tmp_path, **config) as hub:
        [refused] = [frame for frame in await hub.chat() if frame["type"] == "tool-input-error"]
        assert "there is no tool 'agents_helper'" in refused["errorText"]
        assert (await hub.http.post("/api/operations/agents.helper/call", json={})).status_code == 404
        assert "agents.helper" not in (await hub.http.get("/api/operations")).text


async def test_what_the_agent_above_may_not_call_its_helper_may_not_either(tmp_path: Path) -> None:
    config = team(tmp_path)
    config["policy"] = [{"deny": "lab.count", "agent": "default"}]
    async with serving(tmp_path, **config) as hub:
        await hub.chat()
        counts = (await hub.http.get("/api/calls?operation=lab.count")).json()["calls"]
        assert counts == [], "it is not even shown the tool"
        assert (await call(hub))["result"] == "I counted."
        counts = (await hub.http.get("/api/calls?operation=lab.count")).json()["calls"]
        assert [count["status"] for count in counts] == ["done"], "by itself it may"


async def test_deny_by_default_needs_a_rule_for_the_agent_and_for_what_it_calls(tmp_path: Path) -> None:
    config = team(tmp_path, policy="deny")
    config["agents"]["default"]["policy"] = "deny"
    config["policy"] = [{"allow": "agents.helper", "agent": "default"}]
    async with serving(tmp_path, **config) as hub:
        frames = await hub.chat()
        assert outputs(frames) == ["I counted."]
    config["policy"] += [{"allow": "lab.count"}]
    async with serving(tmp_path / "b", **config) as hub:
        assert outputs(await hub.chat()) == ["I counted."]


async def test_a_reload_adds_changes_and_removes_agents_while_one_works(tmp_path: Path) -> None:
    waiting = [{"tools": [{"name": "lab_wait", "input": {}}]}, {"text": "Over."}]
    config = {**team(tmp_path, waiting, operations=["lab.wait"]), "model": "sim/any"}
    async with serving(tmp_path, **config) as hub:
        working = asyncio.ensure_future(call(hub))
        running = await underway(hub, "agents.helper")
        await underway(hub, "lab.wait")
        agents = {
            "helper": {**config["agents"]["helper"], "description": "Counts, and well."},
            "clerk": {"description": "Writes."},
        }
        await hub.hub.reload(parse_config({**config, "agents": agents}))
        assert await described(hub) == {"agents.helper": "Counts, and well.", "agents.clerk": "Writes."}
        await hub.hub.reload(parse_config({**config, "agents": {}}))
        assert (await described(hub), working.done()) == ({}, False)
        assert await hub.hub.abort(running)
        assert (await working)["status"] == "aborted"


async def described(hub: Served) -> dict[str, str]:
    """The agents among the operations, and what they are said to do."""
    found = (await hub.http.get("/api/operations?namespace=agents")).json()["operations"]
    return {each["id"]: each["summary"] for each in found}


async def underway(hub: Served, operation: str) -> str:
    """The id of a call of this operation, as soon as there is one under way."""
    while True:
        calls = (await hub.http.get(f"/api/calls?operation={operation}&status=running")).json()["calls"]
        if calls:
            return str(calls[0]["id"])


async def test_stopping_a_chat_stops_the_agent_below(tmp_path: Path) -> None:
    waiting = [{"tools": [{"name": "lab_wait", "input": {}}]}]
    async with serving(tmp_path, **team(tmp_path, waiting, operations=["lab.wait"])) as hub:
        async with hub.http.stream("POST", "/api/chat", json=ask("hi")) as response:
            async for line in response.aiter_lines():
                if "lab_wait" in line and '"preliminary":true' in line:
                    break
            assert (await hub.http.post("/api/chat/s/stop")).status_code < 300

        async def statuses() -> set[str]:
            """What became of the calls, once none runs: the end of one that only reads is written later."""
            rows = (await hub.http.get("/api/calls")).json()["calls"]
            found = {row["status"] for row in rows}
            return set() if "running" in found else found

        assert await poll(statuses) == {"aborted"}


@pytest.mark.promise("a-budget-is-never-overdrawn")
@pytest.mark.parametrize("seed", range(3))
async def test_fifty_agents_of_one_step_never_overspend_the_budget_of_an_answer(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    tools = [{"name": f"agents_w{n}", "input": {"prompt": "Spend."}} for n in range(50)]
    scripts: dict[str, list[dict[str, Any]]] = {"sim": [{"tools": tools}, {"text": "Done."}]}
    agents: dict[str, Any] = {"default": {"operations": [f"agents.w{n}" for n in range(50)], "max_usd": 0.2}}
    for n in range(50):
        used = usage(15, chance.randint(1, 1_000))
        scripts[f"p{n}"] = [{"text": ["word "] * 10, "usage": used, "delay": chance.uniform(0, 0.02)}]
        agents[f"w{n}"] = {"model": f"p{n}/any", "description": "Spends."}
    places = {name: write_script(tmp_path / name, steps, play="turns") for name, steps in scripts.items()}
    providers = {name: {"type": "scripted", "script": str(path)} for name, path in places.items()}
    config: dict[str, Any] = {
        "providers": providers,
        "agents": agents,
        "prices": {"p*": PRICES["*"], "sim/*": {"input": 0, "output": 0}},
    }
    async with serving(tmp_path, **config) as hub:
        frames = await hub.chat()
        rows = (await hub.http.get("/api/usage?limit=200")).json()["rows"]
        spent = sum(row["cost"] or 0 for row in rows)
        assert spent <= 0.2 + 1_024 * 10e-6
        assert spent > 0.02
        assert len(outputs(frames)) + len(errors(frames)) == 50
        assert all("The budget of 0.2 USD has" in text for text in errors(frames))
        assert errors(frames)


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        (
            {"two words": {"description": "x"}},
            "agents.two words: an agent that others can call must be named with",
        ),
        ({"a": {"description": "x"}, "A": {"description": "y"}}, "there is an operation 'agents.A' already"),
    ],
)
async def test_an_agent_that_cannot_be_an_operation_is_refused_and_a_reload_changes_nothing(
    tmp_path: Path, agents: dict[str, Any], message: str
) -> None:
    config = team(tmp_path)
    async with serving(tmp_path, **config) as hub:
        before, policy = await described(hub), hub.hub._services.calls.access_control.policy
        wrong = {
            **config,
            "agents": {**config["agents"], **agents},
            "model": "sim/any",
            "policy": [{"deny": "*"}],
        }
        with pytest.raises(ConfigError, match=message):
            await hub.hub.reload(parse_config(wrong))
        assert (await described(hub), hub.hub._services.calls.access_control.policy) == (before, policy)
    with pytest.raises(ConfigError, match=message):
        async with serving(tmp_path / "b", **{k: v for k, v in wrong.items() if k != "model"}):
            pass


@pytest.mark.parametrize("name", ["hub_call", "agents_helper"])
async def test_an_mcp_client_calls_an_agent_too(tmp_path: Path, name: str) -> None:
    task = {"prompt": "Do it."}
    arguments = task if name == "agents_helper" else {"calls": [{"tool": "agents.helper", "input": task}]}
    async with serving(tmp_path, **team(tmp_path), mcp={"pinned": ["agents.helper"]}) as hub:
        params = {"name": name, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        accept = {"accept": "application/json, text/event-stream"}
        answer = await hub.http.post("/mcp", json=message, headers=accept)
        assert (answer.status_code, "I counted." in answer.text) == (200, True), answer.text


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_below_is_given_at_the_hub_and_the_chat_goes_on(
    tmp_path: Path, approved: bool
) -> None:
    work = [
        {"tools": [{"name": "lab_pile", "input": {"size": 10}}], "usage": usage(100, 10)},
        {"tools": [{"name": "lab_count", "input": {"to": 1}}], "usage": usage(100, 10)},
        {"text": "Over.", "usage": usage(100, 10)},
    ]
    config = team(tmp_path, work, operations=["lab.pile", "lab.count"])
    config["policy"] = [{"ask": "lab.count", "agent": "helper"}]
    async with serving(tmp_path, **config) as hub:
        frames = await hub.chat()
        [approval_request] = [frame for frame in frames if frame["type"] == "tool-approval-request"]
        [approval] = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
        assert (approval["id"], approval["operation"]) == (approval_request["approvalId"], "agents.helper")
        assert [item["operation"] for item in approval["items"]] == ["lab.count"]
        assert "state" not in approval
        response = await hub.http.post(f"/api/approvals/{approval['id']}", json={"approved": approved})
        assert response.status_code == 200, response.text
        stored = await settled(hub)
        assert (stored[1]["state"], stored[1]["output"]) == ("output-available", "Over.")
        assert stored[-1]["text"] == "Done."
        found = (await hub.http.get("/api/calls")).json()["calls"]
        counted = {call["name"]: call["status"] for call in found}
        assert counted == {
            "agents.helper": "done",
            "lab.pile": "done",
            "lab.count": "done" if approved else "denied",
        }
        rows = (await hub.http.get("/api/usage")).json()["rows"]
        [id] = [call["id"] for call in found if call["name"] == "agents.helper"]
        assert [row["callId"] for row in rows if row.get("callId")] == [id] * 3
        assert next(call["cost"] for call in found if call["id"] == id) == pytest.approx(3 * STEP)
