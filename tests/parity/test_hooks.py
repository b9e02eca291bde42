"""Hooks before and after calls and before a prompt."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import (
    Agent,
    Block,
    Continue,
    Hooks,
    Modify,
    PostToolUse,
    PreToolUse,
    UserPromptSubmit,
    audit_log,
    confirm_destructive,
    operation,
    path_guard,
    rate_limit,
)
from tests.parity.upstream import call, openai_model, text

made: list[str] = []


@operation(namespace="calculate")
def divide(a: float, b: float) -> float:
    """Divide."""
    made.append(f"{a}/{b}")
    return a / b


@operation(namespace="disk")
def delete(path: str) -> str:
    """Delete a file."""
    made.append(path)
    return f"{path} is gone"


@operation(namespace="shell")
def bash(command: str) -> str:
    """Run a command."""
    made.append(command)
    return "done"


@pytest.fixture(autouse=True)
def _fresh() -> None:
    made.clear()


async def output_of_call(hooks: Hooks, name: str, arguments: dict[str, Any]) -> str:
    """What the model is told of a call that it makes."""
    async with openai_model(call(name, arguments), text("So.")) as (up, model):
        agent = Agent(model, operations=[divide, delete, bash], hooks=hooks)
        result = await agent.spawn("Do it.").result
    assert result.exit_reason == "success"
    return str(up.bodies[1]["messages"][-1]["content"])


async def test_a_call_is_blocked_by_the_first_hook_that_says_so_and_no_other_is_asked() -> None:
    called: list[str] = []
    hooks = Hooks()

    @hooks.pre_tool_use
    async def first(event: PreToolUse) -> Block | Continue:
        called.append("first")
        return Block("Division by zero prevented") if event.input.get("b") == 0 else Continue()

    @hooks.pre_tool_use
    def second(event: PreToolUse) -> None:
        called.append(f"second of {event.operation}")

    assert "Division by zero prevented" in await output_of_call(hooks, "calculate_divide", {"a": 1, "b": 0})
    assert (called, made) == (["first"], [])
    assert await output_of_call(hooks, "calculate_divide", {"a": 1, "b": 2}) == "0.5"
    assert called == ["first", "first", "second of calculate.divide"]


async def test_a_hook_may_change_the_input_of_a_call() -> None:
    hooks = Hooks().on("pre_tool_use", lambda event: Modify({**event.input, "b": 4}, "halved"))
    assert await output_of_call(hooks, "calculate_divide", {"a": 1, "b": 2}) == "0.25"
    assert made == ["1.0/4.0"]


async def test_a_hook_after_a_call_adds_to_what_the_model_is_told() -> None:
    log: list[str] = []
    hooks = Hooks()

    async def enhanced(event: PostToolUse) -> Modify:
        log.append(f"{event.tool} {event.input} -> {event.output}")
        return Modify(output={"result": event.output, "unit": "kg"}, reason="Added metadata")

    hooks.on("post_tool_use", enhanced)
    assert await output_of_call(hooks, "calculate_divide", {"a": 1, "b": 2}) == '{"result":0.5,"unit":"kg"}'
    assert log == ["calculate_divide {'a': 1, 'b': 2} -> 0.5"]


@pytest.mark.parametrize(
    ("decision", "word", "sent"),
    [
        (Modify("What is 2 + 2?"), "success", ["What is 2 + 2?"]),
        (Block("no sums"), "aborted", []),
        (None, "success", ["2 + 2?"]),
    ],
)
async def test_a_prompt_is_changed_or_blocked_before_it_goes_anywhere(
    decision: Any, word: str, sent: list[str]
) -> None:
    heard: list[str] = []

    def hook(event: UserPromptSubmit) -> Any:
        heard.append(event.text)
        return decision

    async with openai_model(text("4.")) as (up, model):
        result = await Agent(model, hooks=Hooks().on("user_prompt_submit", hook)).spawn("2 + 2?").result
    assert (result.exit_reason, heard) == (word, ["2 + 2?"])
    assert [body["messages"][-1]["content"] for body in up.bodies] == sent
    assert result.stopped_by == ("no sums" if word == "aborted" else None)


async def test_paths_destructive_commands_and_rates_have_guards_that_are_ready(tmp_path: Any) -> None:
    hooks = Hooks()
    hooks.on("pre_tool_use", path_guard(roots=[tmp_path]), match="disk.*")
    hooks.on("pre_tool_use", confirm_destructive(action="block"), match="shell.*")
    hooks.on("pre_tool_use", rate_limit("1/minute", per=["owner"]))
    assert "outside the allowed folders" in await output_of_call(
        hooks, "disk_delete", {"path": f"{tmp_path}/../other"}
    )
    assert "deletes files" in await output_of_call(hooks, "shell_bash", {"command": "rm -rf /"})
    assert made == []
    assert await output_of_call(hooks, "calculate_divide", {"a": 1, "b": 2}) == "0.5"
    assert "1 calls in 60 seconds" in await output_of_call(hooks, "shell_bash", {"command": "ls"})


async def test_calls_are_written_into_an_audit_log(tmp_path: Any) -> None:
    log = tmp_path / "audit.jsonl"
    await output_of_call(audit_log(log), "calculate_divide", {"a": 1, "b": 2})
    written = log.read_text()
    assert "calculate.divide" in written
    assert '"run"' in written
