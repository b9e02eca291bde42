"""Lending: the tools of a run for a provider that runs its own loop, which calls them over MCP.

Claude Code is such a provider. What it borrows runs as any call of the run does, with its hooks, rules,
budget and record; in the answer it is a call that the provider has run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from dragoman import events as e
from dragoman.agent.tool_execution import failure_text
from dragoman.agent.toolbox import Toolbox
from dragoman.agent.turn import FindModel
from dragoman.identity import Identity
from dragoman.mcp.server.results import tool_result as result_of
from dragoman.mcp.server.server import ToolCall, UnknownTool
from dragoman.mcp.server.tool_list import ALWAYS_LOAD
from dragoman.messages import ToolPart
from dragoman.model_request import ModelRequest, Tool
from dragoman.operations.context import Context
from dragoman.operations.outcome import CallOutcome
from dragoman.providers.claude_code.provider import BORROWED_SERVER, ClaudeCodeProvider
from dragoman.providers.model import Model
from dragoman.providers.wrapper import ProviderWrapper
from dragoman.wire.tool_outputs import read_multimodal_output, write_multimodal_output

TOOL_PREFIX = f"mcp__{BORROWED_SERVER}__"
TOOL_USE_ID = "claudecode/toolUseId"  # in a request's `_meta`: the call that it is made for
NO_APPROVALS_HINT = (
    "nobody can be asked while Claude Code works: allow it by a rule of the policy, or do without"
)


class ToolLendingProvider(ProviderWrapper[ClaudeCodeProvider]):
    """A `Provider`: Claude Code, with the tools of one run."""

    def __init__(self, provider: ClaudeCodeProvider, toolbox: Toolbox, *, context: Context) -> None:
        super().__init__(provider)
        self._toolbox = toolbox
        self._context = context
        self._step = 0

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`: it can borrow what runs here, not what runs outside."""
        lent = {tool.name for tool in self._borrowable_tools(request)}
        outside = [f"tool {tool.name}" for tool in request.tools if tool.name not in lent]
        return [*self._provider.check(replace(request, tools=())), *outside]

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[e.Event], None]:
        """See `Provider.stream`."""
        self._step += 1
        tools, alone = self._borrowable_tools(request), replace(request, tools=())
        if not tools:
            async with aclosing(self._provider.stream(alone)) as answer:
                async for batch in answer:
                    yield batch
            return
        from dragoman.mcp.server.local_server import serve_locally  # late: it loads a web server

        context = replace(self._context, step=self._step, for_model=True)
        async with serve_locally(RunToolServer(tools, self._toolbox, context=context)) as place:
            provider = self._provider.with_borrowed_tools(place.url, place.token)
            async with aclosing(provider.stream(alone)) as answer:
                async for batch in answer:
                    yield [with_own_tool_name(event) for event in batch]

    async def close(self) -> None:
        """Nothing: the provider belongs to others."""

    def _borrowable_tools(self, request: ModelRequest) -> Sequence[Tool]:
        kind = self._toolbox.kind
        return [tool for tool in request.tools if kind(tool.name) in ("meta", "operation")]


class RunToolServer:
    """The tools as they are served; see `mcp.server.Served`."""

    version = ""

    def __init__(self, tools: Sequence[Tool], toolbox: Toolbox, *, context: Context) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._toolbox = toolbox
        self._context = context

    async def tools(self, identity: Identity) -> list[dict[str, Any]]:
        """See `Served`."""
        return [
            {
                "name": tool.name,
                "description": tool.description,
                "inputSchema": {**tool.input_schema, "type": "object"},
                "_meta": ALWAYS_LOAD,
            }
            for tool in self._tools.values()
        ]

    def input_schema(self, name: str) -> None:
        """See `Served`: no parameter is repeated in headers."""

    def instructions(self, identity: Identity) -> str:
        """See `Served`."""
        return ""

    async def call(self, request: ToolCall) -> dict[str, Any]:
        """The result of a tool. UnknownTool."""
        if request.name not in self._tools:
            raise UnknownTool(f"no tool {request.name[:200]!r}")
        said = request.meta.get(TOOL_USE_ID)
        context = replace(self._context, tool_call_id=said if isinstance(said, str) else None)
        outcome = await self._toolbox.run(
            request.name, request.arguments, context=context, on_progress=request.report
        )
        return tool_result(await self._decline_approval(outcome))

    async def _decline_approval(self, outcome: CallOutcome) -> CallOutcome:
        """What came of it; a call that wants somebody's word is not made."""
        if outcome.approval_id is None or outcome.error is None:
            return outcome
        await self._toolbox.answer_approval(
            outcome.approval_id, approved=False, by=self._context.identity, reason=NO_APPROVALS_HINT
        )
        return replace(outcome, approval_id=None, error=replace(outcome.error, hint=NO_APPROVALS_HINT))


def tool_result(outcome: CallOutcome) -> dict[str, Any]:
    """The result of a call, for a model: files as such, failures in words, and no value beside the text."""
    body = result_of(outcome)
    body.pop("structuredContent", None)
    if outcome.error is not None:
        return {**body, "content": [{"type": "text", "text": failure_text(outcome.error)}]}
    given = ToolPart("tool-any", outcome.call_id, "output-available", output=outcome.result)
    files = read_multimodal_output(given)
    return body if files is None else {**body, **write_multimodal_output(files)}


def with_borrowed_tools(find_model: FindModel, toolbox: Toolbox, *, context: Context) -> FindModel:
    """What finds models for a run: with its tools, where their provider runs a loop of its own."""

    def found(name: Model | str) -> Model:
        model = find_model(name)
        if not isinstance(model.provider, ClaudeCodeProvider) or not toolbox.tools:
            return model
        return Model(ToolLendingProvider(model.provider, toolbox, context=context), model.name, model.options)

    return found


def with_own_tool_name(event: e.Event) -> e.Event:
    """The event with the tool's own name."""
    match event:
        case e.ToolInputStart() | e.ToolInputAvailable() | e.ToolInputError():
            return replace(event, tool_name=event.tool_name.removeprefix(TOOL_PREFIX))
        case _:
            return event
