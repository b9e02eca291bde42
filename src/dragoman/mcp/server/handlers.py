"""The hub's tools as request handlers of the MCP SDK, and the SDK's HTTP sessions.

This is the only module of the server that imports the SDK. That takes a second, so the module is imported in
a thread at the first request that needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableSet
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from msgspec.structs import replace
from starlette.types import Message, Receive, Scope, Send

from dragoman.errors import BadRequest, KeyEnded, Unavailable
from dragoman.identity import LOCAL, Identity
from dragoman.mcp.server.limits import McpLimits
from dragoman.mcp.server.running_call import CALLS_KEY, IDENTITY_KEY, RunningCall
from dragoman.mcp.server.server import NAME, Elicit, ToolCall, ToolServer, UnknownTool

CACHE_TTL_MS = 60_000  # how long a client may reuse the list of tools
SdkRequest = ServerRequestContext[Any, Any]
CallNext = Callable[[SdkRequest], Awaitable[Any]]


def build_sdk_server(tool_server: ToolServer) -> Server[Any]:
    """Return the SDK's server for these tools."""
    handlers = SdkHandlers(tool_server)
    server: Server[Any] = Server(
        NAME,
        version=tool_server.version,
        title="Dragoman",
        on_list_tools=handlers.list_tools,  # type: ignore[arg-type]
        on_call_tool=handlers.call_tool,  # type: ignore[arg-type]
        get_tool_input_schema=tool_server.input_schema,
    )
    server.middleware.append(handlers.add_instructions)
    return server


class SdkHandlers:
    """The SDK's request handlers. Results are plain dicts, which the SDK checks before it sends them."""

    def __init__(self, tool_server: ToolServer) -> None:
        self._tool_server = tool_server

    async def add_instructions(self, ctx: SdkRequest, call_next: CallNext) -> Any:
        """Add instructions that name the namespaces which the caller may use."""
        result = await call_next(ctx)
        if ctx.method in ("initialize", "server/discover") and isinstance(result, dict):
            result["instructions"] = self._tool_server.instructions(identity_of(ctx))
        return result

    async def list_tools(self, request: SdkRequest, _params: Any) -> dict[str, Any]:
        """Return all tools, on one page."""
        cached = {} if is_handshake_revision(request) else {"ttlMs": CACHE_TTL_MS, "cacheScope": "private"}
        return complete_result(
            request, {"tools": await self._tool_server.tools(identity_of(request)), **cached}
        )

    async def call_tool(self, request: SdkRequest, params: types.CallToolRequestParams) -> dict[str, Any]:
        """Call a tool, and report its progress if the client requests that."""
        tool_call = tool_call_from(request, params)
        reports_progress = bool(request.meta and request.meta.get("progress_token") is not None)
        call = RunningCall(
            lambda report: self._tool_server.call(replace(tool_call, report=report)),
            reports_progress=reports_progress,
        )
        calls = calls_of(request)
        calls.add(call)
        try:
            while (update := await call.next()) is not None:
                await request.session.report_progress(update.count, message=update.text)
            return complete_result(request, await call.result())
        except asyncio.CancelledError:
            call.cancel()
            raise
        except (UnknownTool, BadRequest) as error:
            raise MCPError(types.INVALID_PARAMS, error.message, error.to_json()) from None
        except KeyEnded as error:
            raise MCPError(types.INTERNAL_ERROR, error.message, error.to_json()) from None
        except Unavailable as error:
            raise MCPError(types.INTERNAL_ERROR, error.message) from None
        finally:
            calls.discard(call)


def tool_call_from(request: SdkRequest, params: types.CallToolRequestParams) -> ToolCall:
    """Return the call for the tool server.

    If the client supports elicitation, `elicit` is set for revisions with a handshake, else `can_resume`.
    """
    capabilities = request.session.client_capabilities
    asks = capabilities is not None and capabilities.elicitation is not None
    old = is_handshake_revision(request)
    return ToolCall(
        name=params.name,
        arguments=params.arguments or {},
        identity=identity_of(request),
        elicit=make_elicit(request) if asks and old and request.session.can_send_request else None,
        can_resume=asks and not old,
        responses=(request.params or {}).get("inputResponses"),
        state=params.request_state,
        meta=(request.params or {}).get("_meta") or {},
    )


def complete_result(request: SdkRequest, result: dict[str, Any]) -> dict[str, Any]:
    """Return the result, marked as complete where the protocol revision requires it."""
    return result if is_handshake_revision(request) else {"resultType": "complete", **result}


def is_handshake_revision(request: SdkRequest) -> bool:
    """Return whether the client uses a revision with a handshake."""
    return request.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS


def make_elicit(request: SdkRequest) -> Elicit:
    """Return the function that asks a client of an earlier revision for input, during its request."""

    async def ask(form: Mapping[str, Any]) -> Any:
        try:
            answer = await request.session.elicit_form(
                form["message"], dict(form["requestedSchema"]), request.request_id
            )
        except MCPError:  # the client refuses elicitation
            return None
        return answer.model_dump(by_alias=True, mode="json", exclude_none=True)

    return ask


def identity_of(request: SdkRequest) -> Identity:
    """Return the identity that the endpoint found, or over stdio the owner of this process."""
    if request.request is None:
        return LOCAL
    identity: Identity = request.request.scope.get(IDENTITY_KEY, LOCAL)
    return identity


def calls_of(request: SdkRequest) -> MutableSet[RunningCall]:
    """Return the running calls of this HTTP request; they end when its client disconnects."""
    if request.request is None:
        return set()
    calls: MutableSet[RunningCall] = request.request.scope.setdefault(CALLS_KEY, set())
    return calls


class SdkSessions:
    """Serves requests with and without a session."""

    def __init__(self, server: Server[Any], *, limits: McpLimits) -> None:
        self._stateful = StreamableHTTPSessionManager(
            server,
            session_idle_timeout=limits.idle,
            max_sessions=None,  # OpenSessions limits them, for each owner
            max_request_body_size=limits.body,
        )
        self._stateless = StreamableHTTPSessionManager(
            server, stateless=True, max_request_body_size=limits.body
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Serve while the block runs. The task that enters it must leave it."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._stateful.run())
            await stack.enter_async_context(self._stateless.run())
            yield

    async def delete(self, session_id: str, *, identity: Identity) -> None:
        """End a session as its client would: later requests with its id get a 404."""
        scope: Scope = {
            "type": "http",
            "method": "DELETE",
            "path": "/mcp",
            "query_string": b"",
            "headers": [(b"mcp-session-id", session_id.encode("latin-1"))],
        }

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(_: Message) -> None:
            """Ignore the response."""

        await self.serve(scope, receive, send, identity=identity, stateless=False)

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, *, identity: Identity, stateless: bool
    ) -> None:
        """Answer one request. A `stateless` one belongs to no session and opens none."""
        token = AccessToken(token="", client_id=identity.owner, scopes=[])
        scope["user"] = AuthenticatedUser(token)  # the SDK gives a session to its owner only
        manager = self._stateless if stateless else self._stateful
        await manager.handle_request(scope, receive, send)
