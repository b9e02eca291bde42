"""A hub tells which processes it has, and one that is drained begins no more runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dragoman.server import hosts
from dragoman.server.hosts import LocalHost
from dragoman.store.hosts import HostRecord
from dragoman.store.store import Store
from tests.server.openapi import check, refused
from tests.serving import ask, serving


async def test_a_drained_host_begins_no_more_runs_and_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        [host] = (await check(served, "get", "/api/hosts"))["hosts"]
        assert await refused(served, "post", "/api/hosts/{id}/drain", id="host_none") == 404
        assert (await served.http.get("/readyz")).status_code == 200
        drained = await check(served, "post", "/api/hosts/{id}/drain", id=host["id"])
        assert drained == {**host, "draining": True}
        ready = await served.http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        assert (await served.http.post("/api/chat", json=ask("hi"))).status_code == 503


async def test_a_host_hears_that_another_one_drained_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await Store.open(tmp_path) as store:
        record = HostRecord(id="host_a", name="alpha", version="1", started_at=time.time())
        await store.hosts.add(record)
        store.host_id = record.id
        drained: list[str] = []
        local = LocalHost(store, on_drain=lambda: drained.append("once"))
        await store.hosts.drain(record.id, time.time())
        monkeypatch.setattr(hosts, "POLL_INTERVAL", 0.0)
        await local.watch()
        assert (drained, local.is_draining) == (["once"], True)
