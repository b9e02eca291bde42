"""Claude Code as a provider: its CLI answers, in a process of its own, and runs its own tools.

The CLI keeps the conversation; its session stands in the metadata of what it said, so that the next request
goes on with it. It spends by itself: what it cost is told at the end (`costUsd` in the finish's metadata),
and no budget of ours holds it within a run, but for the one that it is given as `max_budget_usd`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

import msgspec

from dragoman.errors import ProviderError
from dragoman.events import Event
from dragoman.providers.claude_code_process import GRACE, PATIENCE, Child, inherited
from dragoman.providers.model import Model
from dragoman.request import ModelRequest
from dragoman.wire.claude_code import FAMILY, Reader, explain
from dragoman.wire.claude_code_prompt import Prompt, write_prompt

NO_SESSION = "No conversation found"
DEFAULT = "default"  # the model that the CLI itself would take
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


class ClaudeCodeHabits(msgspec.Struct, frozen=True, kw_only=True):
    """What the CLI is started with. `agent` names one of its own, whose skills are loaded at the start.

    `mcp_config` is a file, or JSON, with the MCP servers that it may use: the hub can be one. `environ` is
    where its variables come from, without other providers' keys. `arguments` go along as they are.
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

    def flags(self) -> dict[str, Any]:
        """The options of the command line that say so; None says nothing."""
        return {
            "permission-mode": self.permission_mode,
            "agent": self.agent,
            "allowedTools": ",".join(self.allowed_tools) or None,
            "disallowedTools": ",".join(self.disallowed_tools) or None,
            "max-turns": self.max_turns,
            "mcp-config": self.mcp_config,
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

    @property
    def resting(self) -> bool:
        """See `Provider.resting`."""
        return False

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`: the CLI has its own tools, and knows ours over MCP only."""
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
        reader = Reader(provider=self.name, model=request.model)
        cwd = str(self.habits.cwd) if self.habits.cwd is not None else None
        environ = os.environ if self.habits.environ is None else self.habits.environ
        child = await Child.start(self._command(request, prompt), cwd=cwd, environ=inherited(environ))
        try:
            await child.tell(prompt.line)
            async with aclosing(read(child, reader)) as told:
                async for batch in told:
                    yield batch
            if not reader.done:
                raise await self._explain(child, reader)
        finally:
            await child.stop(patience=PATIENCE if reader.done else GRACE)

    def _command(self, request: ModelRequest, prompt: Prompt) -> list[str]:
        """The command line. Values are bound by `=`, so that none can pose as another option."""
        said = {
            "model": None if request.model == DEFAULT else request.model,
            **self.habits.flags(),
            **asked(request.options, most=self.habits.max_turns),
            "append-system-prompt": prompt.system or None,
            "resume": prompt.session,
        }
        return [
            self.executable,
            "--print",
            "--output-format=stream-json",
            "--input-format=stream-json",
            "--verbose",
            "--include-partial-messages",
            *(f"--{name}={value}" for name, value in said.items() if value is not None),
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
    """The events of a run, until its result."""
    async with aclosing(child.lines()) as output:
        async for lines in output:
            batch = [event for line in lines if not reader.done for event in reader.feed(line)]
            if batch:
                yield batch
            if reader.done:
                return


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
