"""Claude Code as a provider: its CLI answers, in a process of its own, and runs its own tools.

The CLI keeps the conversation; its session stands in the metadata of what it said, so that the next request
goes on with it. It spends by itself: what it cost is told at the end (`costUsd` in the finish's metadata),
and no budget of ours holds it within a run, but for the one that it is given as `max_budget_usd`.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

import msgspec

from dragoman.errors import ProviderError
from dragoman.events import Event
from dragoman.model_request import ModelRequest
from dragoman.providers.claude_code.process import (
    ABORT_GRACE,
    EXIT_GRACE,
    ClaudeCodeProcess,
    inherited_environ,
    without_local_proxy,
)
from dragoman.providers.model import Model
from dragoman.wire.claude_code.decoder import FAMILY, ClaudeCodeDecoder, explain_error
from dragoman.wire.claude_code.request import ClaudeCodePrompt, write_prompt

SESSION_NOT_FOUND = "No conversation found"
DEFAULT_MODEL = "default"  # the model that the CLI itself would take
BORROWED_SERVER = "dragoman"  # the MCP server that lends it an agent's tools, by its name there
_SUPPORTED_OPTIONS = frozenset({"effort", "max_budget_usd", "max_turns", "reasoning_effort", "thinking"})
_EFFORTS = {"minimal": "low"}

PermissionMode: TypeAlias = Literal["default", "acceptEdits", "plan", "auto", "dontAsk", "bypassPermissions"]


class ClaudeCodeOptions(TypedDict, total=False):
    """How the CLI is run; see `ClaudeCodeSettings`."""

    permission_mode: PermissionMode | None
    agent: str | None
    cwd: str | Path | None
    allowed_tools: Sequence[str]
    disallowed_tools: Sequence[str]
    max_turns: int | None
    mcp_config: str | Path | None
    arguments: Sequence[str]
    environ: Mapping[str, str] | None


class BorrowedToolServer(NamedTuple):
    """Where tools of ours are served over MCP, and the token that opens it."""

    url: str
    token: str

    def config(self) -> str:
        """What the CLI is told of it."""
        headers = {"Authorization": f"Bearer {self.token}"}
        server = {"type": "http", "url": self.url, "headers": headers}
        return msgspec.json.encode({"mcpServers": {BORROWED_SERVER: server}}).decode()


class ClaudeCodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the CLI is started with. `agent` names one of its own, whose skills are loaded at the start.

    `mcp_config` is a file, or JSON, with the MCP servers that it may use: the hub can be one. `environ` is
    where its variables come from, without other providers' keys. `arguments` go along as they are.
    `borrowed_tools` are tools of ours for one answer, all of which it may call.
    """

    permission_mode: PermissionMode | None = None
    agent: str | None = None
    cwd: str | Path | None = None
    allowed_tools: Sequence[str] = ()
    disallowed_tools: Sequence[str] = ()
    max_turns: int | None = None
    mcp_config: str | Path | None = None
    arguments: Sequence[str] = ()
    environ: Mapping[str, str] | None = None
    borrowed_tools: BorrowedToolServer | None = None

    def flags(self) -> dict[str, Any]:
        """The options of the command line that say so; None says nothing."""
        ours = () if self.borrowed_tools is None else (f"mcp__{BORROWED_SERVER}",)
        return {
            "permission-mode": self.permission_mode,
            "agent": self.agent,
            "allowedTools": ",".join((*self.allowed_tools, *ours)) or None,
            "disallowedTools": ",".join(self.disallowed_tools) or None,
            "max-turns": self.max_turns,
        }


class ClaudeCodeProvider:
    """Runs the CLI for each request. Closing the stream ends its process, and all that it started.

    The names of models are the CLI's (`sonnet`, `opus`, a full name), or `default` for its own choice.
    """

    family = FAMILY
    budget_notice = (
        "Claude Code spends by itself: the run's budget cannot stop it between its steps; "
        "give the model max_budget_usd, which the CLI holds to"
    )

    def __init__(
        self, executable: str = "claude", *, name: str = FAMILY, **options: Unpack[ClaudeCodeOptions]
    ) -> None:
        self.name = name
        self.executable = executable
        self.settings = ClaudeCodeSettings(**options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.executable!r})"

    def model(self, name: str = DEFAULT_MODEL, **options: Any) -> Model:
        """A model of the CLI's; `options` may be `effort`, `thinking`, `max_turns` and `max_budget_usd`."""
        return Model(self, name, options)

    def with_borrowed_tools(self, url: str, token: str) -> ClaudeCodeProvider:
        """The same, with the tools of an MCP server of ours, which may all be called."""
        other = copy.copy(self)
        other.settings = msgspec.structs.replace(self.settings, borrowed_tools=BorrowedToolServer(url, token))
        return other

    @property
    def resting(self) -> bool:
        """See `Provider.resting`."""
        return False

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`: the CLI has its own tools, and knows ours over MCP only; see
        `with_borrowed_tools`.
        """
        names = [
            name
            for name in sorted(request.options)
            if name not in _SUPPORTED_OPTIONS and request.options[name]
        ]
        return [*names, *(["tools"] if request.tools else [])]

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Event], None]:
        """See `Provider.stream`. A session that the CLI has lost is told again from the beginning."""
        prompt = write_prompt(request, provider=self.name)
        told = False
        try:
            async with aclosing(self._run_prompt(request, prompt)) as answer:
                async for batch in answer:
                    told = True
                    yield batch
            return
        except ProviderError as error:
            if told or prompt.session_id is None or SESSION_NOT_FOUND not in error.message:
                raise
        again = write_prompt(request, provider=self.name, resume=False)
        async with aclosing(self._run_prompt(request, again)) as answer:
            async for batch in answer:
                yield batch

    async def close(self) -> None:
        """Nothing: a process ends with its answer."""

    async def _run_prompt(
        self, request: ModelRequest, prompt: ClaudeCodePrompt
    ) -> AsyncGenerator[Sequence[Event], None]:
        with TemporaryDirectory(prefix="dragoman-") as folder:
            command = self._command(request, prompt, folder=Path(folder))
            async with aclosing(self._run_command(command, prompt, model=request.model)) as told:
                async for batch in told:
                    yield batch

    async def _run_command(
        self, command: Sequence[str], prompt: ClaudeCodePrompt, *, model: str
    ) -> AsyncGenerator[Sequence[Event], None]:
        reader = ClaudeCodeDecoder(provider=self.name, model=model, agent=self.settings.agent)
        cwd = str(self.settings.cwd) if self.settings.cwd is not None else None
        environ = os.environ if self.settings.environ is None else self.settings.environ
        child = await ClaudeCodeProcess.start(
            command, cwd=cwd, environ=without_local_proxy(inherited_environ(environ))
        )
        try:
            await child.write_input(prompt.input_line)
            async with aclosing(read_events(child, reader)) as told:
                async for batch in told:
                    yield batch
            if not reader.done:
                raise await self._explain(child, reader)
        finally:
            await child.stop(grace=EXIT_GRACE if reader.done else ABORT_GRACE)

    def _command(self, request: ModelRequest, prompt: ClaudeCodePrompt, *, folder: Path) -> list[str]:
        """The command line. Values are bound by `=`, so that none can pose as another option.

        Whoever is on this machine can read it: instructions, and servers with their keys, go in files.
        """
        said = {
            "model": None if request.model == DEFAULT_MODEL else request.model,
            **self.settings.flags(),
            **option_flags(request.options, max_turns=self.settings.max_turns),
            "mcp-config": _write_file(folder / "mcp.json", self.settings.mcp_config),
            "append-system-prompt-file": _write_file(folder / "instructions.md", prompt.system, always=True),
            "resume": prompt.session_id,
        }
        borrowed = self.settings.borrowed_tools
        lent = None if borrowed is None else _write_file(folder / "lent.json", borrowed.config())
        return [
            self.executable,
            "--print",
            "--output-format=stream-json",
            "--input-format=stream-json",
            "--verbose",
            "--include-partial-messages",
            *(f"--{name}={value}" for name, value in said.items() if value is not None),
            *([] if lent is None else [f"--mcp-config={lent}"]),
            *self.settings.arguments,
        ]

    async def _explain(self, child: ClaudeCodeProcess, reader: ClaudeCodeDecoder) -> ProviderError:
        """Why there was no result."""
        how, said = await child.exit_report()
        words = said or reader.unparsed_line
        error = explain_error(words)
        message = f"Claude Code {how} without a result{f': {words}' if words else ''}"
        return ProviderError(
            message[:500], category=error.category, transient=error.transient, hint=error.hint
        )


async def read_events(
    child: ClaudeCodeProcess, reader: ClaudeCodeDecoder
) -> AsyncGenerator[list[Event], None]:
    """The events of a run, until it has a result and its output ends, or nothing more is to be expected."""
    async with aclosing(child.lines()) as output:
        while lines := await _next_lines(output, EXIT_GRACE if reader.done else None):
            if batch := [event for line in lines for event in reader.feed(line)]:
                yield batch
    if last := reader.close():
        yield last


async def _next_lines(output: AsyncGenerator[list[bytes], None], timeout: float | None) -> list[bytes] | None:
    """The next lines; None when there are none, or none within so many seconds."""
    try:
        async with asyncio.timeout(timeout):
            return await anext(output, None)
    except TimeoutError:
        return None


def _write_file(path: Path, text: str | Path | None, *, always: bool = False) -> str | None:
    """Where a text can be read: in a file of its own, if it is not the name of one."""
    if not text or not (always or str(text).lstrip().startswith("{")):
        return str(text) if text else None
    path.write_text(str(text))
    return str(path)


def option_flags(options: Mapping[str, Any], *, max_turns: int | None) -> dict[str, Any]:
    """What a request's options say on the command line; `most` turns are not exceeded."""
    effort = options.get("effort") or options.get("reasoning_effort")
    thinking = options.get("thinking")
    said: dict[str, Any] = {"max-budget-usd": options.get("max_budget_usd")}
    if effort and effort != "none":
        said["effort"] = _EFFORTS.get(effort, effort)
    if isinstance(thinking, Mapping) and thinking.get("type") == "enabled":
        said["max-thinking-tokens"] = thinking.get("budget_tokens")
    elif isinstance(thinking, Mapping):
        said["thinking"] = thinking.get("type")
    turns = options.get("max_turns")
    if isinstance(turns, int):
        said["max-turns"] = turns if max_turns is None else min(turns, max_turns)
    return said
