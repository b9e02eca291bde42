"""Claude Code as the model, with a stand-in for its CLI."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, ClaudeCodeProvider, RunLimits, operation
from dragoman import events as e
from tests.providers import stand_in_claude
from tests.waiting import until


@operation(namespace="math", effect="read")
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


SERVER = Path(__file__).parents[1] / "mcp/client/raw_server.py"
LIMITED = RunLimits(max_budget_usd=0.0001)


class Desk:
    """A stand-in in a folder, and what it was told."""

    def __init__(self, folder: Path) -> None:
        self.seen = folder / "seen"
        self.program = folder / "claude"
        stand_in = stand_in_claude.__file__
        self.program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{stand_in}" "$@"\n')
        self.program.chmod(0o755)

    def provider(self, play: str = "answer", **ways: Any) -> ClaudeCodeProvider:
        environ = {**os.environ, "CLAUDE_SEEN": str(self.seen), "CLAUDE_PLAY": play}
        return ClaudeCodeProvider(str(self.program), environ=environ, **ways)

    def runs(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.seen.read_text().splitlines()]


def lives(number: int) -> bool:
    """Whether there is a process of this number that has not ended."""
    try:
        status = Path(f"/proc/{number}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


def process_input(process: dict[str, Any]) -> str:
    """All that the program was given: its arguments, and the files that these name."""
    return "\n".join([*process["argv"], *process.get("files", ())])


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


async def test_claude_code_answers_in_one_step_and_shows_the_tools_that_it_used(desk: Desk) -> None:
    run = Agent(desk.provider().model("sonnet")).spawn("How long is /a?", system="Be brief.")
    words = [event.type async for event in run.events()]
    result = await run.result
    assert (result.exit_reason, result.text, result.steps) == ("success", "Two lines.", 1)
    assert (result.tool_calls.total, result.cost) == (2, 0.0123)
    assert words.index("tool-input-available") < words.index("tool-output-available")
    [process] = desk.runs()
    assert "Be brief." in process_input(process)
    assert "--model=sonnet" in process["argv"]


async def test_a_permission_mode_and_an_agent_of_its_own_are_passed_on(desk: Desk) -> None:
    provider = desk.provider(permission_mode="bypassPermissions", agent="engine-worker")
    await Agent(provider.model("sonnet")).spawn("Explore.").result
    [process] = desk.runs()
    assert {"--permission-mode=bypassPermissions", "--agent=engine-worker"} <= set(process["argv"])


async def test_servers_may_be_its_own_to_start(desk: Desk) -> None:
    servers = json.dumps({"mcpServers": {"items": {"command": "python", "args": ["server.py"]}}})
    provider = desk.provider(mcp_config=servers, allowed_tools=["mcp__items"])
    await Agent(provider.model("sonnet")).spawn("Create an item.").result
    [process] = desk.runs()
    assert servers in process_input(process)
    assert "--allowedTools=mcp__items" in process["argv"]


async def test_the_agents_servers_and_operations_are_lent_to_it(desk: Desk) -> None:
    command = [sys.executable, "-S", "-E", str(SERVER), str(desk.seen.with_name("state"))]
    provider = desk.provider("lent", mcp_config='{"mcpServers": {}}', allowed_tools=["Read"])
    agent = Agent(provider.model("sonnet"), operations=[add], mcp=[command])
    async with agent:
        run = agent.spawn("What is 2 + 2?", allowed_tools=["math.*", "raw_server_echo"])
        events = [event async for event in run.events()]
        result = await run.result
    assert (result.exit_reason, result.notices) == ("success", ())
    first = next(part for part in run.message.parts if part.type == "text")
    assert first.text == "math_add raw_server_echo"
    calls = [event for event in events if isinstance(event, e.ToolInputAvailable)]
    assert [(call.tool_name, call.provider_executed) for call in calls] == [("math_add", True)]
    [output] = [event.output for event in events if isinstance(event, e.ToolOutputAvailable)]
    assert (output, result.tool_calls.total) == ("4", 1)
    [process] = desk.runs()
    assert "--allowedTools=Read,mcp__dragoman" in process["argv"]
    assert not any("Bearer" in word for word in process["argv"])


async def test_its_budget_is_its_own_and_a_notice_says_so(desk: Desk) -> None:
    model = desk.provider().model("sonnet", max_budget_usd=0.5)
    result = await Agent(model, limits=LIMITED).spawn("How long is /a?").result
    assert result.exit_reason == "success"
    assert ["not enforced" in notice for notice in result.notices] == [True]
    [process] = desk.runs()
    assert "--max-budget-usd=0.5" in process["argv"]


async def test_what_stops_at_its_own_budget_is_budget_exhausted_and_costs_what_it_says(desk: Desk) -> None:
    result = await Agent(desk.provider("spent").model("sonnet")).spawn("Hello?").result
    assert (result.exit_reason, result.cost) == ("budget_exhausted", 0.0123)
    assert result.stopped_by == "Claude Code stopped at its own budget: Reached maximum budget ($0.01)"
    assert (result.usage.input_tokens, result.usage.output_tokens) == (3210, 40)
    assert not result.usage.estimated


async def test_a_conversation_goes_on_in_its_session(desk: Desk) -> None:
    agent = Agent(desk.provider().model("sonnet"))
    first = await agent.spawn("How long is /a?").result
    second = await agent.spawn([*first.messages, {"role": "user", "content": "And /b?"}]).result
    assert second.text == "Two lines."
    before, after = desk.runs()
    assert not any(word.startswith("--resume") for word in before["argv"])
    assert f"--resume={stand_in_claude.SESSION}" in after["argv"]
    assert [block["text"] for block in after["told"][0]["message"]["content"]] == ["And /b?"]


async def test_as_many_turns_as_it_may_take_is_steps_exhausted(desk: Desk) -> None:
    result = await Agent(desk.provider("exhausted", max_turns=1).model("sonnet")).spawn("Go on.").result
    assert (result.exit_reason, result.steps) == ("steps_exhausted", 1)
    assert len(desk.runs()) == 1


async def test_an_abort_ends_the_program(desk: Desk) -> None:
    run = Agent(desk.provider("hang").model("sonnet")).spawn("Sleep.")
    async for event in run.events():
        if isinstance(event, e.TextDelta):
            run.abort()
    result = await run.result
    processes = [int(number) for number in result.text.split()]
    assert result.exit_reason == "aborted"
    assert len(processes) >= 2
    await until(lambda: not any(lives(number) for number in processes))  # killed, which the system does later


@pytest.mark.parametrize(("play", "category"), [("logged_out", "auth"), ("busy", "overloaded")])
async def test_what_it_says_of_its_failure_is_the_error(desk: Desk, play: str, category: str) -> None:
    result: Any = await Agent(desk.provider(play).model("sonnet")).spawn("Hello?").result
    assert (result.exit_reason, result.error.category) == ("crashed", category)
    assert result.cost == (0 if play == "logged_out" else 0.0123)
    assert result.usage.input_tokens == 3210


async def test_a_cli_that_is_missing_is_said_with_what_to_do() -> None:
    provider = ClaudeCodeProvider("/no/such/claude")
    result: Any = await Agent(provider.model("sonnet")).spawn("Hello?").result
    assert "Claude Code CLI '/no/such/claude' is not installed" in result.error.message
    assert "install it" in result.error.hint
