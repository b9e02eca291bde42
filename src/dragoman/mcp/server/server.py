"""The hub as an MCP server: the four meta-tools and pinned operations, independent of the transport."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import msgspec

from dragoman.errors import BadRequest, CallDenied, Conflict, DragomanError, NotFound
from dragoman.identity import LOCAL, Identity
from dragoman.mcp.server.elicitation import (
    APPROVAL_INPUT,
    STATE_MISMATCH,
    ElicitationReply,
    StateSigner,
    elicitation_form,
    make_claim,
    parse_reply,
)
from dragoman.mcp.server.results import error_result, tool_result
from dragoman.mcp.server.tool_list import ToolList, meta_tool_id
from dragoman.operations.approval import ApprovalRequest, may_answer
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import Context, ProgressCallback
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallOutcome
from dragoman.operations.registry import Registry

NAME = "dragoman"
PINNED_WAIT_SECONDS = 5.0  # for pinned operations of servers that are still starting
Elicit: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Any]]
Target: TypeAlias = str | Operation


class UnknownTool(NotFound):
    """No tool of this name: a protocol error, not a tool error."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A request to call a tool.

    With `elicit`, the client is asked for input during the call. With `can_resume`, the call ends with a
    request for input, and the client repeats it with `responses` and the signed `state`. With neither, the
    client cannot be asked. `meta` is the `_meta` of the request, unchanged.
    """

    name: str
    arguments: Mapping[str, Any] = {}
    identity: Identity = LOCAL
    report: ProgressCallback | None = None
    elicit: Elicit | None = None
    can_resume: bool = False
    responses: Mapping[str, Any] | None = None
    state: str | None = None
    meta: Mapping[str, Any] = {}


class ToolServer(Protocol):
    """Tools that can be served over MCP; `McpServer` is the hub's."""

    @property
    def version(self) -> str:
        """The version that the server reports; may be empty."""
        ...

    async def tools(self, identity: Identity) -> list[dict[str, Any]]:
        """Return the tools in the form of `tools/list`."""
        ...

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """Return the schema of a tool whose parameters may be repeated in headers; else None."""
        ...

    def instructions(self, identity: Identity) -> str:
        """Return the server's instructions for this caller."""
        ...

    async def call(self, request: ToolCall) -> dict[str, Any]:
        """Return the result of a tool. Raises UnknownTool, BadRequest."""
        ...


class McpServer:
    """Serves the operations of a registry as tools. Does not need the MCP SDK.

    `pinned` are operations that are listed as tools of their own: ids, or patterns such as `time.*`.
    """

    def __init__(
        self,
        meta: MetaTools,
        calls: Calls,
        *,
        registry: Registry,
        pinned: Sequence[str] = (),
        version: str = "",
    ) -> None:
        self.version = version
        self._meta = meta
        self._calls = calls
        self._tool_list = ToolList(registry, calls, pinned=pinned)
        self._signer = StateSigner()

    async def tools(self, identity: Identity) -> list[dict[str, Any]]:
        """Return the tools in the form of `tools/list`: the same for the same caller and policy."""
        context = Context(identity=identity)
        await self._wait_for_pinned(context)
        return self._tool_list.tools(context)

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """Return the schema of a pinned operation, whose parameters may have to be repeated in headers."""
        operation = None if meta_tool_id(name) else self._tool_list.find_pinned(name, Context())
        return None if operation is None else operation.input_schema

    def instructions(self, identity: Identity) -> str:
        """Return the server's instructions for this caller."""
        return self._tool_list.instructions(Context(identity=identity))

    async def call(self, request: ToolCall) -> dict[str, Any]:
        """Return the result of a tool, or the question that must be answered first.

        Raises UnknownTool, and BadRequest if `state` belongs to another request. All other errors are
        returned as results with `isError`.
        """
        target = await self._target(request)
        try:
            if request.state is not None:
                outcome = await self._resume(request, target)
            else:
                outcome = await self._run(request, target)
            return await self._resolve_approvals(request, target, outcome=outcome)
        except (BadRequest, UnknownTool):
            raise
        except DragomanError as error:
            return error_result(error)

    async def _target(self, request: ToolCall) -> Target:
        target: Target | None = meta_tool_id(request.name)
        if target is None:
            context = Context(identity=request.identity)
            await self._wait_for_pinned(context)
            target = self._tool_list.find_pinned(request.name, context)
        if target is None:
            raise UnknownTool(
                f"no tool {request.name[:200]!r}", hint="operations are called through the tool hub_call"
            )
        return target

    async def _wait_for_pinned(self, context: Context) -> None:
        """Wait briefly for pinned operations of servers that are starting: clients list tools once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PINNED_WAIT_SECONDS):
                await self._tool_list.wait_for_pinned(context)

    async def _run(self, request: ToolCall, target: Target, *, approval: str | None = None) -> CallOutcome:
        context = Context(identity=request.identity, approval=approval, for_model=True)
        if isinstance(target, str):
            return await self._meta.run(
                target, request.arguments, context=context, on_progress=request.report
            )
        return await self._calls.call(target, request.arguments, context=context, on_progress=request.report)

    async def _resolve_approvals(
        self, request: ToolCall, target: Target, *, outcome: CallOutcome
    ) -> dict[str, Any]:
        """Ask the client for approvals while it can and may answer; else return the result that names them.

        An approved call that continues may need another approval.
        """
        while outcome.approval_id is not None:
            approval = await self._calls.access_control.approvals.get(outcome.approval_id)
            if not may_answer(approval, request.identity):
                break
            if request.can_resume:
                return self._input_required(request, approval)
            if request.elicit is None:
                break
            reply = parse_reply(await request.elicit(elicitation_form(approval)), approval)
            outcome = await self._apply_reply(request, target, approval=approval, reply=reply)
        return tool_result(outcome)

    def _input_required(self, request: ToolCall, approval: ApprovalRequest) -> dict[str, Any]:
        return {
            "resultType": "input_required",
            "inputRequests": {
                APPROVAL_INPUT: {"method": "elicitation/create", "params": elicitation_form(approval)}
            },
            "requestState": self._signer.sign(self._claim(request, approval.id)),
        }

    def _claim(self, request: ToolCall, approval_id: str) -> Any:
        return make_claim(approval_id, request.identity.owner, tool=request.name, input=request.arguments)

    async def _resume(self, request: ToolCall, target: Target) -> CallOutcome:
        """Resume a request whose question was answered. Raises BadRequest if it is another request."""
        claim = self._signer.verify(request.state or "")
        if claim != self._claim(request, claim.approval_id):
            raise BadRequest(
                STATE_MISMATCH, hint="send exactly the same request that was answered with a question"
            )
        approval = await self._calls.access_control.approvals.get(claim.approval_id)
        reply = parse_reply((request.responses or {}).get(APPROVAL_INPUT), approval)
        return await self._apply_reply(request, target, approval=approval, reply=reply)

    async def _apply_reply(
        self, request: ToolCall, target: Target, *, approval: ApprovalRequest, reply: ElicitationReply
    ) -> CallOutcome:
        """Store the reply and run the approved call. An approval that was answered elsewhere stays so.

        A call that was suspended (`state`) continues after any answer. Raises CallDenied, and Conflict if
        there is no answer yet.
        """
        current = await self._calls.access_control.approvals.get(approval.id)
        if current.status == "pending" and reply.decision == "nothing":
            raise approval_needed_error(current)
        if current.status == "pending":
            approved = reply.decision == "yes"
            with suppress(Conflict):  # it was answered elsewhere meanwhile
                await self._calls.answer_approval(
                    current.id, approved=approved, by=request.identity, reason=reply.answer
                )
            current = await self._calls.access_control.approvals.get(approval.id)
        if current.status == "denied" and current.state is None:
            raise CallDenied("the call was not approved", hint=current.reason)
        return await self._run(request, target, approval=current.id)


def approval_needed_error(approval: ApprovalRequest) -> DragomanError:
    """Return the error of a call whose approval is not answered."""
    error = Conflict(
        f"the call waits for approval {approval.id}",
        hint="`dragoman approvals` answers it; then make exactly the same call again",
    )
    error.code = "approval_needed"
    return error
