"""A hub in this process on a free port, and a client for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import uvicorn

from dragoman import events as e
from dragoman.config import parse_config, read_config
from dragoman.identity import LOCAL
from dragoman.runs.run import HubRun
from dragoman.server.app import Hub
from dragoman.session_ids import hub_session_id
from dragoman.store.runs import RunRecord
from tests.waiting import LIMIT

KEEP_ALIVE = 600  # seconds: a process that gets no processor for five closes no connection as it asks on it
Frames = list[dict[str, Any]]


class Served:
    """A hub that is being served."""

    def __init__(self, hub: Hub, url: str, http: httpx2.AsyncClient) -> None:
        self.hub = hub
        self.url = url
        self.http = http

    def active_run(self, session: str = "s") -> HubRun | None:
        """The active run of a session of the owner without a key."""
        return self.hub.runs.get_active(hub_session_id(session, owner=LOCAL.owner))

    async def runs(self, session: str = "s") -> Sequence[RunRecord]:
        """The runs of such a session."""
        return await self.hub.store.runs.list(hub_session_id(session, owner=LOCAL.owner))

    async def chat(self, text: str = "hi", *, session: str = "s", **fields: Any) -> Frames:
        """Send a user message; all frames of the answer."""
        return await self.post(ask(text, session=session, **fields))

    async def post(self, body: Mapping[str, Any], **options: Any) -> Frames:
        """POST a chat body; all frames of the answer."""
        response = await self.http.post("/api/chat", json=body, **options)
        assert response.status_code == 200, response.text
        return frames_in(response.text)

    async def messages(self, session: str = "s") -> list[dict[str, Any]]:
        """What the session holds."""
        response = await self.http.get(f"/api/sessions/{session}/messages")
        assert response.status_code == 200, response.text
        pending: list[dict[str, Any]] = response.json()["messages"]
        return pending


def ask(text: str, *, session: str = "s", id: str | None = None, **fields: Any) -> dict[str, Any]:
    """The body of a chat request with one user message."""
    message = {"id": id or f"u-{text}", "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": session, "messages": [message], "trigger": "submit-message", **fields}


def frames_in(body: str) -> Frames:
    """The JSON frames of an SSE body, which must end with [DONE]."""
    replies = [line.removeprefix("data: ") for line in body.split("\n\n") if line.startswith("data: ")]
    assert replies[-1] == "[DONE]", replies[-1]
    return [msgspec.json.decode(frame) for frame in replies[:-1]]


def types(frames: Frames) -> list[str]:
    """The frames' words; deltas that follow each other count as one, for the hub may join them."""
    words = [frame["type"] for frame in frames]
    return [
        word
        for at, word in enumerate(words)
        if not (word.endswith("-delta") and words[at - 1 : at] == [word])
    ]


def text_of(frames: Frames) -> str:
    """All text in the frames."""
    return "".join(frame["delta"] for frame in frames if frame["type"] == "text-delta")


def write_script(folder: Path, steps: Sequence[Mapping[str, Any]], *, play: str) -> Path:
    """A file with a script for the scripted provider."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "script.json"
    path.write_bytes(msgspec.json.encode({"steps": list(steps), "play": play}))
    return path


@asynccontextmanager
async def serving(
    data: Path,
    steps: Sequence[Mapping[str, Any]] = (),
    *,
    play: str = "once",
    keys: bool = False,
    **config: Any,
) -> AsyncIterator[Served]:
    """A served hub whose model plays these steps."""
    script = write_script(data, steps, play=play)
    providers = {"sim": {"type": "scripted", "script": str(script)}}
    parsed = parse_config({"providers": providers, "model": "sim/any", **config})
    async with (
        Hub.open(parsed, data / "hub", require_keys=keys) as hub,
        listening(hub) as url,
        httpx2.AsyncClient(base_url=url, timeout=LIMIT, trust_env=False) as http,
    ):
        yield Served(hub, url, http)


@asynccontextmanager
async def hub_of(config: Path, data: Path) -> AsyncIterator[Served]:
    """The hub of a configuration file, served."""
    async with (
        Hub.open(read_config(config), data, require_keys=False) as hub,
        listening(hub) as url,
        httpx2.AsyncClient(base_url=url, timeout=LIMIT, trust_env=False) as http,
    ):
        yield Served(hub, url, http)


@asynccontextmanager
async def listening(hub: Hub) -> AsyncIterator[str]:
    """Serve a hub's app on a free port of the loopback; its address."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio: no delay
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    config = uvicorn.Config(
        hub.app,
        log_config=None,
        lifespan="off",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE,
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # the test runner keeps its own
    task = asyncio.create_task(server._serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await task


def usage(tokens_in: int, tokens_out: int) -> dict[str, int]:
    """Usage as a script says it."""
    body: dict[str, int] = msgspec.to_builtins(e.Usage(tokens_in, tokens_out, tokens_in + tokens_out))
    return body
