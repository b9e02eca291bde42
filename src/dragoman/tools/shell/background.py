"""Background commands: started by one call, read by later ones, ended with the run that started them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import msgspec

from dragoman.errors import LimitReached, NotFound
from dragoman.ids import new_id
from dragoman.operations.context import Context
from dragoman.tools.shell.command import ShellCommand, ShellProgram

MAX_RUNNING = 8  # of one owner and agent
MAX_KEPT = 32  # of one owner and agent, including those that have ended


class BackgroundCommand(msgspec.Struct, frozen=True, eq=False):
    """A command, its caller (owner and agent), and the task that reads its output."""

    command: ShellCommand
    caller: tuple[str, str | None]
    run_id: str | None
    task: asyncio.Task[object]


class BackgroundCommands:
    """The background commands of a hub. A caller sees only those of its own owner and agent.

    `on_start` is called before a command starts; from then on `end_run` has to be called at the end of runs.
    """

    def __init__(self, *, on_start: Callable[[], None] = lambda: None) -> None:
        self._on_start = on_start
        self._commands: dict[str, BackgroundCommand] = {}
        self._starting: Counter[tuple[str, str | None]] = Counter()
        """How many commands are being started, by caller."""

    async def start(self, program: ShellProgram, *, seconds: float, context: Context) -> str:
        """Start a command that runs at most `seconds`; return its id. Raises LimitReached."""
        caller = caller_of(context)
        own = [(id, command) for id, command in self._commands.items() if command.caller == caller]
        if sum(not command.task.done() for _, command in own) + self._starting[caller] >= MAX_RUNNING:
            if program.on_end is not None:
                program.on_end()
            raise LimitReached(
                f"{MAX_RUNNING} background commands are running.", hint="Stop one with shell.stop."
            )
        for id, oldest in own[: max(0, len(own) - MAX_KEPT + 1)]:
            if oldest.task.done():
                del self._commands[id]
        self._starting[caller] += 1
        self._on_start()
        try:
            command = await ShellCommand.start(program)
        finally:
            self._starting[caller] -= 1
            self._starting += Counter()  # without those that are 0
        id = new_id("cmd")
        task = asyncio.create_task(command.run(seconds), name=f"background command {id}")
        self._commands[id] = BackgroundCommand(command, caller, context.run_id, task)
        return id

    def get(self, id: str, context: Context) -> ShellCommand:
        """Return a command of the caller. Raises NotFound."""
        return self._find(id, context).command

    async def wait(self, id: str, *, seconds: float, context: Context) -> None:
        """Wait up to `seconds` for the end of a command. Raises NotFound."""
        await asyncio.wait([self._find(id, context).task], timeout=seconds)

    async def stop(self, id: str, context: Context) -> None:
        """End a command. Raises NotFound."""
        await end_commands([self._find(id, context)])

    async def end_run(self, run_id: str) -> None:
        """End the commands that a run started."""
        await end_commands([command for command in self._commands.values() if command.run_id == run_id])

    async def close(self) -> None:
        """End all commands."""
        await end_commands(list(self._commands.values()))

    def _find(self, id: str, context: Context) -> BackgroundCommand:
        command = self._commands.get(id)
        if command is None or command.caller != caller_of(context):
            raise NotFound(f"There is no background command {id[:100]!r}.")
        return command


def caller_of(context: Context) -> tuple[str, str | None]:
    """Return whose commands a call may see: those of its owner and agent."""
    return context.identity.owner, context.agent


async def end_commands(commands: list[BackgroundCommand]) -> None:
    """End commands and wait until they have ended."""
    tasks = [command.task for command in commands if not command.task.done()]
    for task in tasks:
        task.cancel("the command is stopped")
    if tasks:
        await asyncio.wait(tasks)
