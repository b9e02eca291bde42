"""The tools of a run for a provider with its own agent loop, which calls them over MCP.

Claude Code is such a provider. Its calls of these tools run like any call of the run, with its hooks,
policy, budget and ledger; in the answer they are calls that the provider has run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from dragoman import events as e
from dragoman.agent.tools.tool_execution import failure_text
from dragoman.agent.tools.toolbox import Toolbox
from dragoman.identity import Identity
from dragoman.mcp.server.results import tool_result as result_of
from dragoman.mcp.server.server import ToolCall, UnknownTool
from dragoman.mcp.server.tool_list import ALWAYS_LOAD
from dragoman.messages import ToolPart
from dragoman.model_request import ModelRequest, Tool
from dragoman.operations.context import Context
from dragoman.operations.outcome import CallOutcome
from dragoman.providers.claude_code.provider import AGENT_TOOL_SERVER, ClaudeCodeProvider
from dragoman.providers.model import Model
from dragoman.providers.wrapper import ProviderWrapper
from dragoman.wire.multimodal_outputs import read_multimodal_output, write_multimodal_output

TOOL_PREFIX = f"mcp__{AGENT_TOOL_SERVER}__"
TOOL_USE_ID = "claudecode/toolUseId"  # in a request's `_meta`: the id of the tool call
NO_APPROVALS_HINT = (
    "approvals are not possible while Claude Code works: allow the call by a policy rule, or do without it"
)


class ToolLendingProvider(ProviderWrapper[ClaudeCodeProvider]):
    """A `Provider`: Claude Code with the tools of one run."""

    def __init__(self, provider: ClaudeCodeProvider, toolbox: Toolbox, *, context: Context) -> None:
        super().__init__(provider)
        self._toolbox = toolbox
        self._context = context
        self._step = 0

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`. Tools that run outside of the hub cannot be lent."""
        lent_names = {tool.name for tool in self._borrowable_tools(request)}
        outside = [f"tool {tool.name}" for tool in request.tools if tool.name not in lent_names]
        return [*self._provider.check(replace(request, tools=())), *outside]

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[e.Event], None]:
        """See `Provider.stream`."""
        self._step += 1
        tools, without_tools = self._borrowable_tools(request), replace(request, tools=())
        if not tools:
            async with aclosing(self._provider.stream(without_tools)) as answer:
                async for batch in answer:
                    yield batch
            return
        from dragoman.mcp.server.loopback_server import serve_locally  # late: it imports a web server

        context = replace(self._context, step=self._step, for_model=True)
        async with serve_locally(RunToolServer(tools, self._toolbox, context=context)) as server:
            provider = self._provider.with_agent_tools(server.url, server.token)
            async with aclosing(provider.stream(without_tools)) as answer:
                async for batch in answer:
                    yield [with_own_tool_name(event) for event in batch]

    def _borrowable_tools(self, request: ModelRequest) -> Sequence[Tool]:
        kind = self._toolbox.kind
        return [tool for tool in request.tools if kind(tool.name) in ("meta", "operation")]


class RunToolServer:
    """The tools as they are served over MCP; see `ToolServer`."""

    version = ""

    def __init__(self, tools: Sequence[Tool], toolbox: Toolbox, *, context: Context) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._toolbox = toolbox
        self._context = context

    async def tools(self, identity: Identity) -> list[dict[str, Any]]:
        """See `ToolServer`."""
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
        """See `ToolServer`: no parameter is repeated in headers."""

    def instructions(self, identity: Identity) -> str:
        """See `ToolServer`."""
        return ""

    async def call(self, request: ToolCall) -> dict[str, Any]:
        """Return the result of a tool. Raises UnknownTool."""
        if request.name not in self._tools:
            raise UnknownTool(f"no tool {request.name[:200]!r}")
        tool_call_id = request.meta.get(TOOL_USE_ID)
        context = replace(self._context, tool_call_id=tool_call_id if isinstance(tool_call_id, str) else None)
        outcome = await self._toolbox.run(
            request.name, request.arguments, context=context, on_progress=request.report
        )
        return tool_result(await self._decline_approval(outcome))

    async def _decline_approval(self, outcome: CallOutcome) -> CallOutcome:
        """Return the outcome; a call that needs approval is declined."""
        if outcome.approval_id is None or outcome.error is None:
            return outcome
        await self._toolbox.answer_approval(
            outcome.approval_id, approved=False, by=self._context.identity, reason=NO_APPROVALS_HINT
        )
        return replace(outcome, approval_id=None, error=replace(outcome.error, hint=NO_APPROVALS_HINT))


def tool_result(outcome: CallOutcome) -> dict[str, Any]:
    """Return the result of a call as MCP content: files as such, failures as text, no structured content
    beside it.
    """
    body = result_of(outcome)
    body.pop("structuredContent", None)
    if outcome.error is not None:
        return {**body, "content": [{"type": "text", "text": failure_text(outcome.error)}]}
    part = ToolPart("tool-any", outcome.call_id, "output-available", output=outcome.result)
    files = read_multimodal_output(part)
    return body if files is None else {**body, **write_multimodal_output(files)}


def with_agent_tools(model: Model, toolbox: Toolbox, *, context: Context) -> Model:
    """Return the model with a run's tools, where its provider runs a loop of its own."""
    if not isinstance(model.provider, ClaudeCodeProvider) or not toolbox.tools:
        return model
    return Model(ToolLendingProvider(model.provider, toolbox, context=context), model.name, model.options)


def with_own_tool_name(event: e.Event) -> e.Event:
    """Return the event with the tool's own name."""
    match event:
        case e.ToolInputStart() | e.ToolInputAvailable() | e.ToolInputError():
            return replace(event, tool_name=event.tool_name.removeprefix(TOOL_PREFIX))
        case _:
            return event
