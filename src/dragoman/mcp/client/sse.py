"""The SSE transport of older MCP servers: one stream carries all responses, requests are posted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urljoin, urlsplit

import anyio
import httpx2
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCRequest

from dragoman.errors import ConfigError
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.mcp.client.http_transport import CONNECTION_LOST, UNREACHABLE, make_client
from dragoman.mcp.client.jsonrpc import UnreadableMessage, decode_messages, error_message
from dragoman.mcp.client.large_messages import MessageBodies

MAX_ENDPOINT = 8_192  # characters of the URL to post to

log = logging.getLogger(__name__)

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
IncomingSender = MemoryObjectSendStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]


@asynccontextmanager
async def connect_sse(
    url: str, headers: dict[str, str], *, limit: int, bodies: MessageBodies
) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """Open the streams of a server's messages. Raises ConfigError if the server has no such transport."""
    arrived, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    accept = {"accept": "text/event-stream", "cache-control": "no-store"}
    async with (
        arrived,
        incoming,
        outgoing,
        leaving,
        make_client(url, headers, limit=limit, bodies=bodies) as client,
        client.stream("GET", url, headers=accept) as response,
        asyncio.TaskGroup() as group,
    ):
        if response.status_code != 200:
            raise ConfigError(await status_problem(response))
        source = httpx2.EventSource(response, max_event_size=limit)
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        reading = group.create_task(read_events(source, url, incoming=arrived, endpoint=address))
        writing = group.create_task(post_messages(client, address, outgoing=leaving, incoming=arrived))
        try:
            await asyncio.shield(address)
            yield incoming, outgoing
        finally:
            reading.cancel()
            writing.cancel()


async def status_problem(response: httpx2.Response) -> str:
    """Describe why there are no events: the error of `http_transport.py`, or the HTTP status."""
    problem = f"it answers {response.status_code} where its events should be"
    if response.status_code != 502:
        return problem
    try:
        return str(msgspec.json.decode(await response.aread())["error"]["message"])
    except (KeyError, TypeError, *DECODE_ERRORS):
        return problem


async def read_events(
    source: httpx2.EventSource, url: str, *, incoming: IncomingSender, endpoint: asyncio.Future[str]
) -> None:
    """Read events until the stream ends. The first names the URL to post to, on the same server."""
    async with incoming:
        try:
            async for event in source:
                await handle_event(event, url, incoming=incoming, endpoint=endpoint)
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            log.warning("an MCP server closed its event stream early: %s", error)
        finally:
            if not endpoint.done():
                endpoint.set_exception(ConfigError("its events do not say where to post to"))
                endpoint.exception()


async def handle_event(
    event: httpx2.ServerSentEvent, url: str, *, incoming: IncomingSender, endpoint: asyncio.Future[str]
) -> None:
    if event.event == "endpoint" and not endpoint.done():
        set_endpoint(event.data, url, endpoint=endpoint)
    elif event.event == "message" and event.data:
        await forward_message(event.data, incoming)


def set_endpoint(target: str, url: str, *, endpoint: asyncio.Future[str]) -> None:
    if len(target) > MAX_ENDPOINT:  # parsing takes time quadratic in the length of the host
        endpoint.set_exception(ConfigError("the URL to post to that its events name is too long"))
        return
    try:
        endpoint_url = urljoin(url, target)
        is_same_server = urlsplit(endpoint_url)[:2] == urlsplit(url)[:2]
    except ValueError:
        endpoint.set_exception(ConfigError("its events do not name a valid URL to post to"))
        return
    if is_same_server:
        endpoint.set_result(endpoint_url)
    else:
        endpoint.set_exception(ConfigError("its events name another server to post to, which is refused"))


async def forward_message(data: str, incoming: IncomingSender) -> None:
    for message in await decode_messages(data.encode(errors="surrogatepass")):
        if isinstance(message, UnreadableMessage):
            log.warning("an MCP server sent an event that is not a message: %s", message.reason)
        else:
            await incoming.send(message)


async def post_messages(
    client: httpx2.AsyncClient,
    endpoint: asyncio.Future[str],
    *,
    outgoing: MemoryObjectReceiveStream[SessionMessage],
    incoming: IncomingSender,
) -> None:
    """Post messages in order; a request that cannot be posted fails at once."""
    url = await asyncio.shield(endpoint)
    async with outgoing:
        async for message in outgoing:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            response = await client.post(url, content=text, headers={"content-type": "application/json"})
            if response.is_success or not isinstance(message.message, JSONRPCRequest):
                continue
            reached = response.status_code != 502
            await incoming.send(
                error_message(
                    message.message.id,
                    f"it answers {response.status_code} to the request",
                    code=CONNECTION_LOST if reached else UNREACHABLE,
                )
            )
