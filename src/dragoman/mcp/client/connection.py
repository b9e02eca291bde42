"""Open sessions with MCP servers. One task opens and closes each; any task may call through it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import mcp.types as types
import msgspec
from mcp import ClientSession, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import listen
from msgspec.structs import replace
from pydantic import ValidationError

from dragoman.errors import CallError, CallUncertain, ConfigError, Unavailable
from dragoman.large_json import SMALL, measure
from dragoman.mcp.client.definitions import (
    DefinitionList,
    ToolDefinition,
    merge,
    parse_tools,
    prompt_operations,
    resource_operations,
)
from dragoman.mcp.client.flood import FloodMeter
from dragoman.mcp.client.http_transport import CONNECTION_LOST, TOO_LARGE, UNREACHABLE, make_client
from dragoman.mcp.client.large_messages import MessageBodies
from dragoman.mcp.client.process import McpServerProcess
from dragoman.mcp.client.results import (
    describe_question,
    prompt_value,
    question_error,
    resource_value,
    tool_value,
)
from dragoman.mcp.client.sdk_filter import RAW_KEY, Sanitizer
from dragoman.mcp.client.server_log import RecentLines
from dragoman.mcp.client.sse import connect_sse
from dragoman.mcp.client.stdio import connect_stdio
from dragoman.mcp.server_spec import ServerSpec
from dragoman.offload import offload
from dragoman.operations.context import Context
from dragoman.operations.sanitize import sanitize_text
from dragoman.processes.watchdog import Watchdog
from dragoman.redaction import Redactor

log = logging.getLogger(__name__)

MAX_PAGES = 200
MAX_LISTED = 1_000  # resources, templates and prompts that an operation lists
MAX_LIST_SIZE = 64_000_000  # bytes of the pages of a list
TOO_LONG = f"tools are left out: their list has more than {MAX_PAGES} pages, or {MAX_LIST_SIZE:,} bytes"
MAX_QUESTIONS = 10  # questions that the error of a call lists
PROBE_SECONDS = 3.0  # for a server to list its resources, or its prompts, when it is connected
QUESTION_SECONDS = 2.0  # for a server to end a call whose question was refused
RELISTEN_SECONDS = 5.0  # after a stream of reported changes ended, before another is opened
CLIENT_IMPLEMENTATION = types.Implementation(name="dragoman", version="1")
SESSION_TERMINATED = "Session terminated"  # what the SDK says when an HTTP session is gone


class UncheckedSession(ClientSession):
    """The SDK's session, without its checks of results: the hub makes them, and gives the SDK empty ones."""

    async def validate_tool_result(self, name: str, result: types.CallToolResult) -> None:
        """Accept the result. The SDK would list all tools again for a tool that it has not been shown."""


class ActiveCall(msgspec.Struct):
    """A running call: its timeout, and what its server has asked the client for meanwhile."""

    timeout: asyncio.Timeout
    questions: list[str]


class ConnectionOptions(msgspec.Struct, frozen=True):
    """What a connection is opened with: environment, redactor, limits, watchdog."""

    environ: Mapping[str, str]
    redactor: Redactor
    message_limit: int
    watchdog: Watchdog
    on_change: Callable[[], None]
    meter: FloodMeter
    recent_lines: RecentLines


class McpConnection:
    """An open session. `closed` is set when no call can go through it any more."""

    def __init__(self, spec: ServerSpec, options: ConnectionOptions, *, bodies: MessageBodies) -> None:
        self._bodies = bodies
        self._name = spec.name
        self._max_tools = spec.max_tools
        self._redactor = options.redactor
        self._active_calls: list[ActiveCall] = []
        self._session: ClientSession
        self.sanitizer = Sanitizer(
            options.redactor,
            meter=options.meter,
            bodies=bodies,
            on_question=self._record_question,
            on_change=options.on_change,
        )
        self.closed = self.sanitizer.closed
        self.exit_report: Callable[[], Awaitable[str]] | None = None

    @property
    def title(self) -> str | None:
        info = self._session.server_info
        return None if info is None else sanitize_text(f"{info.name} {info.version}", 100)

    @property
    def protocol(self) -> str | None:
        return self._session.protocol_version

    async def definitions(self) -> DefinitionList:
        """Return everything that the server offers. Raises CallError if it does not answer."""
        declared = self._session.server_capabilities or types.ServerCapabilities()
        tools, is_whole = await self._list_tools() if declared.tools is not None else ([], True)
        extras = [
            *(resource_operations() if declared.resources and await self._has_resources() else ()),
            *(prompt_operations() if declared.prompts and await self._has_prompts() else ()),
        ]
        parsed = await offload(measure(tools), partial(parse_tools, tools, limit=self._max_tools))
        problems = parsed.problems if is_whole else (*parsed.problems, TOO_LONG)
        return merge(replace(parsed, problems=problems), extras)

    async def _has_resources(self) -> bool:
        """Return whether a resource or template is listed. SDKs declare the capability without any, too."""
        return await self._lists_any(self._session.list_resources, "resources") or await self._lists_any(
            self._session.list_resource_templates, "resource_templates"
        )

    async def _has_prompts(self) -> bool:
        """Return whether a prompt is listed."""
        return await self._lists_any(self._session.list_prompts, "prompts")

    async def _lists_any(self, request_list: Callable[[], Awaitable[Any]], field: str) -> bool:
        """Return whether a list has entries. A list that fails counts as one: its operation says why."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                page = await request_list()
        except MCPError as error:
            return error.code != types.METHOD_NOT_FOUND
        except (TimeoutError, ValueError, RuntimeError):
            return True
        return bool(getattr(page, field) or self._take_raw(page, []) or page.next_cursor)

    def _take_raw(self, result: Any, default: Any) -> Any:
        """Return the part of a result that was kept out of the SDK's checks; see `sdk_filter.py`."""
        return self._bodies.take((result.meta or {}).get(RAW_KEY, default))

    async def call(self, definition: ToolDefinition, input: Mapping[str, Any], *, context: Context) -> Any:
        """Return the server's result.

        Raises Unavailable if the server was not reached, CallUncertain if the connection was lost during the
        call, and CallError for errors of the server and requests for input.
        """
        async with asyncio.timeout(None) as limit:
            active = ActiveCall(limit, [])
            self._active_calls.append(active)
            try:
                return await self._dispatch(definition, input, context=context)
            except asyncio.CancelledError:
                if limit.expired():
                    raise question_error(active.questions) from None
                raise
            except CallError as error:
                if active.questions and not isinstance(error, CallUncertain):
                    raise question_error(active.questions) from error
                raise
            finally:
                self._active_calls.remove(active)

    async def negotiate(self, session: ClientSession, *, modern: bool) -> None:
        """Negotiate the protocol revision, the newest first if `modern`.

        A program may exit at a request that it does not know, so it gets the older `initialize` first.
        """
        self._session = session
        first, second = (
            (session.discover, session.initialize) if modern else (session.initialize, session.discover)
        )
        try:
            await first()
        except (MCPError, ValidationError, RuntimeError):
            if self.closed.is_set():
                raise
            await second()

    async def watch_changes(self) -> None:
        """Keep a stream open on which a server of the newest revision reports changed lists."""
        while not self.closed.is_set():
            try:
                await self._read_changes()
            except MCPError as error:
                if error.code in (types.METHOD_NOT_FOUND, types.INVALID_PARAMS, types.INVALID_REQUEST):
                    return
            except RuntimeError:  # the SDK's: not of this revision, or the stream closed early
                if self._session.discover_result is None:
                    return
            await asyncio.sleep(RELISTEN_SECONDS)

    async def _read_changes(self) -> None:
        """Read reported changes until the stream ends; the sanitizer passes them on."""
        async with listen(
            self._session, tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
        ) as changes:
            async for _ in changes:
                pass

    async def _list_tools(self) -> tuple[Sequence[Any], bool]:
        return await self._list_pages(self._session.list_tools, limit=self._max_tools)

    async def _list_pages(
        self, request: Callable[..., Awaitable[Any]], *, limit: int = MAX_LISTED
    ) -> tuple[list[Any], bool]:
        """Return the entries of a list, page by page, and False if pages were left out.

        Reading ends after the page that exceeds `limit`, and at MAX_PAGES or MAX_LIST_SIZE, since a server
        may continue for ever.
        """
        listed: list[Any] = []
        cursor: str | None = None
        size = 0
        for _ in range(MAX_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
            page = await self._request(request(params=params))
            require_complete(page)
            entries = self._take_raw(page, [])
            listed += entries
            size += measure(entries)
            if not page.next_cursor or page.next_cursor == cursor or len(listed) > limit:
                return listed, True
            if size > MAX_LIST_SIZE:
                return listed, False
            cursor = page.next_cursor
        return listed, False

    async def _dispatch(
        self, definition: ToolDefinition, input: Mapping[str, Any], *, context: Context
    ) -> Any:
        match definition.method:
            case "tools/call":
                return await self._call_tool(definition.name, input, context=context)
            case "resources/list":
                return await self._list_resources()
            case "resources/read":
                read = self._session.read_resource(input["uri"], allow_input_required=True)
                page = await self._request(read)
                require_complete(page)
                contents = self._take_raw(page, [])
                return await offload(measure(contents), partial(resource_value, contents))
            case "prompts/list":
                prompts, is_whole = await self._list_pages(self._session.list_prompts)
                return list_value("prompts", prompts, is_whole=is_whole)
            case "prompts/get":
                get = self._session.get_prompt(
                    input["name"], dict(input.get("arguments") or {}), allow_input_required=True
                )
                return prompt_value(answer_json(await self._request(get)))

    async def _call_tool(self, name: str, input: Mapping[str, Any], *, context: Context) -> Any:
        async def report_progress(*values: Any) -> None:
            progress, total, message = values
            text = None if message is None else sanitize_text(self._redactor(message), 500)
            context.progress({"progress": progress, "total": total, "message": text})

        on_progress: Any = report_progress
        size = measure(input)

        async def call() -> Any:
            arguments = dict(input)
            if size > SMALL:
                arguments = await offload(size, partial(self._bodies.refer, input))
            return await self._session.call_tool(
                name, arguments, progress_callback=on_progress, allow_input_required=True
            )

        try:
            answer = await self._request(call())
        except CallError as error:
            if error.code != "header_mismatch":
                raise
            await self._list_tools()  # the SDK mirrors arguments into headers as the newest list says
            answer = await self._request(call())
        require_complete(answer)
        raw = self._take_raw(answer, {})
        return await offload(measure(raw), partial(tool_value, raw))

    async def _list_resources(self) -> Mapping[str, Any]:
        resources, is_whole = await self._list_pages(self._session.list_resources)
        try:
            templates, _ = await self._list_pages(self._session.list_resource_templates)
        except CallError:
            templates = []
        return {**list_value("resources", resources, is_whole=is_whole), "templates": templates[:MAX_LISTED]}

    async def _request(self, request: Awaitable[Any]) -> Any:
        """Await a request to the server; turn the SDK's errors into the hub's."""
        try:
            return await request
        except MCPError as error:
            raise await self._hub_error(error) from None
        except ValueError:  # ValidationError, and what pydantic raises for values that it cannot dump
            raise CallError(f"the answer of MCP server {self._name!r} does not follow MCP") from None
        except RuntimeError as error:
            raise CallError(f"MCP server {self._name!r}: {sanitize_text(str(error), 300)}") from None

    async def _hub_error(self, error: MCPError) -> CallError | Unavailable:
        message = sanitize_text(self._redactor(error.message), 1_000)
        server = f"MCP server {self._name!r}"
        if error.code == UNREACHABLE or message == SESSION_TERMINATED:
            self.sanitizer.closed.set()
            return Unavailable(f"{server} was not reached: {message}")
        if error.code in (types.CONNECTION_CLOSED, CONNECTION_LOST):
            if "SSEError" in message or "SSE stream failed" in message:
                return CallError(f"{server} sent an answer that cannot be used: {message}")
            reason = message if self.exit_report is None else await self.exit_report()
            return CallUncertain(f"{server} was lost during the call: {reason}")
        if error.code == TOO_LARGE:
            return CallError(f"{server}: {message}", hint="ask for less at a time")
        failure = CallError(f"{server}: {message}")
        if error.code == types.HEADER_MISMATCH:
            failure.code = "header_mismatch"
        return failure

    def _record_question(self, method: str, params: Any) -> None:
        """Record a refused request of the server with each active call: nothing says which it belongs to.

        If only one call is active, it has QUESTION_SECONDS to end without an answer. A refusal of the
        client's folders (`roots/list`) ends no call.
        """
        for active in self._active_calls:
            if len(active.questions) < MAX_QUESTIONS:
                active.questions.append(describe_question(method, params))
        if (
            method != "roots/list"
            and len(self._active_calls) == 1
            and self._active_calls[0].timeout.when() is None
        ):
            self._active_calls[0].timeout.reschedule(asyncio.get_running_loop().time() + QUESTION_SECONDS)


def list_value(name: str, entries: Sequence[Any], *, is_whole: bool) -> dict[str, Any]:
    """Return the value of a list. Says so when entries are left out."""
    value: dict[str, Any] = {name: list(entries[:MAX_LISTED])}
    if not is_whole or len(entries) > MAX_LISTED:
        value["note"] = f"there are more {name}: the first {len(value[name]):,} are listed"
    return value


def require_complete(answer: Any) -> None:
    """Raise CallError if the answer is a request for input."""
    if isinstance(answer, types.InputRequiredResult):
        requests = (answer.input_requests or {}).values()
        raise question_error([describe_question(each.method, params_json(each.params)) for each in requests])


def answer_json(answer: Any) -> dict[str, Any]:
    """Return the answer as JSON. Raises CallError if it is a request for input."""
    require_complete(answer)
    shown: dict[str, Any] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    return shown


def params_json(params: Any) -> Any:
    return params.model_dump(mode="json", by_alias=True) if params is not None else None


@asynccontextmanager
async def connect(spec: ServerSpec, options: ConnectionOptions) -> AsyncIterator[McpConnection]:
    """Open a connection to the server. If a URL answers no POST, try the older SSE transport."""
    if spec.command:
        async with connect_process(spec, options) as connection:
            yield connection
        return
    async with AsyncExitStack() as stack:
        try:
            opening = connect_url(spec, options, sse=spec.transport == "sse")
            connection = await stack.enter_async_context(opening)
        except (ConfigError, ExceptionGroup):
            older = await connect_legacy_sse(spec, options, stack=stack) if spec.transport == "auto" else None
            if older is None:
                raise
            connection = older
        yield connection


async def connect_legacy_sse(
    spec: ServerSpec, options: ConnectionOptions, *, stack: AsyncExitStack
) -> McpConnection | None:
    """Connect over the SSE transport of 2024; None if the server does not support it."""
    try:
        return await stack.enter_async_context(connect_url(spec, options, sse=True))
    except (ConfigError, ExceptionGroup):
        return None


@asynccontextmanager
async def connect_process(spec: ServerSpec, options: ConnectionOptions) -> AsyncIterator[McpConnection]:
    child = await McpServerProcess.start(
        spec,
        options.environ,
        redactor=options.redactor,
        watchdog=options.watchdog,
        recent=options.recent_lines,
    )
    bodies = MessageBodies()
    lines = connect_stdio(
        child,
        limit=options.message_limit,
        redactor=options.redactor,
        meter=options.meter,
        bodies=bodies,
    )
    connection = McpConnection(spec, options, bodies=bodies)
    connection.exit_report = child.exit_report
    async with open_session(connection, lines, modern=False):
        yield connection


@asynccontextmanager
async def connect_url(
    spec: ServerSpec, options: ConnectionOptions, *, sse: bool
) -> AsyncIterator[McpConnection]:
    url, headers = spec.url or "", {**spec.headers, **spec.secrets}
    bodies = MessageBodies()
    connection = McpConnection(spec, options, bodies=bodies)
    if sse:
        older = connect_sse(url, headers, limit=options.message_limit, bodies=bodies)
        async with open_session(connection, older, modern=False):
            yield connection
        return
    async with make_client(url, headers, limit=options.message_limit, bodies=bodies) as client:
        streams = streamable_http_client(url, http_client=client, max_sse_event_size=options.message_limit)
        async with open_session(connection, streams, modern=True):
            yield connection


@asynccontextmanager
async def open_session(
    connection: McpConnection, transport: AbstractAsyncContextManager[Any], *, modern: bool
) -> AsyncIterator[None]:
    async with (
        connection.sanitizer.wrap(transport) as (incoming, outgoing),
        UncheckedSession(incoming, outgoing, client_info=CLIENT_IMPLEMENTATION) as session,
    ):
        try:
            await connection.negotiate(session, modern=modern)
        except (MCPError, ValidationError, RuntimeError) as error:
            raise await connect_error(connection, error) from None
        yield


async def connect_error(connection: McpConnection, error: Exception) -> ConfigError:
    if connection.closed.is_set() and connection.exit_report is not None:
        return ConfigError(await connection.exit_report())
    if isinstance(error, MCPError):
        return ConfigError(sanitize_text(error.message, 300))
    return ConfigError("it does not speak MCP")
