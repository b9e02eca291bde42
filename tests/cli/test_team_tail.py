"""`dragoman teams tail` over connections that break: it gives up only when the hub stays away."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import pytest
from starlette.routing import Router

from dragoman.cli.hub_client.client import HubClient
from dragoman.cli.hub_client.in_process import AsgiTransport
from dragoman.cli.teams import tail
from dragoman.errors import Unavailable

EVENT = {"id": "9", "name": "task.queued", "data": {"team": "press", "taskId": "task_1"}}


class BreakingHub(HubClient):
    """A client of a hub that opens connections, and breaks the first ones before an event."""

    def __init__(self, *, breaks: int) -> None:
        super().__init__(AsgiTransport(Router()))
        self._breaks = breaks

    async def events(
        self, query: Mapping[str, str], *, on_open: Callable[[], None]
    ) -> AsyncGenerator[dict[str, Any], None]:
        on_open()
        if self._breaks:
            self._breaks -= 1
            raise Unavailable("the connection was lost")
        yield EVENT


async def test_a_connection_that_opens_counts_as_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(tail, "MAX_RETRIES", 2)
    feed = tail.TeamTail("press", as_json=True, after=None)
    async for event in feed.read_events(BreakingHub(breaks=5)):
        assert event == EVENT
        break
