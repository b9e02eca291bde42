"""What runs for a key ends when the key does: revoked, expired, deleted, or rotated and its grace over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import Unauthorized, Unavailable
from dragoman.operations import Registry, operation
from dragoman.server import auth
from dragoman.server.accounts import key_monitor
from dragoman.spokes.client.spoke import Spoke
from dragoman.store.store import Store
from tests.gateway.metered_hub import HI, SSE_HEAD, Desk, Site, desk
from tests.mcp.server.hub import BOTH, MODERN, batch, body
from tests.providers.servers import Peer, Received, chunk
from tests.serving import ask, frames_in
from tests.waiting import LIMIT, until
from tests.wire import openai_streams

HANG = str(Path(__file__).parent / "operations_hanging.py")
INITIALIZE = body(
    "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "t", "version": "1"}
)
CALL_HANG: dict[str, Any] = {"name": "hub_call", "arguments": batch("lab.hang")}


class Upstream(Site):
    """A model server that begins an answer, and never ends it."""

    def __init__(self) -> None:
        super().__init__(self._begin)
        self.began = asyncio.Event()
        self.closed = asyncio.Event()

    async def _begin(self, peer: Peer, _: Received) -> None:
        delta = openai_streams.sse(openai_streams.chunk({"content": "Once"}), done=False)
        await peer.send(SSE_HEAD + chunk(delta))
        self.began.set()
        await peer.gone()
        self.closed.set()


@asynccontextmanager
async def hub_with_key(tmp_path: Path, **config: Any) -> AsyncIterator[tuple[Desk, Upstream, dict[str, str]]]:
    """A hub whose model never ends its answers, and the headers of a key."""
    up = Upstream()
    async with (
        asyncio.timeout(LIMIT),
        desk(tmp_path, keys=True, up=up, model="up/m", operations=[HANG], **config) as at,
    ):
        scopes = ("gateway", "chat", "operations", "spoke")
        yield at, up, await at.key(scopes=scopes)


async def only_key(at: Desk) -> str:
    return (await at.hub.store.keys.list())[0].id


async def revoke(at: Desk) -> str:
    await at.hub.store.keys.revoke(await only_key(at))
    return "key revoked"


async def expire(at: Desk) -> str:
    await at.hub.store.keys.update(await only_key(at), expires_at=time.time() - 1)
    return "key expired"


async def delete(at: Desk) -> str:
    statement = f"DELETE FROM keys WHERE id = '{await only_key(at)}'"
    await at.hub.store.database.write(lambda connection: connection.execute(statement, {}))
    return "key deleted"


async def rotate(at: Desk) -> str:
    await at.hub.store.keys.rotate(await only_key(at), grace=0.0)
    return "key rotated"


@pytest.mark.parametrize("end", [revoke, expire, delete, rotate])
async def test_a_gateway_stream_ends_with_an_error_that_says_why(
    tmp_path: Path, end: Callable[[Desk], Awaitable[str]]
) -> None:
    async with hub_with_key(tmp_path) as (at, up, key):
        asking = asyncio.create_task(at.chat(key=key, stream=True))
        await up.began.wait()
        await at.hub.key_monitor.check()
        assert not asking.done()
        reason = await end(at)
        await at.hub.key_monitor.check()
        response = await asking
        last = response.text.strip().splitlines()[-1]
        assert reason in last
        assert '"type":"authentication_error"' in last.replace(": ", ":")
        await up.closed.wait()  # nothing more is paid for
        assert (await at.row()).owner == "ada"


@pytest.mark.parametrize("stream", [True, False])
async def test_each_gateway_format_tells_it_in_its_own_error(tmp_path: Path, stream: bool) -> None:
    async with hub_with_key(tmp_path) as (at, up, key):
        has_begun = asyncio.Event()

        async def read() -> tuple[int, str]:
            body = {"model": "up/m", "messages": HI, "max_tokens": 100, "stream": stream}
            text = ""
            async with at.http.stream("POST", "/v1/messages", json=body, headers=key) as response:
                async for piece in response.aiter_text():
                    text += piece
                    has_begun.set()
            return response.status_code, text

        reading = asyncio.create_task(read())
        await (has_begun if stream else up.began).wait()
        await revoke(at)
        await at.hub.key_monitor.check()
        status, text = await reading
        assert status == (200 if stream else 401)
        assert "authentication_error" in text
        assert "key revoked" in text
        await up.closed.wait()


async def test_a_run_ends_with_an_error_for_its_client_and_for_every_follower(tmp_path: Path) -> None:
    async with hub_with_key(tmp_path, disconnect_grace="never") as (at, up, key):
        posting = asyncio.create_task(at.http.post("/api/chat", json=ask("hi"), headers=key))
        await up.began.wait()
        other = await at.key()  # another key of the same owner
        following = asyncio.create_task(at.http.get("/api/chat/s/stream", headers=other))
        run = await active_run(at)
        await until(lambda: run.tail.follower_count == 2)
        await revoke(at)
        await at.hub.key_monitor.check()
        for response in await asyncio.gather(posting, following):
            frames = frames_in(response.text)
            assert [frame["type"] for frame in frames][-2:] == ["error", "finish"]
            assert "key revoked" in frames[-2]["errorText"]
        await up.closed.wait()
        [stored] = await at.hub.store.runs.list(run.row.session_id)
        assert (stored.status, "key revoked" in str(stored.error)) == ("failed", True)
        await until(lambda: at.hub.runs.active_count == 0)


async def test_a_stream_of_another_key_s_run_ends_and_the_run_goes_on(tmp_path: Path) -> None:
    async with hub_with_key(tmp_path, disconnect_grace="never") as (at, up, key):
        other = await at.key()
        posting = asyncio.create_task(at.http.post("/api/chat", json=ask("hi"), headers=other))
        await up.began.wait()
        run = await active_run(at)
        following = asyncio.create_task(at.http.get("/api/chat/s/stream", headers=key))
        await until(lambda: run.tail.follower_count == 2)
        await revoke(at)
        await at.hub.key_monitor.check()
        frames = frames_in((await following).text)
        assert frames[-1]["type"] == "error"
        assert "key revoked" in frames[-1]["errorText"]
        assert not posting.done()
        assert at.hub.runs.active_count == 1
        posting.cancel()


async def active_run(at: Desk) -> Any:
    """The run, once it is stored: its model may be asked before."""
    await until(lambda: at.hub.runs.active_count == 1)
    [run] = at.hub.runs._active.values()
    return run


async def test_an_operation_call_is_aborted(tmp_path: Path) -> None:
    async with hub_with_key(tmp_path) as (at, _, key):
        calling = asyncio.create_task(at.http.post("/api/operations/lab.hang/call", json={}, headers=key))
        await has_call(at)
        await revoke(at)
        await at.hub.key_monitor.check()
        response = await calling
        assert (response.status_code, response.json()["error"]["code"]) == (401, "key_revoked")
        [entry] = await at.hub.store.calls.list({"operation": "lab.hang"})
        assert entry.status == "aborted"


async def has_call(at: Desk) -> None:
    await until(lambda: bool(at.hub._services.calls._running))


def mcp_headers(key: dict[str, str], **more: str) -> dict[str, str]:
    base = {"accept": BOTH, "content-type": "application/json", **key}
    return base | {name.replace("_", "-"): value for name, value in more.items()}


async def test_an_mcp_call_without_a_session_ends_with_an_error(tmp_path: Path) -> None:
    async with hub_with_key(tmp_path) as (at, _, key):
        headers = mcp_headers(key, mcp_protocol_version=MODERN, mcp_method="tools/call", mcp_name="hub_call")
        message = body("tools/call", modern=True, **CALL_HANG)
        calling = asyncio.create_task(at.http.post("/mcp", json=message, headers=headers))
        await has_call(at)
        await revoke(at)
        await at.hub.key_monitor.check()
        response = await calling
        assert response.status_code == 401
        assert response.json()["error"]["data"]["code"] == "key_revoked"


async def test_an_mcp_session_ends_with_its_calls_and_its_stream(tmp_path: Path) -> None:
    async with hub_with_key(tmp_path) as (at, _, key):
        opened = await at.http.post("/mcp", json=INITIALIZE, headers=mcp_headers(key))
        session = {"mcp_session_id": opened.headers["mcp-session-id"], "mcp_protocol_version": "2025-11-25"}
        headers = mcp_headers(key, **session)
        started = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await at.http.post("/mcp", json=started, headers=headers)
        async with at.http.stream("GET", "/mcp", headers=headers) as listening:
            message = body("tools/call", **CALL_HANG)
            calling = asyncio.create_task(at.http.post("/mcp", json=message, headers=headers))
            await has_call(at)
            await revoke(at)
            await at.hub.key_monitor.check()
            assert "key_revoked" in (await calling).text
            async for _ in listening.aiter_bytes():
                pass
        other = await at.key()  # of the same owner, whose session it was
        await until(lambda: not at.hub.endpoints._mcp._sdk_server._ending)
        gone = await at.http.post("/mcp", json=body("ping"), headers=mcp_headers(other, **session))
        assert gone.status_code == 404


async def test_a_spoke_is_disconnected_and_its_calls_fail(tmp_path: Path) -> None:
    hung = asyncio.Event()

    @operation("far")
    async def wait() -> None:
        """Never ends."""
        hung.set()
        await asyncio.Event().wait()

    async with hub_with_key(tmp_path) as (at, _, key):
        secret = key["authorization"].removeprefix("Bearer ")
        other = await at.key()
        spoke = Spoke(Registry(wait), hub=str(at.http.base_url), key=secret)
        running = asyncio.create_task(spoke.run())
        registry = at.hub._services.registry
        await until(lambda: any(each.id == "far.wait" for each in registry.list()))
        calling = asyncio.create_task(at.http.post("/api/operations/far.wait/call", json={}, headers=other))
        await hung.wait()
        await revoke(at)
        await at.hub.key_monitor.check()
        with pytest.raises(Unauthorized, match="key revoked"):
            await running
        assert (await calling).json()["success"] is False


async def test_a_rotation_ends_work_of_the_old_secret_only_and_only_after_its_grace(tmp_path: Path) -> None:
    async with hub_with_key(tmp_path) as (at, up, old):
        _, secret = await at.hub.store.keys.rotate(await only_key(at), grace=600)
        other = await at.key(owner="bob")
        keys = [old, {"x-api-key": secret}, other]
        asking = [asyncio.create_task(at.chat(key=key, stream=True)) for key in keys]
        await until(lambda: len(up.requests) == 3)
        await at.hub.key_monitor.check()
        assert not any(task.done() for task in asking)
        at.hub.store.keys._clock = lambda: time.time() + 601
        await at.hub.key_monitor.check()
        assert "key rotated" in (await asking[0]).text
        assert not any(task.done() for task in asking[1:])
        for task in asking[1:]:
            task.cancel()


async def test_a_key_that_another_process_revokes_ends_by_itself_within_ten_seconds(tmp_path: Path) -> None:
    assert key_monitor.POLL_INTERVAL + auth.RECHECK_INTERVAL <= 10.0
    async with hub_with_key(tmp_path) as (at, up, key):
        asking = asyncio.create_task(at.chat(key=key, stream=True))
        await up.began.wait()
        async with await Store.open(tmp_path, exclusive=False) as beside:
            await beside.keys.revoke(await only_key(at))
        assert "key revoked" in (await asking).text


async def test_expiry_ends_work_while_the_database_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = Upstream()
    async with asyncio.timeout(LIMIT), desk(tmp_path, keys=True, up=up) as at:
        key = await at.key(expires_at=time.time() + 600)
        asking = asyncio.create_task(at.chat(key=key, stream=True))
        await up.began.wait()
        await at.hub.key_monitor.check()

        async def down(_: Any) -> Any:
            raise Unavailable("the database does not answer")

        monkeypatch.setattr(at.hub.store.keys, "check_uses", down)
        await at.hub.key_monitor.check()
        assert not asking.done()
        monkeypatch.setattr(at.hub.key_monitor, "_now", lambda: time.time() + 601)
        await at.hub.key_monitor.check()
        assert "key expired" in (await asking).text
