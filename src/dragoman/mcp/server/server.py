"""The hub as an MCP server: the four meta-tools and pinned operations, whatever they come through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import msgspec

from dragoman.errors import BadRequest, CallDenied, Conflict, DragomanError, NotFound
from dragoman.mcp.server.answers import answer, refused
from dragoman.mcp.server.asking import FOREIGN, QUESTION, Said, Seal, claim_of, form, said_in
from dragoman.mcp.server.menu import Menu, canonical
from dragoman.operations.approval import Approval, may_answer
from dragoman.operations.call import Calls
from dragoman.operations.context import Context, Report
from dragoman.operations.identity import LOCAL, Identity
from dragoman.operations.meta import Meta
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import Outcome
from dragoman.operations.registry import Registry

NAME = "dragoman"
ARRIVAL = 5.0  # seconds that pinned operations of servers that start are waited for
Elicit: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Any]]
Target: TypeAlias = str | Operation


class UnknownTool(NotFound):
    """No tool of this name: an error of the protocol, not of a tool."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a tool.

    `elicit` asks the client at once; `resumes` says that the client takes a question as the answer, and
    brings its `responses` and the `state` with the next request. Neither: nobody is there to be asked.
    `meta` is what the client says of the request itself, as it came.
    """

    name: str
    arguments: Mapping[str, Any] = {}
    identity: Identity = LOCAL
    report: Report | None = None
    elicit: Elicit | None = None
    resumes: bool = False
    responses: Mapping[str, Any] | None = None
    state: str | None = None
    meta: Mapping[str, Any] = {}


class Served(Protocol):
    """What can be served over MCP; `McpServer` is one."""

    @property
    def version(self) -> str:
        """What it says of itself; empty: nothing."""
        ...

    async def tools(self, identity: Identity) -> list[dict[str, Any]]:
        """The tools as `tools/list` tells them."""
        ...

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """The input schema of a tool some of whose parameters may stand in headers; None otherwise."""
        ...

    def instructions(self, identity: Identity) -> str:
        """What it says of itself to this caller."""
        ...

    async def call(self, request: ToolCall) -> dict[str, Any]:
        """The result of a tool. UnknownTool, BadRequest."""
        ...


class McpServer:
    """Serves tools over what a registry holds. The SDK of the protocol is not needed for that.

    `pinned` are operations that are listed as tools of their own: ids, or patterns such as `time.*`.
    """

    def __init__(
        self,
        meta: Meta,
        calls: Calls,
        *,
        registry: Registry,
        pinned: Sequence[str] = (),
        version: str = "",
    ) -> None:
        self.version = version
        self._meta = meta
        self._calls = calls
        self._menu = Menu(registry, calls, pinned=pinned)
        self._seal = Seal()

    async def tools(self, identity: Identity) -> list[dict[str, Any]]:
        """The tools as `tools/list` tells them: the same for the same caller and the same policy."""
        await self._arrived()
        return self._menu.tools(Context(identity=identity))

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """The input schema of a pinned operation: other people's may want parameters repeated in headers."""
        found = None if canonical(name) else self._menu.find(name, Context())
        return None if found is None else found.input_schema

    def instructions(self, identity: Identity) -> str:
        """What the server says of itself to this caller."""
        return self._menu.instructions(Context(identity=identity))

    async def call(self, request: ToolCall) -> dict[str, Any]:
        """The result of a tool, or the question that has to be answered before there is one.

        UnknownTool; BadRequest when it brings a state that is not of this request. All else that can go wrong
        is told in the result.
        """
        target = await self._target(request)
        try:
            if request.state is not None:
                outcome = await self._resume(request, target)
            else:
                outcome = await self._run(request, target)
            return await self._settle(request, target, outcome=outcome)
        except (BadRequest, UnknownTool):
            raise
        except DragomanError as error:
            return refused(error)

    async def _target(self, request: ToolCall) -> Target:
        target: Target | None = canonical(request.name)
        if target is None:
            await self._arrived()
            target = self._menu.find(request.name, Context(identity=request.identity))
        if target is None:
            raise UnknownTool(
                f"no tool {request.name[:200]!r}", hint="operations are called through the tool hub_call"
            )
        return target

    async def _arrived(self) -> None:
        """Wait a little for pinned operations that are on their way: clients ask once what there is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL):
                await self._calls.arrived(self._menu.pinned, Context())

    async def _run(self, request: ToolCall, target: Target, *, approval: str | None = None) -> Outcome:
        context = Context(identity=request.identity, approval=approval, told=True)
        if isinstance(target, str):
            return await self._meta.run(
                target, request.arguments, context=context, on_progress=request.report
            )
        return await self._calls.call(target, request.arguments, context=context, on_progress=request.report)

    async def _settle(self, request: ToolCall, target: Target, *, outcome: Outcome) -> dict[str, Any]:
        """Ask the client, if there is a way and its user may answer; else say who to turn to.

        A call that goes on may have to wait again: then it is asked once more.
        """
        while outcome.approval_id is not None:
            approval = await self._calls.guard.approvals.get(outcome.approval_id)
            if not may_answer(approval, request.identity):
                break
            if request.resumes:
                return self._question(request, approval)
            if request.elicit is None:
                break
            said = said_in(await request.elicit(form(approval)), approval)
            outcome = await self._answered(request, target, approval=approval, said=said)
        return answer(outcome)

    def _question(self, request: ToolCall, approval: Approval) -> dict[str, Any]:
        return {
            "resultType": "input_required",
            "inputRequests": {QUESTION: {"method": "elicitation/create", "params": form(approval)}},
            "requestState": self._seal.close(self._claim(request, approval.id)),
        }

    def _claim(self, request: ToolCall, approval_id: str) -> Any:
        return claim_of(approval_id, request.identity.owner, tool=request.name, input=request.arguments)

    async def _resume(self, request: ToolCall, target: Target) -> Outcome:
        """Go on with a request whose question was answered. BadRequest when it is not the one that asked."""
        claim = self._seal.open(request.state or "")
        if claim != self._claim(request, claim.approval_id):
            raise BadRequest(FOREIGN, hint="send the very same request that was answered with a question")
        approval = await self._calls.guard.approvals.get(claim.approval_id)
        said = said_in((request.responses or {}).get(QUESTION), approval)
        return await self._answered(request, target, approval=approval, said=said)

    async def _answered(
        self, request: ToolCall, target: Target, *, approval: Approval, said: Said
    ) -> Outcome:
        """Take the answer down, and call what was approved. One that is answered elsewhere stays so.

        A call that was in the midst of its work goes on, whatever was said. CallDenied, Conflict.
        """
        current = await self._calls.guard.approvals.get(approval.id)
        if current.status == "pending" and said.word == "nothing":
            raise waiting(current)
        if current.status == "pending":
            yes = said.word == "yes"
            with suppress(Conflict):  # somebody else was faster
                await self._calls.answer(current.id, approved=yes, by=request.identity, reason=said.answer)
            current = await self._calls.guard.approvals.get(approval.id)
        if current.status == "denied" and current.state is None:
            raise CallDenied("the call was not approved", hint=current.reason)
        return await self._run(request, target, approval=current.id)


def waiting(approval: Approval) -> DragomanError:
    """The error of a call that nobody has answered for."""
    error = Conflict(
        f"the call waits for approval {approval.id}",
        hint="`dragoman approvals` answers it; then make the very same call again",
    )
    error.code = "approval_needed"
    return error
