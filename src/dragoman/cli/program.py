"""The program `dragoman`: all commands, and how errors are printed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import (
    calls,
    console_link,
    database,
    demo,
    hosts,
    local,
    mcp,
    ops,
    runner,
    runs,
    sessions,
    spoke,
    spokes,
    triggers,
    usage,
)
from dragoman.cli.access import approvals, keys, policy, secrets, sharing, tokens, vault
from dragoman.cli.chat import command
from dragoman.cli.dev import command as dev_command
from dragoman.cli.doctor import command as doctor_command
from dragoman.cli.init import command as init_command
from dragoman.cli.serving import check, serve, servers
from dragoman.cli.system import budgets, log_tail, state
from dragoman.cli.teams import command as teams_command
from dragoman.cli.teams import tail, tasks
from dragoman.cli.terminal import examples, prepare_streams, print_error, reflow_help
from dragoman.errors import DragomanError
from dragoman.redaction import redact_log
from dragoman.version import version

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
TRACEBACK_VARIABLE = "DRAGOMAN_TRACEBACK"

cli = typer.Typer(
    name="dragoman",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        ("dragoman demo", "see a hub, a model and tools at work, without any key"),
        ("dragoman init", "write a dragoman.yaml for the models that this machine offers"),
        ("dragoman serve", "serve the hub that ./dragoman.yaml describes"),
        ("dragoman keys create --owner me", "create a key"),
        ("dragoman chat", "chat with the hub in the terminal"),
    ),
)
cli.command("init", epilog=init_command.EPILOG)(init_command.init)
cli.command("serve", epilog=serve.EPILOG)(serve.serve)
cli.command("chat", epilog=command.EPILOG)(command.chat)
cli.command("run", epilog=runs.EPILOG)(runs.run)
cli.command("check", epilog=check.EPILOG)(check.check)
cli.command("doctor", epilog=doctor_command.EPILOG)(doctor_command.doctor)
cli.command("open", epilog=console_link.EPILOG)(console_link.open_console)
cli.command("demo", epilog=demo.EPILOG)(demo.demo)
cli.command("usage", epilog=usage.EPILOG)(usage.usage)
cli.command("budgets", epilog=budgets.EPILOG)(budgets.budgets)
cli.command("logs", epilog=log_tail.EPILOG)(log_tail.logs)
cli.command("system", epilog=state.SYSTEM_EPILOG)(state.system)
cli.command("providers", epilog=state.PROVIDERS_EPILOG)(state.providers)
cli.command("models", epilog=state.MODELS_EPILOG)(state.models)
cli.command("agents", epilog=state.AGENTS_EPILOG)(state.agents)
cli.command("queue", epilog=state.QUEUE_EPILOG)(state.queue)
cli.command("mcp", epilog=mcp.EPILOG)(mcp.mcp)
cli.command("spoke", epilog=spoke.EPILOG)(spoke.spoke)
cli.command("dev", epilog=dev_command.EPILOG)(dev_command.dev)
cli.command("runner", epilog=runner.EPILOG)(runner.runner)

GROUPS = {
    "keys": keys.keys,
    "tokens": tokens.tokens,
    "secrets": secrets.secrets,
    "ops": ops.ops,
    "runs": runs.runs,
    "calls": calls.calls,
    "approvals": approvals.approvals,
    "policy": policy.policy,
    "servers": servers.servers,
    "spokes": spokes.spokes,
    "hosts": hosts.hosts,
    "sessions": sessions.sessions,
    "teams": teams_command.teams,
    "triggers": triggers.triggers,
    "vault": vault.vault,
    "local": local.local,
    "database": database.database,
}
sessions.sessions.registered_commands.extend(sharing.sharing.registered_commands)
for commands in (tasks.tasks, tail.tail_commands):
    teams_command.teams.registered_commands.extend(commands.registered_commands)
for name, group in GROUPS.items():
    cli.add_typer(group, name=name)
for app in (cli, *GROUPS.values()):
    reflow_help(app)


def print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"dragoman {version()}")
        raise typer.Exit


@cli.callback()
def options(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """An agent hub you own: one process between people, models and tools."""


def add_working_directory() -> None:
    """Let `module:name` find modules of the working directory too; installed ones take precedence."""
    with suppress(OSError):  # the folder may have been deleted
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)


def narrow_to(name: str) -> typer.Typer:
    """Return a program with one of the commands or groups; with all where there is none of this name.

    Typer reads the parameters of each command that it knows, which takes longer than most commands do.
    """
    found = [each for each in cli.registered_commands if each.name == name]
    groups = [each for each in cli.registered_groups if each.name == name]
    if not found and not groups:
        return cli
    narrowed = copy(cli)
    # Typer makes a program without groups, and with one command, that command: the callback keeps it a group.
    narrowed.registered_commands, narrowed.registered_groups = found, groups
    return narrowed


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Exits with 0 on success, 1 on failure, 2 on a usage error."""
    prepare_streams()
    add_working_directory()
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        narrow_to(words[0] if words else "")(args=words)
    except DragomanError as error:
        print_error(redact_log(error.message), hint=error.hint)
        raise SystemExit(EXIT_FAILED) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_FAILED) from None
    except OSError as error:
        print_error(f"{error.filename or 'the system'}: {error.strerror or error}")
        raise SystemExit(EXIT_FAILED) from None
    except Exception as error:  # printed on one line, or with its traceback on request
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        print_error(
            redact_log(f"internal error: {type(error).__name__}: {error}"),
            hint=f"{TRACEBACK_VARIABLE}=1 shows where",
        )
        raise SystemExit(EXIT_FAILED) from None
