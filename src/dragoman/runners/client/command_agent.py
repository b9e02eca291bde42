"""A command as an agent: it reads the prompt from its input, and what it prints is the answer.

Formats: `text` sends the text of the prompt, `json` the whole message as a line of JSON; both take the output
as text. `claude-code` and `opencode` run these programs and decode their event streams, so that tool calls
are seen while they happen.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec

from dragoman import events as e
from dragoman.errors import BadRequest, ConfigError, ProviderError
from dragoman.messages import Message, TextPart, parse_message
from dragoman.model_request import ModelRequest
from dragoman.processes.program import ABORT_GRACE, EXIT_GRACE, Program
from dragoman.runners.client.event_writer import EventWriter
from dragoman.runners.client.turn import RunnerTurn
from dragoman.wire.claude_code.decoder import FAMILY, ClaudeCodeDecoder
from dragoman.wire.claude_code.request import write_prompt
from dragoman.wire.ndjson import NdjsonSplitter
from dragoman.wire.opencode.decoder import OpenCodeDecoder
from dragoman.wire.runner.frames import RunnerPrompt

CommandFormat: TypeAlias = Literal["text", "json", "claude-code", "opencode"]
CLAUDE_CODE_FLAGS = (
    "--print",
    "--output-format=stream-json",
    "--input-format=stream-json",
    "--verbose",
    "--include-partial-messages",
)
OPENCODE_FLAGS = ("--format=json",)
SESSION_VARIABLE, TURN_VARIABLE = "DRAGOMAN_SESSION", "DRAGOMAN_TURN"


class LineDecoder(Protocol):
    """Decodes the lines of a program: `ClaudeCodeDecoder` and `OpenCodeDecoder`."""

    session_id: str | None
    unparsed_line: str

    def feed(self, raw: bytes) -> list[e.Event]:
        """Return the events of one line. Raises ProviderError if it reports a failure."""
        ...


class RunnerCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command line and the format of its output.

    Its environment is that of this process, without the variables in `hidden`, plus `variables`.
    """

    arguments: Sequence[str]
    format: CommandFormat = "text"
    cwd: Path | None = None
    variables: Mapping[str, str] = {}
    hidden: frozenset[str] = frozenset()


class CommandAgent:
    """Answers each turn with a new process of a command. Cancelling a turn ends it and its descendants.

    Programs that keep conversations continue one for each session, as long as this process lives.
    """

    def __init__(self, command: RunnerCommand) -> None:
        self._command = command
        self._agent_sessions: dict[str, str] = {}  # the program's own ids, by session

    async def answer(self, turn: RunnerTurn) -> None:
        """Answer a turn. Raises ProviderError if the command fails, ConfigError if it cannot be started."""
        match self._command.format:
            case "text" | "json":
                await self._answer_text(turn)
            case "claude-code":
                await self._answer_claude_code(turn)
            case "opencode":
                await self._answer_opencode(turn)

    async def _answer_text(self, turn: RunnerTurn) -> None:
        program = await self._start(turn, ())
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        ended = False
        try:
            program.write_input(prompt_json(turn) if self._command.format == "json" else turn.text.encode())
            async with aclosing(program.chunks()) as chunks:
                async for data in chunks:
                    await turn.write_text(decoder.decode(data))
            await turn.write_text(decoder.decode(b"", final=True))
            ended = True
            await check_exit(program, self._command)
        finally:
            await program.stop(grace=EXIT_GRACE if ended else ABORT_GRACE)

    async def _answer_claude_code(self, turn: RunnerTurn) -> None:
        resumed = self._agent_sessions.get(turn.session_id)
        flags = [*CLAUDE_CODE_FLAGS, *([f"--resume={resumed}"] if resumed else [])]
        prompt = write_prompt(
            ModelRequest(model="", messages=(prompt_message(turn),)), provider=FAMILY, resume=False
        )
        decoder = ClaudeCodeDecoder(provider=FAMILY, model="default")
        await self._run(turn, flags, prompt=prompt.input_line, decoder=decoder)
        finish = next((event for event in decoder.close() if isinstance(event, e.FinishStep)), None)
        if finish is None:
            raise ProviderError("Claude Code ended without a result", category="unknown")
        turn.report_usage(finish.usage, cost=claude_code_cost(finish))

    async def _answer_opencode(self, turn: RunnerTurn) -> None:
        resumed = self._agent_sessions.get(turn.session_id)
        flags = [*OPENCODE_FLAGS, *([f"--session={resumed}"] if resumed else [])]
        decoder = OpenCodeDecoder()
        await self._run(turn, flags, prompt=turn.text.encode(), decoder=decoder)
        turn.report_usage(decoder.usage, cost=decoder.cost)

    async def _run(
        self, turn: RunnerTurn, flags: Sequence[str], *, prompt: bytes, decoder: LineDecoder
    ) -> None:
        """Run a program and write its events into the turn, until its output ends.

        Raises ProviderError if it fails.
        """
        program = await self._start(turn, flags)
        writer, ended = EventWriter(turn), False
        try:
            program.write_input(prompt)
            async with aclosing(lines(program)) as output:
                async for line in output:
                    await writer.write_batch(decoder.feed(line))
            ended = True
            await check_exit(program, self._command, last_line=decoder.unparsed_line)
            writer.finish()
        finally:
            if decoder.session_id:
                self._agent_sessions[turn.session_id] = decoder.session_id
            await program.stop(grace=EXIT_GRACE if ended else ABORT_GRACE)

    async def _start(self, turn: RunnerTurn, flags: Sequence[str]) -> Program:
        command = self._command
        inherited = {name: value for name, value in os.environ.items() if name not in command.hidden}
        turn_variables = {SESSION_VARIABLE: turn.session_id, TURN_VARIABLE: turn.turn_id}
        try:
            return await Program.spawn(
                [*command.arguments, *flags],
                cwd=None if command.cwd is None else str(command.cwd),
                environ={**inherited, **command.variables, **turn_variables},
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise ConfigError(f"{command.arguments[0]!r} cannot be started: {reason}") from None


async def lines(program: Program) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a program's output. Raises FrameTooLong for one that is too long."""
    splitter = NdjsonSplitter()
    async with aclosing(program.chunks()) as chunks:
        async for data in chunks:
            for line in splitter.feed(data).splitlines():
                yield line
            if splitter.failure is not None:
                raise splitter.failure
    if last := splitter.close():
        yield last


async def check_exit(program: Program, command: RunnerCommand, *, last_line: str = "") -> None:
    """Raise ProviderError if a program failed, with the end of its error output, else with `last_line`."""
    reason, stderr = await program.exit_report()
    if program.process.returncode != 0:
        detail = stderr or last_line
        raise ProviderError(
            f"{command.arguments[0]} {reason}{f': {detail}' if detail else ''}"[:500], category="unknown"
        )


def prompt_message(turn: RunnerTurn) -> Message:
    """Return the user's message; if the hub's cannot be decoded, one with the text of the prompt."""
    try:
        return parse_message(turn.message)
    except BadRequest:
        return Message(turn.turn_id, "user", (TextPart(turn.text),))


def prompt_json(turn: RunnerTurn) -> bytes:
    """Return the prompt as one line of JSON, with the whole message."""
    prompt = RunnerPrompt(
        session_id=turn.session_id, turn_id=turn.turn_id, text=turn.text, message=turn.message
    )
    return msgspec.json.encode(prompt) + b"\n"


def claude_code_cost(event: e.FinishStep) -> float | None:
    """Return the US dollars that Claude Code reports."""
    metadata = (event.provider_metadata or {}).get(FAMILY, {})
    cost = metadata.get("costUsd")
    return cost if isinstance(cost, int | float) else None
