"""`dragoman dev`: agents of a hub work in worktrees of a git repository on this machine."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from dragoman.cli.options import DEFAULT_HUB
from dragoman.cli.runner import read_key
from dragoman.cli.terminal import examples, print_line, print_note

if TYPE_CHECKING:
    from dragoman.cli.dev.dev_spoke import DevSettings

commands = typer.Typer()
EPILOG = examples(
    ("dragoman dev", "the repository around this folder, for the hub on this machine"),
    ("dragoman dev --repository ~/shop --model anthropic/claude-sonnet-4-5", "another one, with its model"),
    ("dragoman dev --format claude-code -- claude --model sonnet", "Claude Code works in the worktrees"),
    ("dragoman keys create --owner me --scope chat --scope gateway --scope spoke --scope runner", "its key"),
)
KeyVariable: TypeAlias = Annotated[
    str,
    typer.Option(metavar="VAR", help="The variable that holds a key: chat, gateway, spoke, runner."),
]
Folder: TypeAlias = Annotated[Path, typer.Option(metavar="DIR", help="A folder in the repository.")]
WorktreeFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where worktrees are made; NAME.worktrees beside the repository."),
]
ModelName: TypeAlias = Annotated[
    str | None, typer.Option(help="The model of the agents; the hub's only one unless given.")
]
CommandFormatName: TypeAlias = Annotated[
    Literal["text", "json", "claude-code", "opencode"],
    typer.Option("--format", help="The input and output of the command, as for `dragoman runner`."),
]
DevSpokeId: TypeAlias = Annotated[
    str | None, typer.Option(help="The id of this process across restarts; a new one by default.")
]


@commands.command("dev", epilog=EPILOG)
def dev(
    *,
    command: list[str] = typer.Argument(
        None, metavar="[-- COMMAND...]", help="The program that runs as the agent."
    ),
    repository: Folder = Path(),
    model: ModelName = None,
    output_format: CommandFormatName = "text",
    hub: Annotated[str, typer.Option(envvar="DRAGOMAN_HUB", metavar="URL", help="The hub.")] = DEFAULT_HUB,
    key_env: KeyVariable = "DRAGOMAN_KEY",
    worktrees: WorktreeFolder = None,
    id: DevSpokeId = None,
    parallel: Annotated[int, typer.Option(min=1, help="Maximum number of agents at work.")] = 4,
    max_tasks: Annotated[int, typer.Option(min=1, help="Maximum number of worktrees of an owner.")] = 50,
    steps: Annotated[int, typer.Option(min=1, help="Maximum number of model calls of an answer.")] = 50,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option()] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="All output as JSON lines.")] = False,
) -> None:
    """Let agents of a hub work in worktrees of a git repository.

    Joins the hub as spoke and as runner. As spoke it serves coord.spawn (a worktree, a branch and a child
    session for a task, in which an agent begins at once), coord.status, coord.message, coord.diff,
    coord.merge and coord.remove. As runner it answers the child sessions. The agents' model requests go
    through the hub's /v1. Commands of the built-in agent can reach whatever this user can; destructive ones
    are blocked.

    Tasks are stored in the repository's .git/dragoman and found again after a crash. No worktree is removed
    unless asked for, and what is discarded stays in git.
    """
    key = read_key(key_env, log_level=log_level, log_json=log_json)
    from dragoman.cli.dev.dev_spoke import DevSettings  # late: --help needs none of it
    from dragoman.cli.dev.worktree_agent import WorktreeAgentSettings  # late: as above

    agents = WorktreeAgentSettings(hub=hub.rstrip("/"), key=key, model=model, steps=steps)
    hidden = frozenset({key_env, "DRAGOMAN_KEY"})
    settings = DevSettings(
        path=repository.absolute(),
        agents=agents.with_command(command or (), format=output_format, hidden=hidden),
        worktrees=None if worktrees is None else worktrees.absolute(),
        id=id,
        parallel=parallel,
        max_tasks=max_tasks,
    )
    serve(settings)


def serve(settings: DevSettings) -> None:
    """Serve until a signal arrives."""
    import uvloop  # late: --help needs none of it

    uvloop.run(run_dev(settings))


async def run_dev(settings: DevSettings) -> None:
    """Serve until a signal arrives, or the hub refuses for good."""
    import asyncio  # late: as above

    from dragoman.cli.dev.dev_spoke import serve_repository  # late: as above

    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with serve_repository(settings) as served:
        print_line(
            f"dragoman: {served.worktrees.root} serves coord.* as {served.spoke.id} at {settings.agents.hub}"
        )
        for id in served.restored:
            print_note(f"found again: session {id}")
        waiting = [
            asyncio.create_task(stopped.wait()),
            asyncio.create_task(served.spoke.finished()),
            asyncio.create_task(served.runner.finished()),
        ]
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        for task in done:
            task.result()
