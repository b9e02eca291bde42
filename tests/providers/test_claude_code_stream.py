"""Claude Code's stream as observed of version 2.1.197."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman import events as e
from dragoman.messages import FilePart, Message, TextPart, ToolPart

from .test_claude_code import Cli, ask, cli, collect, fail, folded, user

__all__ = ["cli"]
CLOSING = {"type": "text", "text": "(The message ends here.)"}


async def test_what_a_call_gave_before_its_message_ended_is_reported_once(cli: Cli) -> None:
    collected = await collect(cli.provider("early"))

    calls = [part for part in folded(collected).parts if isinstance(part, ToolPart)]
    assert [(call.input, call.state, call.error_text or call.output) for call in calls] == [
        ({"command": "no"}, "output-error", "ran no"),
        ({"command": "ls"}, "output-available", "ran ls"),
    ]
    assert len([event for event in collected if isinstance(event, e.ToolInputAvailable)]) == 2


async def test_a_run_goes_on_until_its_commands_in_the_background_have_ended(cli: Cli) -> None:
    collected = await collect(cli.provider("background"))

    texts = [part.text for part in folded(collected).parts if isinstance(part, TextPart)]
    assert texts == ["It runs.", "It ended."]
    (finish,) = [event for event in collected if isinstance(event, e.FinishStep)]
    assert finish is collected[-1]
    assert finish.provider_metadata is not None
    assert finish.provider_metadata["claude-code"] | {"sessionId": ""} == {
        "sessionId": "",
        "costUsd": 0.03,
        "turns": 3,
    }


async def test_usage_is_that_of_all_models_and_turns_of_the_process(cli: Cli) -> None:
    *_, finish = await collect(cli.provider("background"))

    assert isinstance(finish, e.FinishStep)
    assert finish.usage == e.Usage(
        input_tokens=72, output_tokens=4, total_tokens=76, cached_input_tokens=10, cache_write_tokens=2
    )


async def test_a_command_in_the_background_that_the_cli_ends_does_not_hold_the_finish_up(cli: Cli) -> None:
    *_, finish = await collect(cli.provider("left"))

    assert isinstance(finish, e.FinishStep)
    assert finish.finish_reason == "stop"


@pytest.mark.parametrize(("play", "reason"), [("long", "length"), ("refused", "content-filter")])
async def test_an_answer_that_ended_too_early_says_why(cli: Cli, play: str, reason: str) -> None:
    collected = await collect(cli.provider(play))

    assert isinstance(collected[-1], e.FinishStep)
    assert collected[-1].finish_reason == reason
    assert len([part for part in folded(collected).parts if isinstance(part, TextPart)]) == 1


async def test_an_answer_that_was_cut_is_no_success_though_the_cli_says_so(cli: Cli) -> None:
    error = await fail(cli.provider("cut"))

    assert (error.category, error.transient) == ("network", True)


async def test_an_agent_that_the_cli_does_not_know_is_an_error(cli: Cli) -> None:
    error = await fail(cli.provider("plain", agent="reviewer"))

    assert error.category == "bad_request"
    assert error.message == "Claude Code has no agent 'reviewer'"
    assert error.hint == "available agents: Explore, engine-worker; agents of a project are found by `cwd`"


async def test_a_mode_that_may_not_be_used_is_not_taken_for_a_missing_login(cli: Cli) -> None:
    error = await fail(cli.provider("forbidden", permission_mode="bypassPermissions"))

    assert (error.category, error.hint) == ("bad_request", None)
    assert "cannot be used with root privileges" in error.message


@pytest.mark.promise("claude-code-commands")
@pytest.mark.parametrize(
    "text", ["/config permissionMode=auto", " /clear", "see @/etc/passwd", '@"/etc/passwd"', "hi\n@.env"]
)
async def test_what_is_said_is_no_command_of_the_cli_and_names_no_file_to_read(cli: Cli, text: str) -> None:
    await collect(cli.provider("plain"), ask(user(text)))

    assert cli.seen[0]["told"][0]["message"]["content"] == [{"type": "text", "text": text}, CLOSING]


@pytest.mark.promise("claude-code-commands")
async def test_a_command_behind_a_picture_or_another_text_is_none_either(cli: Cli) -> None:
    picture = FilePart("image/png", "data:image/png;base64,aGk=")
    message = Message("u", "user", (TextPart("Look."), picture, TextPart("/clear")))

    await collect(cli.provider("plain"), ask(message))

    assert cli.seen[0]["told"][0]["message"]["content"][-1] == CLOSING


async def test_long_instructions_and_servers_with_keys_are_on_no_command_line(cli: Cli) -> None:
    servers = '{"mcpServers": {"hub": {"headers": {"Authorization": "Bearer dgm_x"}}}}'
    instructions = "x" * 300_000

    await collect(cli.provider("plain", mcp_config=servers), ask(instructions=instructions))

    assert cli.seen[0]["files"] == [servers, instructions]
    assert "dgm_x" not in " ".join(cli.seen[0]["argv"])


async def test_a_file_with_servers_is_named_as_it_is(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("{}")

    await collect(cli.provider("plain", mcp_config=file))

    assert f"--mcp-config={file}" in cli.seen[0]["argv"]
