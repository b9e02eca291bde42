"""Requests for runs in the background, and waiting for what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.serving import Served, ask
from tests.waiting import poll


async def send_away(hub: Served, text: str = "go", **fields: Any) -> str:
    """Send a message to be answered in the background; the id of its run."""
    response = await hub.http.post("/api/chat", json=ask(text, background=True, **fields))
    assert response.status_code == 202, response.text
    id: str = response.json()["runId"]
    assert response.headers["location"] == f"/api/runs/{id}"
    return id


async def read_run(hub: Served, id: str, **options: Any) -> dict[str, Any]:
    """What `GET /api/runs/{id}` says."""
    response = await hub.http.get(f"/api/runs/{id}", **options)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def until_state(hub: Served, id: str, *states: str, **options: Any) -> dict[str, Any]:
    """The run, once it is in one of these states."""

    async def look() -> dict[str, Any] | None:
        body = await read_run(hub, id, **options)
        return body if body["state"] in states else None

    return await poll(look)


def answer_of(run: Mapping[str, Any]) -> str:
    """The text of a run's message."""
    return "".join(part.get("text", "") for part in run["message"]["parts"])
