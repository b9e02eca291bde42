"""`/api/artifacts`: downloads, ranges, ownership, safe content types."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx2
import pytest
from starlette.routing import Route, Router

from dragoman.operations.results.artifact import Artifact
from dragoman.server.app import Hub
from dragoman.server.artifacts import ArtifactHandlers
from dragoman.server.auth import Auth
from dragoman.server.http.endpoint import HttpEndpoint
from dragoman.store.store import Store
from tests.serving import listening
from tests.waiting import LIMIT

BODY = bytes(range(256)) * 12_000  # 3 MB: more than is in memory at a time
SIZE = len(BODY)
CONTENT = "/api/artifacts/a/content"


@asynccontextmanager
async def serving(
    folder: Path, *, media_type: str = "text/html", body: bytes = BODY
) -> AsyncIterator[tuple[Store, httpx2.AsyncClient]]:
    async with await Store.open(folder) as store:
        artifact = Artifact(
            id="a", owner="ann", media_type=media_type, size=len(body), created_at=5.0, call_id="c"
        )
        await store.artifacts.save(artifact, body)
        auth, doors = Auth(store.keys, required=True), ArtifactHandlers(store.artifacts)
        routes = [
            Route("/api/artifacts/{id}", HttpEndpoint({"GET": doors.get}, auth=auth)),
            Route("/api/artifacts/{id}/content", HttpEndpoint({"GET": doors.content}, auth=auth)),
        ]
        hub = cast(Hub, SimpleNamespace(app=Router(routes)))
        _, secret = await store.keys.create("ann")
        headers = {"x-api-key": secret}
        async with (
            listening(hub) as url,
            httpx2.AsyncClient(base_url=url, headers=headers, timeout=LIMIT, trust_env=False) as http,
        ):
            yield store, http


async def test_an_artifact_is_described(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, http):
        unknown = dict.fromkeys(("operation", "runId", "sessionId"))
        report = {
            "id": "a",
            "mediaType": "text/html",
            "size": SIZE,
            "createdAt": 5.0,
            "callId": "c",
            **unknown,
        }
        assert (await http.get("/api/artifacts/a")).json() == report


async def test_the_content_is_a_download_that_no_browser_runs(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, http):
        response = await http.get(CONTENT)
        assert (response.status_code, response.content) == (200, BODY)
        sent = {
            "content-type": "text/html",
            "content-disposition": 'attachment; filename="a.html"',
            "x-content-type-options": "nosniff",
            "content-security-policy": "default-src 'none'; sandbox",
            "content-length": str(SIZE),
            "accept-ranges": "bytes",
        }
        assert {name: response.headers[name] for name in sent} == sent
        head = await http.head(CONTENT)
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(SIZE))


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=100-", 100, SIZE),
        ("bytes=-5", SIZE - 5, SIZE),
        (f"bytes=0-{SIZE + 9}", 0, SIZE),
        (f"bytes=-{SIZE + 9}", 0, SIZE),
        (f"bytes=1000-{2**21}", 1_000, 2**21 + 1),
    ],
)
async def test_a_range_is_a_piece(tmp_path: Path, wanted: str, start: int, end: int) -> None:
    async with serving(tmp_path) as (_, http):
        response = await http.get(CONTENT, headers={"range": wanted})
        assert (response.status_code, response.content) == (206, BODY[start:end])
        assert response.headers["content-range"] == f"bytes {start}-{end - 1}/{SIZE}"
        assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "wanted", ["bytes=-", "bytes=5-1", "bytes=0-1,4-5", "lines=1-2", "bytes=a-b", "bytes=²-"]
)
async def test_a_range_that_is_none_gets_the_whole(tmp_path: Path, wanted: str) -> None:
    async with serving(tmp_path) as (_, http):
        response = await http.get(CONTENT, headers={b"range": wanted.encode()})
        assert (response.status_code, response.content) == (200, BODY)


async def test_a_range_of_something_else_gets_the_whole(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, http):
        etag = (await http.head(CONTENT)).headers["etag"]
        for tag, status in ((etag, 206), ('"other"', 200)):
            response = await http.get(CONTENT, headers={"range": "bytes=0-1", "if-range": tag})
            assert response.status_code == status


@pytest.mark.parametrize("wanted", [f"bytes={SIZE}-", f"bytes={SIZE}-{SIZE + 5}", "bytes=-0"])
async def test_a_range_past_the_end_is_refused(tmp_path: Path, wanted: str) -> None:
    async with serving(tmp_path) as (_, http):
        response = await http.get(CONTENT, headers={"range": wanted})
        assert (response.status_code, response.content) == (416, b"")
        assert response.headers["content-range"] == f"bytes */{SIZE}"


@pytest.mark.parametrize(
    ("query", "start", "end"),
    [
        ("offset=10", 10, SIZE),
        ("offset=10&limit=5", 10, 15),
        ("limit=7", 0, 7),
        ("limit=0", 0, 0),
        (f"offset={SIZE + 1}", SIZE, SIZE),
        (f"limit={10**14}", 0, SIZE),
    ],
)
async def test_an_offset_and_a_limit_are_a_piece_too(
    tmp_path: Path, query: str, start: int, end: int
) -> None:
    async with serving(tmp_path) as (_, http):
        response = await http.get(f"{CONTENT}?{query}")
        assert (response.status_code, response.content) == (200, BODY[start:end])


@pytest.mark.parametrize("query", ["offset=-1", "limit=many", "offset=", "limit=%C2%B2", f"limit={10**18}"])
async def test_an_invalid_range_parameter_is_refused_by_name(tmp_path: Path, query: str) -> None:
    async with serving(tmp_path) as (_, http):
        response = await http.get(f"{CONTENT}?{query}")
        assert (response.status_code, response.json()["error"]["field"]) == (400, query.partition("=")[0])


async def test_anothers_artifact_is_not_there(tmp_path: Path) -> None:
    async with serving(tmp_path) as (store, http):
        _, bob = await store.keys.create("bob")
        _, admin = await store.keys.create("root", scopes=("admin",))
        for path in ("/api/artifacts/a", CONTENT, "/api/artifacts/b/content"):
            for secret in (bob, admin):
                assert (await http.get(path, headers={"x-api-key": secret})).status_code == 404
            assert (await http.get(path, headers={"x-api-key": "wrong"})).status_code == 401


@pytest.mark.parametrize(
    ("media_type", "sent"),
    [
        ("text/plain; charset=utf-8", "text/plain; charset=utf-8"),
        ("text/plain\r\nset-cookie: a=b", "application/octet-stream"),
        ("nonsense", "application/octet-stream"),
        ("", "application/octet-stream"),
    ],
)
async def test_a_foreign_media_type_cannot_say_more_than_a_type(
    tmp_path: Path, media_type: str, sent: str
) -> None:
    async with serving(tmp_path, media_type=media_type, body=b"") as (_, http):
        response = await http.get(CONTENT)
        assert (response.status_code, response.content) == (200, b"")
        assert response.headers["content-type"] == sent
        assert "set-cookie" not in response.headers
