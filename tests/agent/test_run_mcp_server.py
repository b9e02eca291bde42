"""Claude Code calls an agent's tools over MCP; each is a call of the run."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman import (
    Agent,
    ClaudeCodeProvider,
    Hooks,
    Model,
    Policy,
    PreToolUse,
    RunLimits,
    ScriptedModel,
    StepChange,
    StepContext,
    Tool,
    ToolPart,
    operation,
)
from dragoman.mcp.server.loopback_server import serve_locally
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.permission.policy import Rule
from tests.providers import stand_in_claude
from tests.waiting import LIMIT

UNLENT = "claude-code/sonnet does not support 'tool pick'; it is not sent"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """A stand-in for the CLI, which calls the first tool that it is lent."""
    program = tmp_path / "claude"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{stand_in_claude.__file__}" "$@"\n')
    program.chmod(0o755)
    environ = {**os.environ, "CLAUDE_SEEN": str(tmp_path / "seen"), "CLAUDE_PLAY": "lent"}
    return ClaudeCodeProvider(str(program), environ=environ).model("sonnet")


@operation(namespace="math", effect="read")
def add(a: int, b: int) -> int:
    "Add two whole numbers."
    return a + b


@operation(namespace="math")
def add_slowly(a: int, b: int) -> int:
    "Add two whole numbers, one day."
    raise AssertionError(f"it must not run: {a} {b}")


def outputs(run: Any) -> list[Any]:
    """What came of the calls in a run's message."""
    calls = [part for part in run.message.parts if isinstance(part, ToolPart)]
    return [call.error_text or call.output for call in calls]


@pytest.mark.promise("claude-code-tools")
async def test_a_lent_tool_is_a_call_of_the_run_with_its_hooks_and_its_record(model: Model) -> None:
    heard: list[tuple[Any, ...]] = []
    hooks, ledger = Hooks(), MemoryLedger(max_calls=10)

    @hooks.pre_tool_use
    def hear(event: PreToolUse) -> None:
        heard.append((event.operation, event.input, event.tool_call_id, event.run_id, event.step))

    run = Agent(model, operations=[add], hooks=hooks, ledger=ledger).spawn("2 + 2?")
    result = await run.result
    assert (result.exit_reason, result.text, outputs(run)) == ("success", "Done.", ["4"])
    assert heard == [("math.add", {"a": 2, "b": 2}, "toolu_1", run.id, 1)]
    [record] = [entry.record for entry in ledger.children(None)]
    assert (record.operation, record.tool_call_id, record.run_id) == ("math.add", "toolu_1", run.id)


@pytest.mark.promise("claude-code-tools")
async def test_a_call_that_wants_an_approval_is_not_made_and_the_model_told_why(model: Model) -> None:
    policy = Policy([Rule(operations=("math.*",), decision="ask")])
    run = Agent(model, operations=[add_slowly], policy=policy).spawn("2 + 2?")
    result = await run.result
    [output] = outputs(run)
    assert result.exit_reason == "success"
    assert "needs approval" in output
    assert "approvals are not possible while Claude Code works" in output


@pytest.mark.promise("claude-code-tools")
async def test_a_limit_of_calls_holds_for_what_is_lent(model: Model) -> None:
    run = Agent(model, operations=[add], limits=RunLimits(max_calls=0)).spawn("2 + 2?")
    await run.result
    assert outputs(run) == ["The budget of 0 calls is used up."]


async def test_what_runs_outside_is_not_lent_and_a_notice_says_so(model: Model) -> None:
    pick = Tool("pick", "Pick one.", {"type": "object"})
    run = Agent(model, operations=[add], client_tools=[pick]).spawn("2 + 2?")
    result = await run.result
    assert (result.notices, outputs(run)) == ((UNLENT,), ["4"])


async def test_a_step_that_asks_claude_code_lends_it_the_tools_of_that_step(model: Model) -> None:
    def other(step: StepContext) -> StepChange | None:
        return StepChange(model=model, tools=["math_add"]) if step.number == 2 else None

    first = ScriptedModel([("math_add", {"a": 1, "b": 1})])
    run = Agent(first, operations=[add, add_slowly], on_prepare_step=other).spawn("2 + 2?")
    result = await run.result
    assert (result.exit_reason, outputs(run)) == ("success", [2, "4"])
    assert "math_add" in [part.text for part in run.message.parts if part.type == "text"]


@pytest.mark.promise("claude-code-tools")
async def test_an_abort_ends_a_lent_call_and_the_place_where_it_was_served(model: Model) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    @operation(namespace="math")
    async def add(a: int, b: int) -> int:
        "Add for ever."
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return a + b

    run = Agent(model, operations=[add]).spawn("2 + 2?")
    async with asyncio.timeout(LIMIT):
        await begun.wait()
        run.abort()
        result = await run.result
        await cancelled.wait()
    assert result.exit_reason == "aborted"
    assert outputs(run) == ["it was aborted"]


async def test_a_booth_opens_to_its_token_only_and_closes_with_its_block() -> None:
    class Bare:
        version = ""

        async def tools(self, identity: Any) -> list[dict[str, Any]]:
            return []

        def input_schema(self, name: str) -> None: ...

        def instructions(self, identity: Any) -> str:
            return ""

        async def call(self, request: Any) -> dict[str, Any]:
            raise AssertionError

    hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    both = {"accept": "application/json, text/event-stream"}
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
        async with serve_locally(Bare()) as place:
            for authorization, status in ((None, 401), ("Bearer no", 401), (f"Bearer {place.token}", 200)):
                headers = both if authorization is None else {**both, "authorization": authorization}
                assert (await http.post(place.url, json=hello, headers=headers)).status_code == status
        with pytest.raises(httpx2.ConnectError):
            await http.post(place.url, json=hello, headers=both)
