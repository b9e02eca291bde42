"""Stop conditions: built-in, combined, custom."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.agent.agent import Agent
from dragoman.agent.stop_conditions import (
    SoFar,
    all_of,
    any_of,
    cost,
    no_progress,
    seconds,
    steps,
    text_matches,
    tokens,
    tool_called,
)
from dragoman.errors import BadRequest, ConfigError
from dragoman.events import Usage
from dragoman.mcp.server_spec import ServerSpec
from dragoman.model_request import Tool
from dragoman.providers.scripted import ScriptedCall
from tests.agent.scripted import ASK, PRICES, USED, add, calling, fail, scripted

RAW = Path(__file__).parents[1] / "mcp" / "client" / "raw_server.py"
FAILING = ScriptedCall("lab_fail", {"why": "no"})


def twice(so_far: SoFar) -> bool:
    """A predicate of somebody's own."""
    return len(so_far.calls) >= 2


@pytest.mark.parametrize(
    ("stop", "taken", "reason", "why"),
    [
        (steps(2), 2, "steps_exhausted", "steps(2)"),
        (tool_called("math.add"), 1, "success", "tool_called('math.add')"),
        (tool_called("math_add"), 1, "success", "tool_called('math_add')"),
        (text_matches(r"let\s+me"), 1, "success", "text_matches('let\\\\s+me')"),
        (tokens(300), 3, "budget_exhausted", "tokens(300)"),
        (cost(0.0005), 3, "budget_exhausted", "cost(0.0005)"),
        (seconds(0), 1, "budget_exhausted", "seconds(0)"),
        (twice, 2, "success", "twice"),
        (steps(4) | tool_called("math_add"), 1, "success", "tool_called('math_add')"),
        (any_of(steps(3), tokens(200)), 2, "budget_exhausted", "tokens(200)"),
        (steps(2) & twice, 2, "steps_exhausted", "steps(2) and twice"),
        (all_of(tool_called("math_add"), twice), 2, "success", "tool_called('math_add') and twice"),
        ([steps(3), tokens(200)], 2, "budget_exhausted", "tokens(200)"),
    ],
)
async def test_a_condition_ends_the_run_after_a_step_and_says_so(
    stop: Any, taken: int, reason: str, why: str
) -> None:
    model = scripted(*[calling(text="let me", usage=USED)] * 5, "4")
    result = await Agent(model, operations=[add], stop_when=stop, prices=PRICES).spawn(ASK).result
    assert (result.steps, result.exit_reason, result.stopped_by) == (taken, reason, why)
    assert result.text == "let me"


async def test_no_progress_is_the_same_call_failing_again_and_again() -> None:
    other = ScriptedCall("lab_fail", {"why": "maybe"})
    script: list[Any] = [calling(FAILING), calling(other), calling(FAILING), calling(FAILING), "I give up"]
    result = await Agent(scripted(*script), operations=[fail], stop_when=no_progress(3)).spawn(ASK).result
    assert (result.steps, result.exit_reason) == (4, "steps_exhausted")
    assert result.stopped_by == "no_progress(3)"


async def test_a_condition_that_is_never_met_changes_nothing() -> None:
    conditions = (
        tool_called("hub_call"),
        text_matches("never"),
        tokens(9**9),
        cost(9),
        seconds(99),
        no_progress(1),
    )
    stop = any_of(*conditions)
    result = await Agent(scripted(calling(), "4"), operations=[add], stop_when=stop).spawn(ASK).result
    assert (result.exit_reason, result.text, result.stopped_by) == ("success", "4", None)


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(BadRequest, match="not a valid regular expression"):
        text_matches("(")


async def later(_: SoFar) -> bool:
    return False


class Later:
    async def __call__(self, _: SoFar) -> bool:
        return False


@pytest.mark.parametrize("stop", ["steps(3)", 5, later, Later(), [steps(1), later], {"steps": 3}], ids=repr)
def test_what_can_be_no_condition_is_refused_at_once(stop: Any) -> None:
    with pytest.raises(ConfigError, match=r"must be a condition or a function|must not be async"):
        Agent(scripted("4"), stop_when=stop)


def deferred(so_far: SoFar) -> Any:
    return later(so_far)


def named(_: SoFar) -> Any:
    return steps(3)


@pytest.mark.parametrize("stop", [steps, deferred, named])
async def test_an_answer_of_a_condition_that_is_no_bool_is_never_taken_for_true(stop: Any) -> None:
    result = await Agent(scripted(calling(), "4"), operations=[add], stop_when=stop).run(ASK)
    assert result.error is not None
    assert "not a bool" in result.error.message
    assert result.steps == 1


def test_no_step_is_needed_to_ask_a_condition() -> None:
    nothing = SoFar(steps=(), taken=0, seconds=0.0, usage=Usage(), cost=None)
    conditions = [
        steps(1),
        tool_called("x"),
        text_matches("x"),
        tokens(1),
        cost(1),
        seconds(1),
        no_progress(1),
    ]
    assert [stop(nothing) for stop in conditions] == [False] * 7
    assert all_of(steps(0), steps(1))(nothing) is False


@pytest.mark.parametrize(
    "name", ["math.add", "math_add", "add", "math.*", "math_*", "ad?", "*.add", "*"], ids=str
)
@pytest.mark.parametrize("way", ["direct", "bare", "hub_call", "hub_call_underscored"])
async def test_a_tool_is_named_as_in_allowed_tools_however_it_is_called(name: str, way: str) -> None:
    numbers = {"a": 1, "b": 2}
    match way:
        case "direct":
            call = ScriptedCall("math_add", numbers)
        case "bare":
            call = ScriptedCall("add", numbers)
        case _:
            tool = "math.add" if way == "hub_call" else "math_add"
            call = ScriptedCall("hub_call", {"calls": [{"tool": tool, "input": numbers}]})
    fails = ScriptedCall("lab_fail", {"why": "no"})
    if way.startswith("hub_call"):
        fails = ScriptedCall("hub_call", {"calls": [{"tool": "lab.fail", "input": {"why": "no"}}]})
    agent = Agent(
        scripted(calling(fails), calling(call), "4"),
        operations=[add, fail],
        meta_tools=way.startswith("hub_call"),
        stop_when=tool_called(name),
    )
    result = await agent.spawn(ASK).result
    assert (result.steps, result.stopped_by) == (1 if name == "*" else 2, f"tool_called({name!r})")


@pytest.mark.parametrize(
    ("stop", "name", "similar"),
    [
        (tool_called("math_ad"), "math_ad", "; did you mean 'math.add'?"),
        (tool_called("Add"), "Add", "; did you mean 'math.add'?"),
        (steps(3) | tool_called("math.addd"), "math.addd", "; did you mean 'math.add'?"),
        ([steps(3), all_of(tool_called("add"), tool_called("zzz"))], "zzz", ""),
        (any_of(steps(2), steps(3) & tool_called("lab.*x")), "lab.*x", None),
        (tool_called(""), "", ""),
    ],
)
@pytest.mark.parametrize("meta_tools", [False, True])
def test_an_unknown_tool_is_an_error_when_the_agent_is_made(
    stop: Any, name: str, similar: str | None, meta_tools: bool
) -> None:
    with pytest.raises(ConfigError) as raised:
        Agent(scripted("4"), operations=[add, fail], stop_when=stop, meta_tools=meta_tools)
    message = f"stop_when: there is no tool {name!r}; there are lab.fail, math.add"
    assert raised.value.message.startswith(message)
    assert similar is None or raised.value.message == message + similar


async def test_client_tools_and_meta_tools_can_be_waited_for() -> None:
    client = Tool("ask_user", "Asks.", {"type": "object"})
    names = tool_called("ask_user") | tool_called("hub_search") | tool_called("hub.search")
    agent = Agent(
        scripted(calling(ScriptedCall("hub_search", {"query": "add"})), "4"),
        operations=[add],
        client_tools=[client],
        meta_tools=True,
        stop_when=names,
    )
    result = await agent.spawn(ASK).result
    assert result.stopped_by == "tool_called('hub_search')"


async def test_tools_of_mcp_servers_are_checked_when_the_servers_are_connected() -> None:
    server = ServerSpec(name="raw", command=(sys.executable, "-S", "-E", str(RAW)), trust="always")
    connected = Agent(
        scripted(calling(ScriptedCall("raw_echo", {})), "4"), mcp=[server], stop_when=tool_called("echo")
    )
    async with connected:
        assert (await connected.spawn(ASK).result).stopped_by == "tool_called('echo')"
    unknown = Agent(scripted("4"), mcp=[server], stop_when=tool_called("ehco"))
    with pytest.raises(ConfigError, match=r"there is no tool 'ehco'; there are .*did you mean 'raw\.echo'"):
        await unknown.connect()
    assert unknown.servers == ()


async def test_what_is_called_through_the_meta_tool_counts_too() -> None:
    def batch(*names: str) -> Any:
        calls = [{"tool": name, "input": {"a": 1, "b": 2} if name == "math.add" else {}} for name in names]
        return calling(ScriptedCall("hub_call", {"calls": calls}))

    steps_taken = [batch("lab.fail"), batch("math.add", "lab.fail"), batch("lab.fail"), "so"]
    for stop, taken in ((tool_called("math_add"), 2), (no_progress(2), 2), (no_progress(9), 4)):
        agent = Agent(scripted(*steps_taken), operations=[add, fail], meta_tools=True, stop_when=stop)
        assert (await agent.spawn(ASK).result).steps == taken
