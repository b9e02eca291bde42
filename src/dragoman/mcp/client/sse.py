"""SSE: the transport of older servers: one stream brings all answers, and requests are posted."""

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
from dragoman.mcp.client.bounded import LOST, UNREACHED, client_for
from dragoman.mcp.client.frames import Unreadable, error, read_line

log = logging.getLogger(__name__)

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Arrived = MemoryObjectSendStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]


@asynccontextmanager
async def events_of(
    url: str, headers: dict[str, str], *, limit: int
) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """The streams of a server's messages. ConfigError when it is no such server."""
    arrived, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    accept = {"accept": "text/event-stream", "cache-control": "no-store"}
    async with (
        arrived,
        incoming,
        outgoing,
        leaving,
        client_for(url, headers, limit=limit) as client,
        client.stream("GET", url, headers=accept) as response,
        asyncio.TaskGroup() as group,
    ):
        if response.status_code != 200:
            raise ConfigError(await trouble(response))
        source = httpx2.EventSource(response, max_event_size=limit)
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        reading = group.create_task(read(source, url, arrived=arrived, address=address))
        writing = group.create_task(post(client, address, leaving=leaving, arrived=arrived))
        try:
            await asyncio.shield(address)
            yield incoming, outgoing
        finally:
            reading.cancel()
            writing.cancel()


async def trouble(response: httpx2.Response) -> str:
    """Why there are no events: what the transport says of a server that it did not reach, or the status."""
    said = f"it answers {response.status_code} where its events should be"
    if response.status_code != 502:
        return said
    try:
        return str(msgspec.json.decode(await response.aread())["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return said


async def read(
    source: httpx2.EventSource, url: str, *, arrived: Arrived, address: asyncio.Future[str]
) -> None:
    """Take in events until the stream ends. The first says where to post to, on the same server."""
    async with arrived:
        try:
            async for event in source:
                await heed(event, url, arrived=arrived, address=address)
        except (httpx2.HTTPError, httpx2.StreamError) as broken:
            log.warning("the events of an MCP server broke off: %s", broken)
        finally:
            if not address.done():
                address.set_exception(ConfigError("its events do not say where to post to"))
                address.exception()


async def heed(
    event: httpx2.ServerSentEvent, url: str, *, arrived: Arrived, address: asyncio.Future[str]
) -> None:
    if event.event == "endpoint" and not address.done():
        found_address(urljoin(url, event.data), url, address=address)
    elif event.event == "message" and event.data:
        await take(event.data, arrived)


def found_address(found: str, url: str, *, address: asyncio.Future[str]) -> None:
    if urlsplit(found)[:2] == urlsplit(url)[:2]:
        address.set_result(found)
    else:
        address.set_exception(ConfigError("its events tell to post to another server, which is refused"))


async def take(data: str, arrived: Arrived) -> None:
    for message in read_line(data.encode(errors="surrogatepass")):
        if isinstance(message, Unreadable):
            log.warning("an MCP server sent an event that is no message: %s", message.reason)
        else:
            await arrived.send(message)


async def post(
    client: httpx2.AsyncClient,
    address: asyncio.Future[str],
    *,
    leaving: MemoryObjectReceiveStream[SessionMessage],
    arrived: Arrived,
) -> None:
    """Post messages in their order; a request that cannot be posted fails at once."""
    where = await asyncio.shield(address)
    async with leaving:
        async for message in leaving:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            response = await client.post(where, content=text, headers={"content-type": "application/json"})
            if response.is_success or not isinstance(message.message, JSONRPCRequest):
                continue
            reached = response.status_code != 502
            await arrived.send(
                error(
                    message.message.id,
                    f"it answers {response.status_code} to the request",
                    code=LOST if reached else UNREACHED,
                )
            )
