"""Limits of a key count from the head of a request on, before its body has arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from dragoman.usage_limits import Limits
from tests.waiting import LIMIT, poll

from .metered_hub import Desk, Site, completion, desk

PATHS = {
    "gateway": ["/v1/chat/completions", "/v1/messages", "/v1/embeddings"],
    "other": [
        "/v1/messages/count_tokens",
        "/api/chat",
        "/api/sessions",
        "/api/operations/time.now/call",
        "/mcp",
    ],
}
HEAD = "POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{key}content-length: 1000\r\n\r\n"


async def statuses(at: Desk, path: str, key: Mapping[str, str], *, refused: int) -> list[int]:
    """Send five heads without their bodies; the statuses of those that were answered, then hang up."""
    url = at.http.base_url
    fields = "".join(f"{name}: {value}\r\n" for name, value in key.items())
    head = HEAD.format(path=path, host=f"{url.host}:{url.port}", key=fields).encode()

    async def send() -> int:
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(head)
        try:
            return int((await reader.readline()).split(b" ")[1])
        finally:
            writer.close()

    uploads = {asyncio.ensure_future(send()) for _ in range(5)}
    answered: list[int] = []
    while len(answered) < refused:
        done, uploads = await asyncio.wait(uploads, timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
        assert done, "all are still waiting for their bodies"
        answered += [each.result() for each in done]
    for upload in uploads:
        upload.cancel()
    await asyncio.wait(uploads)
    return answered


async def until_served(at: Desk, key: Mapping[str, str], *, at_once: int) -> None:
    """Wait until so many requests are served at the same time."""

    async def are_served() -> bool:
        responses = await asyncio.gather(*(at.chat(key=key) for _ in range(at_once)))
        return all(response.status_code != 429 for response in responses)

    await poll(are_served)
    assert (await at.chat(key=key)).status_code == 200


@pytest.mark.parametrize("path", [*PATHS["gateway"], *PATHS["other"]])
async def test_slow_bodies_take_the_parallel_requests_of_a_key_and_give_them_back(
    tmp_path: Path, path: str
) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        key = await at.key(limits=Limits(parallel=2))
        assert await statuses(at, path, key, refused=3) == [429] * 3
        await until_served(at, key, at_once=2)
        assert await statuses(at, path, key, refused=3) == [429] * 3


@pytest.mark.parametrize("path", PATHS["gateway"])
async def test_slow_bodies_count_against_the_rate_of_a_key(tmp_path: Path, path: str) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        key = await at.key(limits=Limits(requests_per_minute=3))
        assert await statuses(at, path, key, refused=2) == [429] * 2
        assert (await at.chat(key=key)).status_code == 429
        assert (await at.chat(key=await at.key())).status_code == 200


async def test_invalid_bodies_count_against_the_rate_of_a_key_and_take_no_parallel_request(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        limits = Limits(requests_per_minute=4, parallel=1, tokens_per_minute=1_000)
        key = await at.key(limits=limits)
        found = [(await at.chat(model="", key=key)).status_code for _ in range(3)]
        found += [(await at.chat(key=key)).status_code for _ in range(2)]
        assert found == [400, 400, 400, 200, 429]
