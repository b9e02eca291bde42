"""Help texts have examples, and errors say what to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from typer.models import CommandInfo

from dragoman.cli import calls, database, hosts, local, ops, program, runs, sessions, spokes, triggers
from dragoman.cli.access import approvals, keys, policy, secrets, tokens, vault
from dragoman.cli.serving import mcp_servers
from dragoman.cli.teams import command as teams_command
from tests.cli.conftest import Run
from tests.cli.program import run as run_apart

APPS: dict[str, typer.Typer] = {
    "": program.build_program(),
    "keys": keys.keys,
    "tokens": tokens.tokens,
    "secrets": secrets.secrets,
    "ops": ops.ops,
    "runs": runs.runs,
    "calls": calls.calls,
    "approvals": approvals.approvals,
    "policy": policy.policy,
    "servers": mcp_servers.servers,
    "spokes": spokes.spokes,
    "hosts": hosts.hosts,
    "sessions": sessions.sessions,
    "teams": teams_command.teams,
    "triggers": triggers.triggers,
    "local": local.local,
    "vault": vault.vault,
    "database": database.database,
}


def commands() -> Iterator[tuple[str, CommandInfo]]:
    for group, app in APPS.items():
        for command in app.registered_commands:
            yield f"{group} {command.name}".strip(), command


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_and_shows_examples_of_itself(name: str, run: Run) -> None:
    command = COMMANDS[name]
    assert command.help
    result = run(*name.split(), "--help")
    assert result.code == 0
    assert "Examples" in result.out
    assert f"dragoman {name}" in result.out
    assert " ".join(result.out.split()).count(command.help.split(".")[0]) == 1


def test_the_program_says_its_version(run: Run) -> None:
    result = run("--version")
    assert (result.code, result.out.split()[0], result.err) == (0, "dragoman", "")


def test_what_is_asked_wrongly_ends_with_2_and_no_traceback(run: Run) -> None:
    for wrong in (
        ["nope"],
        ["keys", "create"],
        ["serve", "--port", "99999"],
        ["sessions", "list", "--limit", "0"],
    ):
        result = run(*wrong)
        assert (result.code, result.out) == (2, "")
        assert "Traceback" not in result.err


def test_without_a_command_it_shows_what_there_is(run: Run) -> None:
    result = run()
    for name in (*(command.split()[0] for command in COMMANDS), "keys", "local"):
        assert name in result.out + result.err


def test_an_error_of_the_program_itself_is_one_line_unless_asked_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall() -> None:
        raise RuntimeError("fell over")

    monkeypatch.setattr(program, "build_program", lambda _: lambda **_: fall())
    result = run("demo")
    assert result.code == 1
    assert "fell over" in result.err
    assert "Traceback" not in result.err
    assert "DRAGOMAN_TRACEBACK=1" in result.err


def test_the_program_runs_as_a_module() -> None:
    assert run_apart("--version").out.startswith("dragoman ")


def test_a_command_is_built_without_the_others() -> None:
    def names(word: str) -> set[str]:
        group = typer.main.get_group(program.build_program(word))
        return set(group.commands)

    everything = names("")
    assert {"serve", "keys"} <= everything
    assert (names("serve"), names("keys")) == ({"serve"}, {"keys"})
    assert names("srve") == names("--help") == everything
