"""Webhooks of triggers: signed deliveries that are repeated, or come while their trigger changes."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from dragoman.http.webhook import signature_headers, signing_keys
from tests.teams.team_hub import team_hub
from tests.teams.test_triggers import BODY, SCHEDULE, github, settled


@pytest.mark.parametrize("kind", ["github", "standard"])
async def test_a_signed_body_sent_again_with_another_id_fires_nothing_for_a_day(
    tmp_path: Path, kind: str
) -> None:
    async with team_hub(tmp_path, {"press": {}}) as hub:
        fields = {"type": "webhook", "config": {"signature": kind}, "deliver": "none"}
        body = {name: value for name, value in SCHEDULE.items() if name != "cron"}
        trigger = (await hub.http.post("/api/triggers", json={**body, **fields})).json()
        await hub.http.post(f"/api/triggers/{trigger['id']}/enable")

        async def send(id: str, body: bytes = BODY) -> tuple[int, str]:
            headers = signed_headers(kind, trigger["secret"], body, id=id)
            response = await hub.http.post(trigger["hook"], content=body, headers=headers)
            return response.status_code, response.json()["occurrence"]

        assert await send("d1") == (202, "delivery:d1")
        expected = (200, "delivery:d1") if kind == "github" else (202, "delivery:d2")
        assert await send("d2") == expected
        assert await send("d3", BODY + b" ") == (202, "delivery:d3")
        for each in await settled(hub, trigger, 2):
            assert "window" not in each
        store = hub.hub.store.triggers
        for occurrence in await store.history(trigger["id"]):
            await store.change(occurrence, created_at=occurrence.created_at - 86_401.0)
        assert await send("d4") == (202, "delivery:d4")
        assert await send("d1") == (200, "delivery:d1")


async def test_a_delivery_at_the_moment_when_its_trigger_is_changed_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with team_hub(tmp_path, {"press": {}}) as hub:
        fields = {"type": "webhook", "config": {"signature": "github"}}
        body = {name: value for name, value in SCHEDULE.items() if name != "cron"}
        trigger = (await hub.http.post("/api/triggers", json={**body, **fields})).json()
        await hub.http.post(f"/api/triggers/{trigger['id']}/enable")
        store = hub.hub.store.triggers
        seen = await store.get(trigger["id"])
        await store.update(trigger["id"], state="disabled")
        monkeypatch.setattr(store, "get", AsyncMock(return_value=seen))
        headers = github(trigger["secret"])
        assert (await hub.http.post(trigger["hook"], content=BODY, headers=headers)).status_code == 409


def signed_headers(kind: str, secret: str, body: bytes, *, id: str) -> dict[str, str]:
    """The headers of a delivery that is signed now."""
    if kind == "github":
        return github(secret, body, id=id)
    return signature_headers(signing_keys(secret), body, id=id, now=time.time())
