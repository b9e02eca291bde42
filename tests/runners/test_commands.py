"""Commands as agents: plain text, Claude Code's stream, OpenCode's stream, and their end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.runners.client.command_agent import CommandAgent, CommandFormat, RunnerCommand
from tests.living import is_running
from tests.providers.stand_in_claude import SESSION
from tests.runners.stand_in_hub import Frame, StandInHub, final, running, text_of
from tests.waiting import until

CLAUDE = Path(__file__).parents[1] / "providers" / "stand_in_claude.py"
OPENCODE = """
import json, sys
def line(type, **fields):
    print(json.dumps({"type": type, "timestamp": 1, "sessionID": "ses_oc", **fields}), flush=True)
prompt = sys.stdin.read()
resumed = [each for each in sys.argv if each.startswith("--session=")]
line("step_start", part={"type": "step-start"})
state = {"status": "completed", "input": {"filePath": "a.txt"}, "output": "<file>one</file>"}
line("tool_use", part={"type": "tool", "callID": "call_1", "tool": "read", "state": state})
failed = {"status": "error", "input": {"command": "false"}, "error": "exit code 1"}
line("tool_use", part={"type": "tool", "callID": "call_2", "tool": "bash", "state": failed})
tokens = {"input": 10, "output": 5, "reasoning": 2, "cache": {"read": 100, "write": 3}}
line("step_finish", part={"reason": "tool-calls", "cost": 0.01, "tokens": tokens})
print("not json")
line("reasoning", part={"type": "reasoning", "text": "hm"})
line("text", part={"type": "text", "text": f"{prompt}: one. {resumed}"})
line("step_finish", part={"reason": "stop", "cost": 0.02, "tokens": tokens})
if "fail" in prompt:
    line("error", error={"name": "APIError", "data": {"message": "the model is away"}})
"""


def agent(*arguments: str, format: CommandFormat = "text", **more: Any) -> CommandAgent:
    return CommandAgent(RunnerCommand(arguments=arguments, format=format, **more))


def tools(frames: list[Frame]) -> list[tuple[Any, ...]]:
    return [
        (each["callId"], each["toolName"], each["status"], each.get("result", each.get("error")))
        for each in frames
        if each["type"] == "message.part.tool-update"
    ]


async def test_a_command_reads_the_prompt_and_its_output_is_the_answer() -> None:
    async with running(agent("tr", "a-z", "A-Z").answer) as hub:
        frames = await hub.ask("grüße")
    assert text_of(frames) == "GRüßE"
    assert final(frames)["reason"] == "end_turn"


async def test_a_command_may_answer_before_it_has_read_the_whole_prompt() -> None:
    prompt = "a" * 900_000  # more than pipes and their buffers take
    async with running(agent("tr", "a-z", "A-Z").answer) as hub:
        frames = await hub.ask(prompt)
    assert text_of(frames) == prompt.upper()


async def test_a_command_that_fails_ends_the_turn_with_its_last_words() -> None:
    async with running(agent("sh", "-c", "echo half; echo 'no such luck' >&2; exit 3").answer) as hub:
        frames = await hub.ask("try")
        assert text_of(frames) == "half\n"
        assert final(frames)["reason"] == "error"
        assert final(frames)["error"] == "sh ended with exit code 3: no such luck"
    async with running(agent("/no/such/program").answer) as hub:
        assert "cannot be started" in final(await hub.ask("try"))["error"]


async def test_a_command_knows_its_session_and_turn_and_not_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_KEY", "dgm_secret")
    command = agent("sh", "-c", 'echo "$DRAGOMAN_SESSION $DRAGOMAN_TURN [$HUB_KEY]"', hidden={"HUB_KEY"})
    async with running(command.answer) as hub:
        assert text_of(await hub.ask("who")) == "s t1 []\n"


async def test_a_command_may_have_the_whole_message_as_json() -> None:
    message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
    async with running(agent("cat", format="json").answer) as hub:
        await hub.prompt("hi", message=message)
        assert json.loads(text_of(await hub.ended()))["message"] == message


async def test_an_abort_ends_the_command_and_all_that_it_started(tmp_path: Path) -> None:
    script = f"sh -c 'echo $$ > {tmp_path}/child; echo begun; exec sleep 1000' & setsid sleep 1000 & wait"
    async with running(agent("sh", "-c", script).answer) as hub:
        await hub.prompt("wait")
        await hub.until(lambda: text_of(hub.frames["t1"]) == "begun\n")
        await hub.abort()
        assert final(await hub.ended())["reason"] == "canceled"
        child = int((tmp_path / "child").read_text())
        await until(lambda: not is_running(child))


async def claude(hub: StandInHub, text: str, turn: str = "t1") -> list[Frame]:
    message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": text}]}
    await hub.prompt(text, message=message, turn=turn)
    return await hub.ended(turn)


async def test_claude_code_shows_its_tools_while_they_run_and_continues_its_session(tmp_path: Path) -> None:
    variables = {"CLAUDE_PLAY": "answer", "CLAUDE_SEEN": str(tmp_path / "seen")}
    made = agent(sys.executable, str(CLAUDE), format="claude-code", variables=variables)
    async with running(made.answer) as hub:
        frames = await claude(hub, "/look @ it")
        again = await claude(hub, "again", "t2")
    assert final(frames)["reason"] == final(again)["reason"] == "end_turn"
    states = [(name, status) for _, name, status, _ in tools(frames)]
    assert states[:3] == [("Read", "pending"), ("Read", "running"), ("Read", "completed")]
    assert states[-1] == ("Bash", "error")
    assert "thinking" in [each["status"] for each in frames if each["type"] == "agentStatus"]
    assert final(frames)["usage"]["outputTokens"] == 40
    assert final(frames)["cost"] == 0.0123
    seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    arguments = [each["argv"] for each in seen]
    assert f"--resume={SESSION}" not in arguments[0]
    assert f"--resume={SESSION}" in arguments[1]


async def test_opencode_shows_its_tools_and_its_usage_and_continues_its_session() -> None:
    made = agent(sys.executable, "-c", OPENCODE, format="opencode")
    async with running(made.answer) as hub:
        frames = await hub.ask("look")
        again = await hub.ask("again", turn="t2")
        failed = await hub.ask("fail", turn="t3")
    assert text_of(frames) == "look: one. []"
    assert text_of(again) == "again: one. ['--session=ses_oc']"
    assert tools(frames) == [
        ("call_1", "read", "pending", None),
        ("call_1", "read", "running", None),
        ("call_1", "read", "completed", "<file>one</file>"),
        ("call_2", "bash", "pending", None),
        ("call_2", "bash", "running", None),
        ("call_2", "bash", "error", "exit code 1"),
    ]
    usage = e.Usage(226, 14, 240, reasoning_tokens=4, cached_input_tokens=200, cache_write_tokens=6)
    assert (final(frames)["usage"], final(frames)["cost"]) == (msgspec.to_builtins(usage), 0.03)
    assert (final(failed)["reason"], final(failed)["error"]) == ("error", "the model is away")
