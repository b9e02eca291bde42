"""Requests between hosts: the internal listener, its token, and what a caller hears of a dead one."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from msgspec.structs import replace

from dragoman.errors import DragomanError, HostGone, HostUnreachable, NotFound
from dragoman.hosts.client import HostClient
from dragoman.http.asgi_exchange import Exchange
from dragoman.server.http.listener import bind_listener
from dragoman.server.internal.listener import open_internal_listener, reachable_url
from dragoman.server.internal.routes import HostRoutes, build_internal_app, health_routes
from dragoman.store.hosts.hosts import HostRecord
from dragoman.store.store import Store
from tests.waiting import LIMIT

TOKEN = "a-token-of-this-start"
HOST = HostRecord(id="a", name="a", version="1", started_at=1.0)


def host_routes() -> HostRoutes:
    async def echo(exchange: Exchange) -> None:
        await exchange.respond(200, {"sent": await exchange.read_json(1_000)})

    async def refuse(_: Exchange) -> None:
        raise NotFound("there is no run 'r'")

    yield "/echo", {"POST": echo}
    yield "/refuse", {"GET": refuse}


@asynccontextmanager
async def open_host(folder: Path) -> AsyncIterator[tuple[Store, HostClient, str]]:
    """Serve the internal endpoints of the host "a"; yield the store, a client, and the URL."""
    app = build_internal_app(health_routes(), host_routes(), token=TOKEN)
    async with await Store.open(folder) as store, open_internal_listener(app, "127.0.0.1:0", url=None) as url:
        await store.hosts.add(HOST)
        await store.hosts.set_address("a", url=url, token=TOKEN)
        client = HostClient(store.hosts)
        try:
            yield store, client, url
        finally:
            await client.close()


async def test_a_host_answers_requests_that_have_its_token(tmp_path: Path) -> None:
    async with open_host(tmp_path) as (_, client, _url):
        assert await client.post("a", "/echo", body={"x": 1}) == {"sent": {"x": 1}}
        response = await client.stream("a", "/healthz")
        assert await response.read(100) == b'{"status":"ok"}'
        with pytest.raises(NotFound, match="there is no run 'r'"):
            await client.stream("a", "/refuse")


@pytest.mark.parametrize("sent", ["", "Bearer", "Bearer another", f"Basic {TOKEN}", f"bearer {TOKEN}x"])
async def test_a_request_without_the_hosts_token_is_refused(
    tmp_path: Path, sent: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_host(tmp_path) as (_, _client, url), httpx2.AsyncClient(timeout=LIMIT) as http:
        for path in ("/healthz", "/refuse", "/nowhere"):
            response = await http.get(f"{url}{path}", headers={"authorization": sent})
            assert response.status_code == 401
            assert TOKEN not in response.text
            assert "access-control-allow-origin" not in response.headers
    assert TOKEN not in caplog.text


async def test_a_host_that_restarted_at_the_same_address_is_looked_up_again(tmp_path: Path) -> None:
    async with open_host(tmp_path) as (store, client, url):
        await store.hosts.set_address("a", url=url, token="an old token")
        with pytest.raises(HostUnreachable):
            await client.post("a", "/echo", body={})
        await store.hosts.set_address("a", url=url, token=TOKEN)
        assert await client.post("a", "/echo", body={}) == {"sent": {}}


async def test_a_caller_hears_whether_a_host_is_gone_or_cannot_be_reached(tmp_path: Path) -> None:
    with bind_listener("127.0.0.1", 0) as closed:
        port = closed.getsockname()[1]
    async with open_host(tmp_path) as (store, client, _url):
        for id, address in {"mute": None, "closed": f"http://127.0.0.1:{port}", "fenced": "http://h"}.items():
            await store.hosts.add(replace(HOST, id=id, url=address, token=TOKEN))
        await store.hosts.fence("fenced", 1.0)
        expected = {"none": HostGone, "fenced": HostGone, "mute": HostUnreachable, "closed": HostUnreachable}
        for id, kind in expected.items():
            with pytest.raises(DragomanError) as failure:
                await client.post(id, "/echo", body={})
            assert type(failure.value) is kind
            assert failure.value.status == 503
            assert TOKEN not in str(failure.value.to_json())
            assert ("hosts.url" in str(failure.value.hint)) == (kind is HostUnreachable)


def test_a_wildcard_address_is_advertised_as_one_of_this_machine() -> None:
    with bind_listener("0.0.0.0", 0) as listener:
        url = reachable_url(listener)
        port = listener.getsockname()[1]
        with socket.create_connection((url.removeprefix("http://").partition(":")[0], port), timeout=LIMIT):
            pass
    assert "0.0.0.0" not in url
