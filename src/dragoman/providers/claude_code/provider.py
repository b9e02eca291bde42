"""Claude Code as a provider: its CLI answers in a child process and runs its own tools.

The CLI stores the conversation; the metadata of its answers has its session id, by which the next request
resumes it. It reports its cost only at the end (`costUsd` in the finish event's metadata), so our budgets
cannot stop it during a run; pass `max_budget_usd` for a limit that the CLI enforces.
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
DEFAULT_MODEL = "default"  # the CLI's own choice
AGENT_TOOL_SERVER = "dragoman"  # the name of the MCP server with an agent's tools in the CLI's configuration
_SUPPORTED_OPTIONS = frozenset({"effort", "max_budget_usd", "max_turns", "reasoning_effort", "thinking"})
_EFFORTS = {"minimal": "low"}

PermissionMode: TypeAlias = Literal["default", "acceptEdits", "plan", "auto", "dontAsk", "bypassPermissions"]


class ClaudeCodeOptions(TypedDict, total=False):
    """Options of the CLI; see `ClaudeCodeSettings`."""

    permission_mode: PermissionMode | None
    agent: str | None
    cwd: str | Path | None
    allowed_tools: Sequence[str]
    disallowed_tools: Sequence[str]
    max_turns: int | None
    mcp_config: str | Path | None
    arguments: Sequence[str]
    environ: Mapping[str, str] | None


class AgentToolServer(NamedTuple):
    """The URL and bearer token of an MCP server with our tools."""

    url: str
    token: str

    def config(self) -> str:
        """Return the server as JSON for `--mcp-config`."""
        headers = {"Authorization": f"Bearer {self.token}"}
        server = {"type": "http", "url": self.url, "headers": headers}
        return msgspec.json.encode({"mcpServers": {AGENT_TOOL_SERVER: server}}).decode()


class ClaudeCodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the CLI is started. `agent` is one of its own agents, whose skills are loaded at the start.

    `mcp_config` is a file, or JSON, with the MCP servers that it may use; the hub can be one. `environ` is
    the environment, of which other providers' keys are removed. `arguments` are passed unchanged.
    `agent_tools` is an MCP server with our tools for one answer; all of them are allowed.
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
    agent_tools: AgentToolServer | None = None

    def flags(self) -> dict[str, Any]:
        """Return the command-line options; None omits one."""
        ours = () if self.agent_tools is None else (f"mcp__{AGENT_TOOL_SERVER}",)
        return {
            "permission-mode": self.permission_mode,
            "agent": self.agent,
            "allowedTools": ",".join((*self.allowed_tools, *ours)) or None,
            "disallowedTools": ",".join(self.disallowed_tools) or None,
            "max-turns": self.max_turns,
        }


class ClaudeCodeProvider:
    """Runs the CLI for each request. Closing the stream ends its process and all descendants.

    Model names are the CLI's (`sonnet`, `opus`, a full name), or `default` for its own choice.
    """

    family = FAMILY
    budget_notice = (
        "Claude Code reports its cost only at the end: the run's budget cannot stop it between its steps; "
        "set the model option max_budget_usd, which the CLI enforces"
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
        """Return a model; `options` are `effort`, `thinking`, `max_turns` and `max_budget_usd`."""
        return Model(self, name, options)

    def with_agent_tools(self, url: str, token: str) -> ClaudeCodeProvider:
        """Return a copy that may call all tools of an MCP server of ours."""
        provider = copy.copy(self)
        provider.settings = msgspec.structs.replace(self.settings, agent_tools=AgentToolServer(url, token))
        return provider

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`. The CLI has its own tools; ours need MCP (`with_agent_tools`)."""
        names = [
            name
            for name in sorted(request.options)
            if name not in _SUPPORTED_OPTIONS and request.options[name]
        ]
        return [*names, *(["tools"] if request.tools else [])]

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Event], None]:
        """See `Provider.stream`. If the CLI has lost the session, the whole conversation is sent again."""
        prompt = write_prompt(request, provider=self.name)
        started = False
        try:
            async with aclosing(self._run_prompt(request, prompt)) as answer:
                async for batch in answer:
                    started = True
                    yield batch
            return
        except ProviderError as error:
            if started or prompt.session_id is None or SESSION_NOT_FOUND not in error.message:
                raise
        full_prompt = write_prompt(request, provider=self.name, resume=False)
        async with aclosing(self._run_prompt(request, full_prompt)) as answer:
            async for batch in answer:
                yield batch

    async def _run_prompt(
        self, request: ModelRequest, prompt: ClaudeCodePrompt
    ) -> AsyncGenerator[Sequence[Event], None]:
        with TemporaryDirectory(prefix="dragoman-") as folder:
            command = self._command(request, prompt, folder=Path(folder))
            async with aclosing(self._run_command(command, prompt, model=request.model)) as batches:
                async for batch in batches:
                    yield batch

    async def _run_command(
        self, command: Sequence[str], prompt: ClaudeCodePrompt, *, model: str
    ) -> AsyncGenerator[Sequence[Event], None]:
        decoder = ClaudeCodeDecoder(provider=self.name, model=model, agent=self.settings.agent)
        cwd = str(self.settings.cwd) if self.settings.cwd is not None else None
        environ = os.environ if self.settings.environ is None else self.settings.environ
        child = await ClaudeCodeProcess.start(
            command, cwd=cwd, environ=without_local_proxy(inherited_environ(environ))
        )
        try:
            child.write_input(prompt.input_line)
            async with aclosing(read_events(child, decoder)) as batches:
                async for batch in batches:
                    yield batch
            if not decoder.done:
                raise await self._explain(child, decoder)
        finally:
            await child.stop(grace=EXIT_GRACE if decoder.done else ABORT_GRACE)

    def _command(self, request: ModelRequest, prompt: ClaudeCodePrompt, *, folder: Path) -> list[str]:
        """Return the command line. Values follow `=`, so that none can be read as another option.

        All users of the machine can read a command line, so instructions and MCP servers with keys go into
        files.
        """
        options = {
            "model": None if request.model == DEFAULT_MODEL else request.model,
            **self.settings.flags(),
            **option_flags(request.options, max_turns=self.settings.max_turns),
            "mcp-config": _write_file(folder / "mcp.json", self.settings.mcp_config),
            "append-system-prompt-file": _write_file(folder / "instructions.md", prompt.system, always=True),
            "resume": prompt.session_id,
        }
        tool_server = self.settings.agent_tools
        tool_config = (
            None if tool_server is None else _write_file(folder / "tool_server.json", tool_server.config())
        )
        return [
            self.executable,
            "--print",
            "--output-format=stream-json",
            "--input-format=stream-json",
            "--verbose",
            "--include-partial-messages",
            *(f"--{name}={value}" for name, value in options.items() if value is not None),
            *([] if tool_config is None else [f"--mcp-config={tool_config}"]),
            *self.settings.arguments,
        ]

    async def _explain(self, child: ClaudeCodeProcess, decoder: ClaudeCodeDecoder) -> ProviderError:
        """Return an error that explains why there was no result."""
        exit_reason, stderr = await child.exit_report()
        output = stderr or decoder.unparsed_line
        error = explain_error(output)
        message = f"Claude Code {exit_reason} without a result{f': {output}' if output else ''}"
        return ProviderError(
            message[:500], category=error.category, transient=error.transient, hint=error.hint
        )


async def read_events(
    child: ClaudeCodeProcess, decoder: ClaudeCodeDecoder
) -> AsyncGenerator[list[Event], None]:
    """Yield the events of a run until its output ends, or for EXIT_GRACE seconds after its result."""
    async with aclosing(child.lines()) as output:
        while lines := await _next_lines(output, EXIT_GRACE if decoder.done else None):
            if batch := [event for line in lines for event in decoder.feed(line)]:
                yield batch
    if last := decoder.close():
        yield last


async def _next_lines(output: AsyncGenerator[list[bytes], None], timeout: float | None) -> list[bytes] | None:
    """Return the next lines; None at the end or after `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            return await anext(output, None)
    except TimeoutError:
        return None


def _write_file(path: Path, text: str | Path | None, *, always: bool = False) -> str | None:
    """Write a text to a file and return its path; a text that is itself a path is returned unchanged.

    JSON is written, other texts only with `always`. None for no text.
    """
    if not text or not (always or str(text).lstrip().startswith("{")):
        return str(text) if text else None
    path.write_text(str(text))
    return str(path)


def option_flags(options: Mapping[str, Any], *, max_turns: int | None) -> dict[str, Any]:
    """Return the command-line options for a request's options; `max_turns` is an upper limit."""
    effort = options.get("effort") or options.get("reasoning_effort")
    thinking = options.get("thinking")
    flags: dict[str, Any] = {"max-budget-usd": options.get("max_budget_usd")}
    if effort and effort != "none":
        flags["effort"] = _EFFORTS.get(effort, effort)
    if isinstance(thinking, Mapping) and thinking.get("type") == "enabled":
        flags["max-thinking-tokens"] = thinking.get("budget_tokens")
    elif isinstance(thinking, Mapping):
        flags["thinking"] = thinking.get("type")
    turns = options.get("max_turns")
    if isinstance(turns, int):
        flags["max-turns"] = turns if max_turns is None else min(turns, max_turns)
    return flags
