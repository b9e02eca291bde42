"""`HubClient` returns the same over HTTP and in process over the data folder of the running hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.types import Receive, Scope, Send

from dragoman.cli.hub_client.client import HubClient
from dragoman.cli.hub_client.in_process import AsgiTransport, connect_to_data
from dragoman.errors import BadRequest, Conflict, NotFound, Unavailable
from dragoman.operations.approval import ApprovalRequest
from tests.serving import Served, serving
from tests.store.samples import converse

STEPS: list[dict[str, Any]] = [
    {"tools": [{"name": "hub_call", "input": {"calls": [{"tool": "time.now", "input": {}}]}}]},
    {"text": "Now."},
]


@asynccontextmanager
async def clients(folder: Path) -> AsyncIterator[tuple[Served, HubClient, HubClient]]:
    """A hub that holds a chat and two approvals; a client over HTTP, and one over its data folder."""
    async with serving(folder, STEPS) as hub:
        await hub.chat()
        for id in ("apr_1", "apr_2"):
            call = {"operation": "mail.send", "input": {"to": id}, "input_hash": id}
            times = {"created_at": 1.0, "expires_at": 4e9}
            request = msgspec.convert(
                {"id": id, "owner": "local", "items": (), **call, **times}, ApprovalRequest
            )
            await hub.hub.store.approvals.create(request)
        async with HubClient.over_http(hub.url) as http, connect_to_data(folder / "hub") as local:
            yield hub, http, local


async def test_reads_return_the_same_over_both_transports(tmp_path: Path) -> None:
    async with clients(tmp_path) as (_, http, local):
        results: list[dict[str, Any]] = []
        for client in (http, local):
            [call, *_] = (await client.calls({"operation": "time.now"}))["calls"]
            tree = await client.call_tree(call["runId"])
            results.append(
                {
                    "sessions": await client.sessions(),
                    "session": await client.session("s"),
                    "messages": await client.messages("s"),
                    "search": (await client.search("now"))["found"],
                    "calls": [each["id"] for each in (await client.calls({}))["calls"]],
                    "call": (await client.call(call["id"]))["result"],
                    "tree": [each["name"] for each in tree["tree"]["children"]],
                    "approvals": await client.approvals("pending", limit=5),
                    "usage": (await client.usage({"group_by": "owner"}))["rows"],
                    "csv": b"".join([page async for page in client.usage_csv({})]),
                }
            )
        assert results[0] == results[1]
        assert [session["owner"] for session in results[0]["sessions"]] == ["local"]


@pytest.mark.parametrize("over", ["http", "in process"])
async def test_answers_and_errors_are_the_same_over_both_transports(tmp_path: Path, over: str) -> None:
    async with clients(tmp_path) as (_, http, local):
        client = http if over == "http" else local
        approval = await client.decide("apr_1", approved=False, reason="not today")
        assert (approval["status"], approval["reason"], approval["answeredBy"]) == (
            "denied",
            "not today",
            "local",
        )
        with pytest.raises(Conflict):
            await client.decide("apr_1", approved=True)
        with pytest.raises(BadRequest, match="question"):
            await client.answer("apr_2", "blue")
        for missing in (client.session("x"), client.call("x"), client.approval("x"), client.call_tree("x")):
            with pytest.raises(NotFound):
                await missing


async def test_the_data_folder_shows_the_sessions_of_all_owners(tmp_path: Path) -> None:
    async with clients(tmp_path) as (hub, http, local):
        await converse(hub.hub.store, "Is it now?", session_id="hers", owner="ann")
        assert {session["owner"] for session in await local.sessions()} == {"ann", "local"}
        assert {found["owner"] for found in (await local.search("now"))["found"]} == {"ann", "local"}
        assert {session["owner"] for session in await http.sessions()} == {"local"}


async def test_what_needs_a_running_hub_says_so_in_process(tmp_path: Path) -> None:
    async with clients(tmp_path) as (_, _, local):
        run = (await local.calls({}))["calls"][0]["runId"]
        for attempt in (local.abort(run), local.stop("s"), local.operations()):
            with pytest.raises(Unavailable, match="running hub"):
                await attempt


async def test_a_response_that_is_left_unread_ends_its_request(tmp_path: Path) -> None:
    async with clients(tmp_path) as (_, _, local):
        pages = local.usage_csv({})
        async for _ in pages:
            break
        await pages.aclose()
        requests = [task for task in asyncio.all_tasks() if "AsgiResponse" in repr(task.get_coro())]
        assert requests == []


async def test_a_response_that_is_not_read_to_its_end_can_be_closed() -> None:
    async def stream(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(100):
            await send({"type": "http.response.body", "body": b"%d\n" % number, "more_body": True})

    response = await AsgiTransport(stream).send("GET", "/", content_type=None, body=b"")
    chunks = response.iter_raw()
    assert await anext(chunks) == b"0\n"
    await asyncio.sleep(0)  # the app waits with its next chunk until this one is read
    closing = asyncio.ensure_future(chunks.aclose())
    done, _ = await asyncio.wait((closing,), timeout=10)
    assert done == {closing}
