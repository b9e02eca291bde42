"""The requests of the dev spoke to its hub: child sessions, prompts, and events in the parent session."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.cli.hub_client.client import HubClient
from dragoman.cli.hub_client.url_quoting import path_segment
from dragoman.errors import ConfigError, DragomanError
from dragoman.messages import Message, ToolPart

log = logging.getLogger(__name__)

TITLE_LENGTH = 80
MAX_EVENTS = 1_000  # events that wait to be sent


class HubSessions:
    """Sessions of a hub, over its API. Use it in `async with`."""

    def __init__(self, client: HubClient) -> None:
        self._client = client
        self._events: asyncio.Queue[tuple[str, str, Any]] = asyncio.Queue(MAX_EVENTS)
        self._sender: asyncio.Task[None] | None = None

    async def __aenter__(self) -> HubSessions:
        self._sender = asyncio.create_task(self._send_events())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait([self._sender])

    async def create(self, session_id: str, task: str) -> None:
        """Create a session for a runner. Conflict if the id is taken."""
        title = " ".join(task.split())[:TITLE_LENGTH]
        await self._client.create_runner_session(session_id, title=title)

    async def prompt(self, session_id: str, text: str, *, key: str) -> bool:
        """Send a message to a session, to be answered in the background.

        Returns whether the answer has begun; False if it waits behind another one. The same `key` twice is
        one message. Raises what the hub refuses it with.
        """
        id = f"msg_{hashlib.sha256(key.encode()).hexdigest()[:20]}"
        message = {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}
        body = {"id": session_id, "messages": [message], "background": True, "whenBusy": "queue"}
        begun = await self._client.request("POST", "/api/chat", body=body)
        run = await self._client.request("GET", f"/api/runs/{path_segment(begun['runId'])}")
        return str(run["state"]) != "queued"

    async def history(self, session_id: str, *, before: str) -> Sequence[Message]:
        """Return the messages of a session without the turn `before`, calls as if its model had made them."""
        messages = await self._client.messages(session_id)
        return [with_own_calls(message) for message in messages if message.parts and message.id != before]

    async def only_model(self) -> str:
        """Return the model that the hub lists. Raises ConfigError if there is not exactly one."""
        listed = (await self._client.request("GET", "/v1/models"))["data"]
        names = [str(each["id"]) for each in listed]
        if len(names) != 1:
            shown = ", ".join(names[:10]) or "none"
            raise ConfigError("name the model of the agents with --model", hint=f"this hub lists: {shown}")
        return names[0]

    def publish(self, session_id: str | None, name: str, *, data: Any) -> None:
        """Send a domain event to a session, after those before it. One that does not arrive is logged."""
        if session_id is None:
            return
        if self._events.full():
            self._events.get_nowait()  # drop the oldest: a later event of its name has the newer state
        self._events.put_nowait((session_id, name, data))

    async def _send_events(self) -> None:
        while True:
            session_id, name, data = await self._events.get()
            try:
                path = f"/api/sessions/{path_segment(session_id)}/events"
                body = {"name": name, "data": msgspec.to_builtins(data)}
                await self._client.request("POST", path, body=body)
            except DragomanError as error:
                log.warning("the event %s of session %s was not taken: %s", name, session_id, error.message)


def with_own_calls(message: Message) -> Message:
    """Return a message whose calls are the model's own.

    For the hub they are the runner's. Here, where the runner's agent continues, they are its earlier steps.
    """
    parts = tuple(
        msgspec.structs.replace(part, provider_executed=None) if isinstance(part, ToolPart) else part
        for part in message.parts
    )
    return msgspec.structs.replace(message, parts=parts)
