"""A hub tells which processes it has, and one that is drained begins no more runs."""

from __future__ import annotations

from pathlib import Path

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
