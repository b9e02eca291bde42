"""`dragoman runner`: a command on this machine answers the sessions of a hub."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from dragoman.cli.options import DEFAULT_HUB
from dragoman.cli.terminal import examples, print_line, print_note, use_json_lines

if TYPE_CHECKING:
    from dragoman.cli.logging_setup import Level
    from dragoman.runners.client.runner import Runner

commands = typer.Typer()
EPILOG = examples(
    ("dragoman runner -- tr a-z A-Z", "a new session, answered by a program: prompt in, text out"),
    ("dragoman runner --session s1 -- python my_agent.py", "the session s1, made if there is none"),
    (
        "dragoman runner --session s1 --format claude-code -- claude --model sonnet",
        "by Claude Code: the flags of its event stream are added",
    ),
    (
        "dragoman runner --session s1 --format opencode -- opencode run",
        "by OpenCode, likewise",
    ),
    (
        'curl $HUB/api/sessions/s1/chat -H "Authorization: Bearer $KEY" -d \'{"messages": [...]}\'',
        "ask it, as useChat does",
    ),
)

Sessions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--session", metavar="ID", help="A session to answer; may be repeated. None: a new one."),
]
KeyVariable: TypeAlias = Annotated[
    str,
    typer.Option(metavar="VAR", help="The variable that holds a key with the scope runner."),
]
OutputFormat: TypeAlias = Annotated[
    Literal["text", "json", "claude-code", "opencode"],
    typer.Option(
        "--format",
        help="text: the prompt on stdin, the answer on stdout. json: the prompt as JSON, with all of the"
        " message. claude-code, opencode: the event streams of these programs, with their tool calls.",
    ),
]


@commands.command("runner", epilog=EPILOG)
def runner(
    *,
    command: list[str] = typer.Argument(..., metavar="-- COMMAND...", help="What answers a prompt."),
    session: Sessions = None,
    output_format: OutputFormat = "text",
    hub: Annotated[str, typer.Option(envvar="DRAGOMAN_HUB", metavar="URL", help="The hub.")] = DEFAULT_HUB,
    key_env: KeyVariable = "DRAGOMAN_KEY",
    parallel: Annotated[int, typer.Option(min=1, help="Maximum number of simultaneous answers.")] = 4,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option()] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="All output as JSON lines.")] = False,
) -> None:
    """Answer sessions of a hub by a command on this machine.

    The command is started for each prompt, in this folder, without a shell. It finds the ids of the session
    and the turn in DRAGOMAN_SESSION and DRAGOMAN_TURN; the variable with the key is not passed on. If its
    exit code is not 0, the answer ends with an error that quotes the end of its stderr. When the
    answer is stopped, the command and all that it started are ended.

    What it printed is sent again if the connection is lost, and nothing twice. Ctrl-C or SIGTERM ends the
    runner and its answers. The key needs the scope runner, and chat to make sessions.
    """
    import uvloop  # late: --help needs none of these

    from dragoman.runners.client.command_agent import CommandAgent, RunnerCommand  # late: as above
    from dragoman.runners.client.runner import Runner, RunnerSettings  # late: as above

    key = read_key(key_env, log_level=log_level, log_json=log_json)
    agent = CommandAgent(
        RunnerCommand(arguments=command, format=output_format, hidden=frozenset({key_env, "DRAGOMAN_KEY"}))
    )

    async def work() -> None:
        sessions = await prepare_sessions(session or (), hub=hub, key=key)
        made = Runner(
            agent.answer,
            hub=hub,
            key=key,
            sessions=sessions,
            settings=RunnerSettings(turns=parallel),
        )
        await run_runner(made, sessions)

    uvloop.run(work())


def read_key(variable: str, *, log_level: Level, log_json: bool) -> str:
    """Return the key in a variable, and set the log up so that it does not appear there."""
    from dragoman.cli.logging_setup import configure_logging  # late: --help needs none of it

    key = os.environ.get(variable, "")
    if log_json:
        use_json_lines()
    configure_logging(log_level, as_json=log_json, secrets={key} if key else set())
    if not key:
        print_note(f"{variable} is not set; a hub that requires a key will refuse the connection")
    return key


async def prepare_sessions(ids: Sequence[str], *, hub: str, key: str) -> list[str]:
    """Create the sessions that do not exist, or a new one if no id is given. Return their ids."""
    from dragoman.cli.hub_client.client import HubClient  # late: --help needs none of it
    from dragoman.errors import Conflict, Forbidden  # late: as above

    async with HubClient.over_http(hub, key) as client:
        if not ids:
            return [(await client.create_runner_session(None))["id"]]
        for id in ids:
            # It exists, or this key may not create it: the hub says what is wrong when the runner connects.
            with suppress(Conflict, Forbidden):
                await client.create_runner_session(id)
    return list(ids)


async def run_runner(runner: Runner, sessions: Sequence[str]) -> None:
    """Run until a signal arrives; a second signal cancels the runner at once."""
    import asyncio  # late: as above

    loop = asyncio.get_running_loop()
    running = asyncio.create_task(runner.run())
    announcing = asyncio.create_task(print_when_ready(runner, sessions))
    closing: list[asyncio.Task[None]] = []

    def stop() -> None:
        if closing:
            running.cancel()
        closing.append(asyncio.create_task(runner.close()))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await running
    finally:
        announcing.cancel()


async def print_when_ready(runner: Runner, sessions: Sequence[str]) -> None:
    """Print a line when the hub has accepted the runner for its sessions."""
    await runner.ready()
    served = [id for id in sessions if id not in runner.refused]
    print_line(f"dragoman: runner answers {', '.join(served)} at {runner.url}")
