"""Files of many megabytes are imported in pieces: the hub's memory and event loop do not feel their size."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.effort import rounds
from tests.server.asgi_client import AsgiClient
from tests.serving import serving

MOST = 0.05  # seconds between two turns of the loop
TRIES = 4
MEGABYTES = rounds(quick=6, thorough=200)
TEXT = 'Wörter \\ " {[ \n' * 1_500
HEAD = b'{"format":"dragoman-session","version":1,"title":"long"}\n'


def message(number: int) -> bytes:
    parts = [{"type": "text", "text": TEXT}]
    return msgspec.json.encode({"id": f"m{number}", "role": "user", "parts": parts})


def json_lines() -> Iterator[bytes]:
    """One session."""
    yield HEAD
    for number in range(MEGABYTES * 1_000_000 // len(message(0))):
        yield message(number) + b"\n"


def conversations() -> Iterator[bytes]:
    """Several of ChatGPT, as it exports them."""
    size = 40 * len(TEXT)
    yield b"["
    for number in range(MEGABYTES * 1_000_000 // size):
        nodes: dict[str, Any] = {"n-1": {"message": None, "parent": None}}
        for at in range(40):
            question = {"id": f"m{at}", "author": {"role": "user"}, "content": {"parts": [TEXT]}}
            nodes[f"n{at}"] = {"parent": f"n{at - 1}", "message": question}
        conversation = {"title": f"No. {number}", "current_node": "n39", "mapping": nodes}
        yield (b", " if number else b"") + msgspec.json.encode(conversation)
    yield b"]\n"


FILES: dict[str, Callable[[], Iterator[bytes]]] = {"lines": json_lines, "conversations": conversations}


@pytest.mark.promise("imports")
@pytest.mark.parametrize("name", FILES)
async def test_the_memory_of_the_hub_does_not_grow_with_a_file(tmp_path: Path, name: str) -> None:
    async def content() -> AsyncIterator[bytes]:
        for piece in FILES[name]():
            yield piece

    async with serving(tmp_path) as hub:
        await hub.http.post("/api/sessions/import", content=HEAD + message(0))  # what is loaded once
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            answer = await hub.http.post("/api/sessions/import?", content=content(), timeout=600)
            grown = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
        assert answer.status_code == 201, answer.text
        sessions = answer.json().get("sessions", [answer.json()])
        first = await hub.messages(sessions[0]["id"])
        assert len(first) == sessions[0]["messages"]
        assert first[-1]["parts"][0]["text"] == TEXT
        assert grown < 9_000_000


@pytest.mark.parametrize("name", FILES)
async def test_an_import_does_not_hold_the_event_loop(tmp_path: Path, name: str) -> None:
    file = b"".join(FILES[name]())
    lags = list[float]()
    async with serving(tmp_path) as hub:
        client = AsgiClient(hub.hub.app)
        for number in range(TRIES):
            status, answer = await client.post(
                "/api/sessions/import", file.replace(b"o. ", b"o. %d" % number)
            )
            assert status in (201, 409), answer[:300]
            lags.append(client.lag)
            if client.lag <= MOST:
                break
    assert min(lags) <= MOST
