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
from dragoman.providers.claude_code_process import GRACE, PATIENCE, Child, inherited, near
from dragoman.providers.model import Model
from dragoman.request import ModelRequest
from dragoman.wire.claude_code.decoder import FAMILY, Reader, explain
from dragoman.wire.claude_code.prompt import Prompt, write_prompt

NO_SESSION = "No conversation found"
DEFAULT = "default"  # the model that the CLI itself would take
BORROWED = "dragoman"  # the MCP server that lends it an agent's tools, by its name there
_READ = frozenset({"effort", "max_budget_usd", "max_turns", "reasoning_effort", "thinking"})
_EFFORTS = {"minimal": "low"}

PermissionMode: TypeAlias = Literal["default", "acceptEdits", "plan", "auto", "dontAsk", "bypassPermissions"]


class ClaudeCodeWays(TypedDict, total=False):
    """How the CLI is run; see `ClaudeCodeHabits`."""

    permission_mode: PermissionMode | None
    agent: str | None
    cwd: str | Path | None
    allowed_tools: Sequence[str]
    disallowed_tools: Sequence[str]
    max_turns: int | None
    mcp_config: str | Path | None
    arguments: Sequence[str]
    environ: Mapping[str, str] | None


class Borrowed(NamedTuple):
    """Where tools of ours are served over MCP, and the token that opens it."""

    url: str
    token: str

    def config(self) -> str:
        """What the CLI is told of it."""
        headers = {"Authorization": f"Bearer {self.token}"}
        server = {"type": "http", "url": self.url, "headers": headers}
        return msgspec.json.encode({"mcpServers": {BORROWED: server}}).decode()


class ClaudeCodeHabits(msgspec.Struct, frozen=True, kw_only=True):
    """What the CLI is started with. `agent` names one of its own, whose skills are loaded at the start.

    `mcp_config` is a file, or JSON, with the MCP servers that it may use: the hub can be one. `environ` is
    where its variables come from, without other providers' keys. `arguments` go along as they are.
    `borrowed` are tools of ours for one answer, all of which it may call.
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
    borrowed: Borrowed | None = None

    def flags(self) -> dict[str, Any]:
        """The options of the command line that say so; None says nothing."""
        ours = () if self.borrowed is None else (f"mcp__{BORROWED}",)
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
        self, executable: str = "claude", *, name: str = FAMILY, **ways: Unpack[ClaudeCodeWays]
    ) -> None:
        self.name = name
        self.executable = executable
        self.habits = ClaudeCodeHabits(**ways)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.executable!r})"

    def model(self, name: str = DEFAULT, **options: Any) -> Model:
        """A model of the CLI's; `options` may be `effort`, `thinking`, `max_turns` and `max_budget_usd`."""
        return Model(self, name, options)

    def borrowing(self, url: str, token: str) -> ClaudeCodeProvider:
        """The same, with the tools of an MCP server of ours, which may all be called."""
        other = copy.copy(self)
        other.habits = msgspec.structs.replace(self.habits, borrowed=Borrowed(url, token))
        return other

    @property
    def resting(self) -> bool:
        """See `Provider.resting`."""
        return False

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`: the CLI has its own tools, and knows ours over MCP only; see `borrowing`."""
        names = [name for name in sorted(request.options) if name not in _READ and request.options[name]]
        return [*names, *(["tools"] if request.tools else [])]

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Event], None]:
        """See `Provider.stream`. A session that the CLI has lost is told again from the beginning."""
        prompt = write_prompt(request, provider=self.name)
        told = False
        try:
            async with aclosing(self._run(request, prompt)) as answer:
                async for batch in answer:
                    told = True
                    yield batch
            return
        except ProviderError as error:
            if told or prompt.session is None or NO_SESSION not in error.message:
                raise
        again = write_prompt(request, provider=self.name, resume=False)
        async with aclosing(self._run(request, again)) as answer:
            async for batch in answer:
                yield batch

    async def close(self) -> None:
        """Nothing: a process ends with its answer."""

    async def _run(self, request: ModelRequest, prompt: Prompt) -> AsyncGenerator[Sequence[Event], None]:
        with TemporaryDirectory(prefix="dragoman-") as folder:
            command = self._command(request, prompt, folder=Path(folder))
            async with aclosing(self._told(command, prompt, model=request.model)) as told:
                async for batch in told:
                    yield batch

    async def _told(
        self, command: Sequence[str], prompt: Prompt, *, model: str
    ) -> AsyncGenerator[Sequence[Event], None]:
        reader = Reader(provider=self.name, model=model, agent=self.habits.agent)
        cwd = str(self.habits.cwd) if self.habits.cwd is not None else None
        environ = os.environ if self.habits.environ is None else self.habits.environ
        child = await Child.start(command, cwd=cwd, environ=near(inherited(environ)))
        try:
            await child.tell(prompt.line)
            async with aclosing(read(child, reader)) as told:
                async for batch in told:
                    yield batch
            if not reader.done:
                raise await self._explain(child, reader)
        finally:
            await child.stop(patience=PATIENCE if reader.done else GRACE)

    def _command(self, request: ModelRequest, prompt: Prompt, *, folder: Path) -> list[str]:
        """The command line. Values are bound by `=`, so that none can pose as another option.

        Whoever is on this machine can read it: instructions, and servers with their keys, go in files.
        """
        said = {
            "model": None if request.model == DEFAULT else request.model,
            **self.habits.flags(),
            **asked(request.options, most=self.habits.max_turns),
            "mcp-config": _paper(folder / "mcp.json", self.habits.mcp_config),
            "append-system-prompt-file": _paper(folder / "instructions.md", prompt.system, always=True),
            "resume": prompt.session,
        }
        borrowed = self.habits.borrowed
        lent = None if borrowed is None else _paper(folder / "lent.json", borrowed.config())
        return [
            self.executable,
            "--print",
            "--output-format=stream-json",
            "--input-format=stream-json",
            "--verbose",
            "--include-partial-messages",
            *(f"--{name}={value}" for name, value in said.items() if value is not None),
            *([] if lent is None else [f"--mcp-config={lent}"]),
            *self.habits.arguments,
        ]

    async def _explain(self, child: Child, reader: Reader) -> ProviderError:
        """Why there was no result."""
        how, said = await child.obituary()
        words = said or reader.garbage
        error = explain(words)
        message = f"Claude Code {how} without a result{f': {words}' if words else ''}"
        return ProviderError(
            message[:500], category=error.category, transient=error.transient, hint=error.hint
        )


async def read(child: Child, reader: Reader) -> AsyncGenerator[list[Event], None]:
    """The events of a run, until it has a result and its output ends, or nothing more is to be expected."""
    async with aclosing(child.lines()) as output:
        while lines := await _soon(output, PATIENCE if reader.done else None):
            if batch := [event for line in lines for event in reader.feed(line)]:
                yield batch
    if last := reader.close():
        yield last


async def _soon(output: AsyncGenerator[list[bytes], None], seconds: float | None) -> list[bytes] | None:
    """The next lines; None when there are none, or none within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await anext(output, None)
    except TimeoutError:
        return None


def _paper(path: Path, text: str | Path | None, *, always: bool = False) -> str | None:
    """Where a text can be read: in a file of its own, if it is not the name of one."""
    if not text or not (always or str(text).lstrip().startswith("{")):
        return str(text) if text else None
    path.write_text(str(text))
    return str(path)


def asked(options: Mapping[str, Any], *, most: int | None) -> dict[str, Any]:
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
        said["max-turns"] = turns if most is None else min(turns, most)
    return said
