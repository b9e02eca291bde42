"""Connections: open sessions with servers. One task opens and closes each; any may call through it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import mcp.types as types
import msgspec
from mcp import ClientSession, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import listen
from pydantic import ValidationError

from dragoman.errors import CallError, CallUncertain, ConfigError, Unavailable
from dragoman.mcp.client.blot import Blot
from dragoman.mcp.client.bounded import LOST, TOO_LARGE, UNREACHED, client_for
from dragoman.mcp.client.child import Child
from dragoman.mcp.client.filter import RAW, Filter
from dragoman.mcp.client.listing import Definition, Listing, merge, prompts, read_tools, resources
from dragoman.mcp.client.results import contents_of, messages_of, question_of, result_of, unanswered
from dragoman.mcp.client.sse import events_of
from dragoman.mcp.client.stdio import lines_of
from dragoman.mcp.spec import ServerSpec
from dragoman.operations.cleaning import clean
from dragoman.operations.context import Context
from dragoman.processes.watchdog import Watchdog

log = logging.getLogger(__name__)

PAGES = 200
QUESTION_SECONDS = 2.0  # for a server to end a call whose question was refused
LISTEN_SECONDS = 5.0  # before changes are listened for again
CLIENT = types.Implementation(name="dragoman", version="1")
TERMINATED = "Session terminated"  # what the SDK says when an HTTP session is gone


class Inquiry(msgspec.Struct):
    """A call under way: what its server asked for meanwhile, and until when it is still waited for."""

    limit: asyncio.Timeout
    questions: list[str]


class Surroundings(msgspec.Struct, frozen=True):
    """What a connection is opened with: the hub's variables, what to blot out, an answer's limit."""

    environ: Mapping[str, str]
    blot: Blot
    limit: int
    watchdog: Watchdog
    on_change: Callable[[], None]


class Connection:
    """An open session. `closed` is set once no call can go through it any more."""

    def __init__(self, name: str, *, blot: Blot, on_change: Callable[[], None]) -> None:
        self._name = name
        self._blot = blot
        self._inquiries: list[Inquiry] = []
        self._session: ClientSession
        self.filter = Filter(blot, on_question=self._asked, on_change=on_change)
        self.closed = self.filter.ended
        self.obituary: Callable[[], Awaitable[str]] | None = None

    @property
    def title(self) -> str | None:
        info = self._session.server_info
        return None if info is None else clean(f"{info.name} {info.version}", 100)

    @property
    def protocol(self) -> str | None:
        return self._session.protocol_version

    async def definitions(self) -> Listing:
        """All that the server offers now. CallError when it does not say."""
        can = self._session.server_capabilities or types.ServerCapabilities()
        tools = await self._tools() if can.tools is not None else []
        extras = [*(resources() if can.resources else ()), *(prompts() if can.prompts else ())]
        return merge(read_tools(tools), extras)

    async def call(self, definition: Definition, input: Mapping[str, Any], *, context: Context) -> Any:
        """What the server gives. Unavailable when it was not reached, CallUncertain when it was lost
        meanwhile, CallError for all else.
        """
        async with asyncio.timeout(None) as limit:
            inquiry = Inquiry(limit, [])
            self._inquiries.append(inquiry)
            try:
                return await self._answered(definition, input, context=context)
            except asyncio.CancelledError:
                if limit.expired():
                    raise unanswered(inquiry.questions) from None
                raise
            except CallError as error:
                if inquiry.questions and not isinstance(error, CallUncertain):
                    raise unanswered(inquiry.questions) from error
                raise
            finally:
                self._inquiries.remove(inquiry)

    async def open(self, session: ClientSession, *, modern: bool) -> None:
        """Agree on a revision: the newest first where a server surely refuses what it does not know.

        A program that reads lines may be lost at an unknown request, so it is greeted in the older way first.
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

    async def listen(self) -> None:
        """Keep a stream open on which a server of the newest revision says that its lists changed."""
        while not self.closed.is_set():
            try:
                await self._hear()
            except MCPError as error:
                if error.code in (types.METHOD_NOT_FOUND, types.INVALID_PARAMS, types.INVALID_REQUEST):
                    return
            except RuntimeError:  # the SDK's: not of this revision, or the stream broke off
                if self._session.discover_result is None:
                    return
            await asyncio.sleep(LISTEN_SECONDS)

    async def _hear(self) -> None:
        """Read what is said of changes, until the stream ends; the filter tells it on."""
        async with listen(
            self._session, tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
        ) as heard:
            async for _ in heard:
                pass

    async def _tools(self) -> Sequence[Any]:
        found: list[Any] = []
        cursor: str | None = None
        for _ in range(PAGES):
            params = types.PaginatedRequestParams(cursor=cursor)
            page = await self._asking(self._session.list_tools(params=params if cursor else None))
            found += (page.meta or {}).get(RAW, [])
            if not page.next_cursor or page.next_cursor == cursor:
                return found
            cursor = page.next_cursor
        return found

    async def _answered(self, definition: Definition, input: Mapping[str, Any], *, context: Context) -> Any:
        match definition.method:
            case "tools/call":
                return await self._tool(definition.name, input, context=context)
            case "resources/list":
                return await self._resources()
            case "resources/read":
                read = self._session.read_resource(input["uri"], allow_input_required=True)
                return contents_of(told(await self._asking(read))["contents"])
            case "prompts/list":
                return {"prompts": told(await self._asking(self._session.list_prompts()))["prompts"]}
            case "prompts/get":
                get = self._session.get_prompt(
                    input["name"], dict(input.get("arguments") or {}), allow_input_required=True
                )
                return messages_of(told(await self._asking(get)))

    async def _tool(self, name: str, input: Mapping[str, Any], *, context: Context) -> Any:
        async def progressed(*told: Any) -> None:
            progress, total, message = told
            said = None if message is None else clean(self._blot(message), 500)
            context.progress({"progress": progress, "total": total, "message": said})

        hear: Any = progressed

        async def call() -> Any:
            return await self._session.call_tool(
                name, dict(input), progress_callback=hear, allow_input_required=True
            )

        try:
            answer = await self._asking(call())
        except CallError as error:
            if error.code != "header_mismatch":
                raise
            await self._tools()  # the SDK mirrors arguments into headers as the newest list says
            answer = await self._asking(call())
        told(answer)
        return result_of((answer.meta or {}).get(RAW, {}))

    async def _resources(self) -> Mapping[str, Any]:
        listed = told(await self._asking(self._session.list_resources()))
        try:
            templates = told(await self._asking(self._session.list_resource_templates()))
        except CallError:
            templates = {}
        return {
            "resources": listed["resources"],
            "templates": templates.get("resourceTemplates", []),
        }

    async def _asking(self, request: Awaitable[Any]) -> Any:
        """What the server answers; the SDK's errors as the hub's."""
        try:
            return await request
        except MCPError as error:
            raise await self._failure(error) from None
        except ValidationError:
            raise CallError(f"the answer of MCP server {self._name!r} does not follow MCP") from None
        except RuntimeError as error:
            raise CallError(f"MCP server {self._name!r}: {clean(str(error), 300)}") from None

    async def _failure(self, error: MCPError) -> CallError | Unavailable:
        said = clean(self._blot(error.message), 1_000)
        whose = f"MCP server {self._name!r}"
        if error.code == UNREACHED or said == TERMINATED:
            self.filter.ended.set()
            return Unavailable(f"{whose} was not reached: {said}")
        if error.code in (types.CONNECTION_CLOSED, LOST):
            if "SSEError" in said or "SSE stream failed" in said:
                return CallError(f"{whose} sent an answer that cannot be taken: {said}")
            how = said if self.obituary is None else await self.obituary()
            return CallUncertain(f"{whose} was lost during the call: {how}")
        if error.code == TOO_LARGE:
            return CallError(f"{whose}: {said}", hint="ask for less at a time")
        failure = CallError(f"{whose}: {said}")
        if error.code == types.HEADER_MISMATCH:
            failure.code = "header_mismatch"
        return failure

    def _asked(self, method: str, params: Any) -> None:
        """A question came, and was refused. Which call it belongs to is sure only when there is but one."""
        for inquiry in self._inquiries:
            inquiry.questions.append(question_of(method, params))
        if len(self._inquiries) == 1 and self._inquiries[0].limit.when() is None:
            self._inquiries[0].limit.reschedule(asyncio.get_running_loop().time() + QUESTION_SECONDS)


def told(answer: Any) -> dict[str, Any]:
    """The answer as JSON. CallError when it is a question."""
    if isinstance(answer, types.InputRequiredResult):
        asked = (answer.input_requests or {}).values()
        raise unanswered([question_of(each.method, told_of(each.params)) for each in asked])
    shown: dict[str, Any] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    return shown


def told_of(params: Any) -> Any:
    return params.model_dump(mode="json", by_alias=True) if params is not None else None


@asynccontextmanager
async def connect(spec: ServerSpec, about: Surroundings) -> AsyncIterator[Connection]:
    """An open connection to the server. A url that answers no POST is asked for events, as older ones are."""
    if spec.command:
        async with by_child(spec, about) as connection:
            yield connection
        return
    async with AsyncExitStack() as stack:
        try:
            opening = by_url(spec, about, sse=spec.transport == "sse")
            connection = await stack.enter_async_context(opening)
        except (ConfigError, ExceptionGroup):
            older = await older_way(spec, about, stack=stack) if spec.transport == "auto" else None
            if older is None:
                raise
            connection = older
        yield connection


async def older_way(spec: ServerSpec, about: Surroundings, *, stack: AsyncExitStack) -> Connection | None:
    """A connection to a server that speaks the transport of 2024; None when it does not."""
    try:
        return await stack.enter_async_context(by_url(spec, about, sse=True))
    except (ConfigError, ExceptionGroup):
        return None


@asynccontextmanager
async def by_child(spec: ServerSpec, about: Surroundings) -> AsyncIterator[Connection]:
    child = await Child.start(spec, about.environ, blot=about.blot, watchdog=about.watchdog)
    lines = lines_of(child, limit=about.limit, blot=about.blot)
    connection = Connection(spec.name, blot=about.blot, on_change=about.on_change)
    connection.obituary = child.obituary
    async with opened(connection, lines, modern=False):
        yield connection


@asynccontextmanager
async def by_url(spec: ServerSpec, about: Surroundings, *, sse: bool) -> AsyncIterator[Connection]:
    url, headers = spec.url or "", {**spec.headers, **spec.secrets}
    connection = Connection(spec.name, blot=about.blot, on_change=about.on_change)
    if sse:
        async with opened(connection, events_of(url, headers, limit=about.limit), modern=False):
            yield connection
        return
    async with client_for(url, headers, limit=about.limit) as client:
        streams = streamable_http_client(url, http_client=client, max_sse_event_size=about.limit)
        async with opened(connection, streams, modern=True):
            yield connection


@asynccontextmanager
async def opened(
    connection: Connection, transport: AbstractAsyncContextManager[Any], *, modern: bool
) -> AsyncIterator[None]:
    async with (
        connection.filter.about(transport) as (incoming, outgoing),
        ClientSession(incoming, outgoing, client_info=CLIENT) as session,
    ):
        try:
            await connection.open(session, modern=modern)
        except (MCPError, ValidationError, RuntimeError) as error:
            raise await refused(connection, error) from None
        yield


async def refused(connection: Connection, error: Exception) -> ConfigError:
    if connection.closed.is_set() and connection.obituary is not None:
        return ConfigError(await connection.obituary())
    if isinstance(error, MCPError):
        return ConfigError(clean(error.message, 300))
    return ConfigError("it does not speak MCP")
