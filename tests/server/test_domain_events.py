"""Domain events of other processes, sent to a session over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.test_events import following
from tests.serving import Served, serving

SCHEMA = {"type": "object", "properties": {"files": {"type": "integer"}}, "required": ["files"]}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def publish(hub: Served, session: str, body: Any, key: str = "") -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    response = await hub.http.post(f"/api/sessions/{session}/events", json=body, headers=headers)
    return response.status_code, response.json()


async def test_those_who_follow_a_session_get_what_another_process_publishes_in_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        await hub.http.post("/api/sessions", json={"id": "s"})
        async with following(hub, "?session=s") as events:
            assert await publish(hub, "s", {"name": "diff", "data": {"files": 3}}) == (
                202,
                {"name": "data-diff"},
            )
            event = (await events.until("data-diff"))[-1]
        assert (event["sessionId"], event["data"], event["actor"]) == ("s", {"files": 3}, "local")


async def test_data_that_do_not_fit_their_schema_are_refused_with_the_reason(tmp_path: Path) -> None:
    wrong: Any
    async with serving(tmp_path, events={"schemas": {"diff": SCHEMA}, "unknown": "refuse"}) as hub:
        await hub.http.post("/api/sessions", json={"id": "s"})
        status, body = await publish(hub, "s", {"name": "diff", "data": {"files": "three"}})
        assert (status, body["error"]["code"]) == (400, "invalid_input")
        for wrong in ({"name": "other"}, {"name": "Diff!"}, {"data": {}}, {"name": "diff", "more": 1}, []):
            assert (await publish(hub, "s", wrong))[0] == 400, wrong
        large = {"name": "diff", "data": {"files": 1, "text": "x" * 70_000}}
        assert (await publish(hub, "s", large))[0] == 413


async def test_nobody_publishes_in_the_session_of_another_owner(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        _, ann = await hub.hub.store.keys.create("ann", name="a")
        _, bob = await hub.hub.store.keys.create("bob", name="b")
        await hub.http.post("/api/sessions", json={"id": "s"}, headers={"authorization": f"Bearer {ann}"})
        assert (await publish(hub, "s", {"name": "diff"}))[0] == 401
        assert (await publish(hub, "s", {"name": "diff"}, bob))[0] == 404
        assert (await publish(hub, "s", {"name": "diff"}, ann))[0] == 202
