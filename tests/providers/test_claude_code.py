"""Claude Code as a provider: command line, environment, stream, cleanup.

The CLI is a stand-in, `stand_in_claude.py`, that speaks its stream from a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from dragoman import events as e
from dragoman.errors import ProviderError
from dragoman.fold import Fold
from dragoman.messages import Message, ReasoningPart, TextPart, ToolPart
from dragoman.model_request import ModelRequest, Tool
from dragoman.providers.claude_code.provider import ClaudeCodeProvider
from dragoman.providers.error_classification import classify_error, is_transient_error
from tests.stopwatch import Stopwatch
from tests.waiting import until

from .servers import LIMIT
from .stand_in_claude import SESSION

STAND_IN = Path(__file__).with_name("stand_in_claude.py")
MARK = {"claude-code": {"sessionId": SESSION, "provider": "claude-code"}}


class Cli:
    """The stand-in, as an executable that plays one part."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "claude"
        self.seen_at = folder / "seen.jsonl"
        self.path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{STAND_IN}" "$@"\n')
        self.path.chmod(0o755)

    def provider(self, play: str, **ways: Any) -> ClaudeCodeProvider:
        collected = {"CLAUDE_PLAY": play, "CLAUDE_SEEN": str(self.seen_at), "OPENAI_API_KEY": "sk-other"}
        collected["DISABLE_TELEMETRY"] = "1"
        return ClaudeCodeProvider(str(self.path), environ={**os.environ, **collected}, **ways)

    @property
    def seen(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.seen_at.read_text().splitlines()]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def user(text: str) -> Message:
    return Message("u", "user", (TextPart(text),))


def ask(*messages: Message, **fields: Any) -> ModelRequest:
    return ModelRequest(model="sonnet", messages=messages or (user("How long is it?"),), **fields)


async def collect(provider: ClaudeCodeProvider, request: ModelRequest | None = None) -> list[e.Event]:
    with anyio.fail_after(LIMIT):
        return [event async for batch in provider.stream(request or ask()) for event in batch]


async def fail(provider: ClaudeCodeProvider, request: ModelRequest | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as raised:
        await collect(provider, request)
    return raised.value


def folded(collected: Sequence[e.Event]) -> Message:
    """The message that the events make; it fails where they break the grammar of a run."""
    fold = Fold()
    fold.add([e.Start("a"), e.StartStep(), *collected, e.Finish("stop")])
    return fold.message()


async def test_a_run_comes_out_as_reasoning_text_and_calls_with_outputs(cli: Cli) -> None:
    collected = await collect(cli.provider("answer"))

    _, thought, look, read, bash, found = folded(collected).parts
    assert thought == ReasoningPart(
        "A file.", "done", {**MARK, "anthropic": {"signature": "sig", "provider": "claude-code"}}
    )
    assert look == TextPart("I look at it.", "done", MARK)
    assert isinstance(read, ToolPart)
    assert isinstance(bash, ToolPart)
    assert (read.name, read.input, read.output) == ("Read", {"file_path": "/a"}, "one\ntwo")
    assert (bash.name, bash.state, bash.error_text) == ("Bash", "output-error", "no such command")
    assert read.provider_executed
    assert bash.provider_executed
    assert found == TextPart("Two lines.", "done", MARK)


async def test_text_arrives_piece_by_piece(cli: Cli) -> None:
    collected = await collect(cli.provider("answer"))

    assert [event.delta for event in collected if isinstance(event, e.TextDelta)] == [
        "I look ",
        "at it.",
        "Two lines.",
    ]


async def test_the_finish_tells_usage_cost_model_and_session(cli: Cli) -> None:
    *_, finish = await collect(cli.provider("answer"))

    assert finish == e.FinishStep(
        "stop",
        e.Usage(
            input_tokens=3210,
            output_tokens=40,
            total_tokens=3250,
            cached_input_tokens=3000,
            cache_write_tokens=200,
        ),
        "claude-sonnet-5",
        "claude-code",
        provider_metadata={"claude-code": {"sessionId": SESSION, "costUsd": 0.0123, "turns": 2}},
    )


async def test_whole_messages_and_noise_between_the_lines_are_read_too(cli: Cli) -> None:
    collected = await collect(cli.provider("plain"))

    assert folded(collected).parts[1] == TextPart("Whole.", "done", MARK)


async def test_the_command_line_says_how_it_is_to_run(cli: Cli, tmp_path: Path) -> None:
    provider = cli.provider(
        "plain",
        permission_mode="acceptEdits",
        agent="engine-worker",
        cwd=tmp_path,
        allowed_tools=["Read", "Bash(git log:*)"],
        max_turns=7,
    )
    options = {"reasoning_effort": "high", "thinking": {"type": "enabled", "budget_tokens": 5000}}

    await collect(provider, ask(instructions="-Be brief", options={**options, "max_budget_usd": 0.5}))

    *argv, paper = cli.seen[0]["argv"]
    assert argv == [
        "--print",
        "--output-format=stream-json",
        "--input-format=stream-json",
        "--verbose",
        "--include-partial-messages",
        "--model=sonnet",
        "--permission-mode=acceptEdits",
        "--agent=engine-worker",
        "--allowedTools=Read,Bash(git log:*)",
        "--max-turns=7",
        "--max-budget-usd=0.5",
        "--effort=high",
        "--max-thinking-tokens=5000",
    ]
    assert paper.startswith("--append-system-prompt-file=")
    assert cli.seen[0]["files"] == ["-Be brief"]
    assert not await anyio.Path(paper.partition("=")[2]).exists()
    assert Path(cli.seen[0]["cwd"]) == tmp_path


async def test_the_question_goes_in_as_a_line_and_other_keys_stay_out(cli: Cli) -> None:
    await collect(cli.provider("plain"))

    (seen,) = cli.seen
    assert seen["told"] == [
        {
            "type": "user",
            "session_id": "",
            "message": {"role": "user", "content": [{"type": "text", "text": "How long is it?"}]},
            "parent_tool_use_id": None,
        }
    ]
    assert "OPENAI_API_KEY" not in seen["environ"]
    assert "DISABLE_TELEMETRY" in seen["environ"]
    assert "HOME" in seen["environ"]


async def test_the_next_question_goes_on_with_the_session(cli: Cli) -> None:
    provider = cli.provider("answer")
    message = folded(await collect(provider))

    await collect(provider, ask(user("How long is it?"), message, user("And b?")))

    assert f"--resume={SESSION}" in cli.seen[1]["argv"]
    assert cli.seen[1]["told"][0]["message"]["content"] == [{"type": "text", "text": "And b?"}]


async def test_messages_of_other_providers_are_sent_as_text(cli: Cli) -> None:
    call = ToolPart("tool-add", "c", "output-available", input={"a": 1}, output=3)
    other = Message("a", "assistant", (TextPart("Four."), call))

    await collect(cli.provider("plain"), ask(user("2+2?"), other, user("Sure?")))

    before, now = cli.seen[0]["told"][0]["message"]["content"]
    assert before["text"].endswith(
        'User: 2+2?\n\nAssistant: Four.\n\nAssistant called add with {"a":1} and got: 3\n\nNew message:'
    )
    assert now == {"type": "text", "text": "Sure?"}
    assert not any("--resume" in argument for argument in cli.seen[0]["argv"])


async def test_a_session_that_the_cli_has_lost_is_told_again(cli: Cli) -> None:
    earlier = Message("a", "assistant", (TextPart("Four.", "done", MARK),))

    collected = await collect(cli.provider("lost"), ask(user("2+2?"), earlier, user("Sure?")))

    assert folded(collected).parts[1] == TextPart("Whole.", "done", MARK)
    assert ["--resume" in " ".join(seen["argv"]) for seen in cli.seen] == [True, False]
    assert "Four." in cli.seen[1]["told"][0]["message"]["content"][0]["text"]


@pytest.mark.promise("claude-code-abort")
async def test_an_abort_ends_the_process_and_all_it_started_within_100_ms(cli: Cli) -> None:
    took: list[float] = []
    for _ in range(5):
        pids: list[int] = []
        with anyio.fail_after(LIMIT):
            async with aclosing(cli.provider("hang").stream(ask())) as answer:
                async for batch in answer:
                    words = "".join(event.delta for event in batch if isinstance(event, e.TextDelta))
                    if words:
                        pids = [int(word) for word in words.split()]
                        break
                watch = Stopwatch()
            took.append(watch.seconds())
            assert len(pids) == 3
            await until(partial(_are_gone, pids))  # killed, which the system does when it has a processor
    assert min(took) < 0.1  # the best is its own: others wait for what else the machine does


def _are_gone(pids: Sequence[int]) -> bool:
    return not any(map(_lives, pids))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.promise("claude-code-abort")
def test_nothing_of_it_survives_a_program_that_is_killed(cli: Cli) -> None:
    asking = f"""
import asyncio, os
from dragoman import Agent, ClaudeCodeProvider
async def main():
    environ = {{**os.environ, "CLAUDE_PLAY": "hang", "CLAUDE_SEEN": {str(cli.seen_at)!r}}}
    run = Agent(ClaudeCodeProvider({str(cli.path)!r}, environ=environ).model()).spawn("?")
    async for event in run.events():
        if event.type == "text-delta":
            print(event.delta, flush=True)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", asking], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pids = [int(word) for word in program.stdout.readline().split()]
        assert len(pids) == 3
        program.kill()
    deadline = time.monotonic() + LIMIT
    while any(map(_lives, pids)):
        assert time.monotonic() < deadline, "something of it lives on"
        time.sleep(0.01)


async def test_a_missing_cli_is_an_error_that_says_what_to_do() -> None:
    error = await fail(ClaudeCodeProvider("no-such-claude"))

    assert error.message == "the Claude Code CLI 'no-such-claude' is not installed"
    assert error.hint is not None
    assert "install it" in error.hint
    assert not error.transient


async def test_a_missing_folder_is_not_taken_for_a_missing_cli(cli: Cli, tmp_path: Path) -> None:
    error = await fail(cli.provider("plain", cwd=tmp_path / "gone"))

    assert "cannot be started in" in error.message


async def test_a_cli_without_a_login_is_an_auth_error_and_its_words_are_no_answer(cli: Cli) -> None:
    collected: list[e.Event] = []
    error: ProviderError | None = None
    try:
        async for batch in cli.provider("logged_out").stream(ask()):
            collected += batch
    except ProviderError as raised:
        error = raised

    assert collected == []
    assert error is not None
    assert classify_error(error) == "auth"
    assert not is_transient_error(error)
    assert error.hint is not None
    assert "log in" in error.hint


async def test_an_overloaded_api_is_transient(cli: Cli) -> None:
    error = await fail(cli.provider("busy"))

    assert (error.category, error.transient, error.upstream_status) == ("overloaded", True, 529)


async def test_its_last_turn_is_a_finish_that_says_so_and_leaves_no_call_open(cli: Cli) -> None:
    collected = await collect(cli.provider("exhausted"))

    assert isinstance(collected[-1], e.FinishStep)
    assert collected[-1].finish_reason == "max-steps"
    (call,) = (part for part in folded(collected).parts if isinstance(part, ToolPart))
    assert call.state == "output-error"


async def test_the_notice_on_budgets_names_the_model_option_that_limits_them() -> None:
    assert "set the model option max_budget_usd" in ClaudeCodeProvider().budget_notice


async def test_its_own_budget_is_an_error_that_nobody_tries_again(cli: Cli) -> None:
    error = await fail(cli.provider("spent"))

    assert (error.category, error.transient) == ("rate_limit", False)
    assert "Reached maximum budget ($0.01)" in error.message


async def test_an_early_end_tells_its_last_words_without_keys(cli: Cli) -> None:
    error = await fail(cli.provider("crash"))

    assert error.message == (
        "Claude Code ended with exit code 3 without a result: TypeError: cannot read ANTHROPIC key ***"
    )
    assert not error.transient


async def test_a_message_that_was_begun_anew_leaves_nothing_open(cli: Cli) -> None:
    collected = await collect(cli.provider("again"))

    texts = [part.text for part in folded(collected).parts if isinstance(part, TextPart)]
    assert texts == ["Hal", "Hello"]


async def test_tools_and_options_without_a_word_are_named() -> None:
    provider = ClaudeCodeProvider()
    tool = Tool("add", "Adds.", {"type": "object"})

    assert provider.check(ask(tools=[tool], options={"temperature": 1, "effort": "low"})) == [
        "temperature",
        "tools",
    ]
