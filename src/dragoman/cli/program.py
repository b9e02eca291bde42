"""The program `dragoman`: all commands, and how errors are printed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from dragoman.cli.terminal import examples, prepare_streams, print_error, reflow_help
from dragoman.errors import DragomanError
from dragoman.redaction import redact_log
from dragoman.version import version

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
TRACEBACK_VARIABLE = "DRAGOMAN_TRACEBACK"

EPILOG = examples(
    ("dragoman demo", "see a hub, a model and tools at work, without any key"),
    ("dragoman init", "write a dragoman.yaml for the models that this machine offers"),
    ("dragoman serve", "serve the hub that ./dragoman.yaml describes"),
    ("dragoman keys create --owner me", "create a key"),
    ("dragoman chat", "chat with the hub in the terminal"),
)
# The modules of the commands, and of the groups of commands. One is imported when it is used: a command line
# needs one of them, and `--help` all.
COMMANDS: Mapping[str, str] = {
    "init": "init.command",
    "serve": "serving.serve",
    "chat": "chat.command",
    "run": "runs",
    "check": "serving.check",
    "doctor": "doctor.command",
    "open": "open_console",
    "demo": "demo",
    "usage": "usage",
    "budgets": "system.budgets",
    "logs": "system.log_tail",
    "system": "system.status",
    "providers": "system.status",
    "models": "system.status",
    "agents": "system.status",
    "queue": "system.status",
    "mcp": "mcp",
    "spoke": "spoke",
    "dev": "dev.command",
    "runner": "runner",
}
GROUPS: Mapping[str, str] = {
    "keys": "access.keys",
    "tokens": "access.tokens",
    "secrets": "access.secrets",
    "ops": "ops",
    "runs": "runs",
    "calls": "calls",
    "approvals": "access.approvals",
    "policy": "access.policy",
    "servers": "serving.mcp_servers",
    "spokes": "spokes",
    "hosts": "hosts",
    "sessions": "sessions",
    "teams": "teams.command",
    "triggers": "triggers",
    "vault": "access.vault",
    "local": "local",
    "database": "database",
}
PANELS: Mapping[str, Sequence[str]] = {
    "Start": ("init", "serve", "chat", "run", "check", "doctor", "open", "demo", "local"),
    "See what a hub has and does": (
        *("usage", "budgets", "logs", "system", "providers", "models", "agents", "queue"),
        *("ops", "runs", "calls", "sessions", "servers", "spokes", "hosts"),
    ),
    "Connect other programs": ("mcp", "spoke", "dev", "runner"),
    "Decide who may do what": ("keys", "tokens", "secrets", "approvals", "policy"),
    "Teams": ("teams", "triggers", "vault"),
    "Data": ("database",),
}
MORE_OF_GROUPS: Mapping[str, Sequence[str]] = {
    "sessions": ("access.sharing",),
    "teams": ("teams.tasks", "teams.tail"),
}


def print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"dragoman {version()}")
        raise typer.Exit


def options(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """A self-hosted agent hub that connects chat and API clients to models and tools."""


def add_working_directory() -> None:
    """Let `module:name` find modules of the working directory too; installed ones take precedence."""
    with suppress(OSError):  # the folder may have been deleted
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)


@cache
def build_program(name: str = "") -> typer.Typer:
    """Return a program with the command or group of this name; with all of them if none has it.

    Typer reads the parameters of each command that it knows, which takes longer than most commands do.
    """
    program = typer.Typer(
        name="dragoman",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=EPILOG,
    )
    # Typer makes a program without groups, and with one command, that command: the callback keeps it a group.
    program.callback()(options)
    panels = {each: panel for panel, names in PANELS.items() for each in names}
    for each in (name,) if name in COMMANDS or name in GROUPS else (*COMMANDS, *GROUPS):
        if each in COMMANDS:
            commands: typer.Typer = load(COMMANDS[each]).commands
            chosen = [one for one in commands.registered_commands if one.name == each]
            for one in chosen:
                one.rich_help_panel = panels[each]
            program.registered_commands += chosen
        else:
            program.add_typer(load_group(each), name=each, rich_help_panel=panels[each])
    reflow_help(program)
    return program


@cache
def load_group(name: str) -> typer.Typer:
    """Return a group with all its commands."""
    group: typer.Typer = getattr(load(GROUPS[name]), name)
    for module in MORE_OF_GROUPS.get(name, ()):
        group.registered_commands += load(module).commands.registered_commands
    reflow_help(group)
    return group


def load(module: str) -> Any:
    """Import a module of the command line."""
    return import_module(f"dragoman.cli.{module}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Exits with 0 on success, 1 on failure, 2 on a usage error."""
    prepare_streams()
    add_working_directory()
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        build_program(words[0] if words else "")(args=words)
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
