"""`/api/sessions` and `/api/search`: ownership of sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving import Served, serving
from tests.store.samples import converse


async def key_of(hub: Served, owner: str, *scopes: str) -> dict[str, str]:
    _, secret = await hub.hub.store.keys.create(owner, scopes=frozenset(scopes))
    return {"authorization": f"Bearer {secret}"}


READS = (
    "/api/sessions?owner=ann",
    "/api/sessions?owner=*",
    "/api/sessions/hers",
    "/api/search?q=hotel&owner=ann",
    "/api/search?q=hotel&owner=*",
    "/api/search?q=hotel&session=hers",
)


@pytest.mark.parametrize("path", READS)
async def test_only_an_admin_reads_the_sessions_of_others(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path, keys=True) as hub:
        await converse(hub.hub.store, "Which hotel?", session_id="hers", owner="ann")
        hidden = 403 if "owner=" in path else 404  # an id tells nobody that it exists
        for scopes, status in (
            ((), hidden),
            (("chat",), hidden),
            (("admin",), 403),
            (("chat", "admin"), 200),
        ):
            response = await hub.http.get(path, headers=await key_of(hub, "bob", *scopes))
            assert (scopes, response.status_code) == (scopes, status)
        mine = await hub.http.get(path.replace("*", "ann"), headers=await key_of(hub, "ann"))
        assert mine.status_code == 200


async def test_a_session_without_messages_has_an_empty_list_of_them(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        await converse(hub.hub.store, "Which hotel?", session_id="hers", owner="ann")
        for scopes, count in (((), 0), (("chat", "admin"), 2)):
            headers = await key_of(hub, "bob", *scopes)
            hers = await hub.http.get("/api/sessions/hers/messages", headers=headers)
            assert (hers.status_code, len(hers.json()["messages"])) == (200, count)
            fresh = await hub.http.get("/api/sessions/fresh/messages", headers=headers)
            assert (fresh.status_code, fresh.json()) == (200, {"messages": []})


async def test_an_admin_cannot_change_the_sessions_of_others(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        await converse(hub.hub.store, "Which hotel?", session_id="hers", owner="ann")
        admin = await key_of(hub, "root", "chat", "admin")
        for method in ("PATCH", "DELETE"):
            response = await hub.http.request(method, "/api/sessions/hers", headers=admin, json={})
            assert response.status_code == 403
        assert (await hub.http.post("/api/chat/hers/stop", headers=admin)).status_code == 404


async def test_an_admin_lists_one_owner_or_all_and_without_owner_its_own(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        for owner in ("ann", "bob"):
            await converse(hub.hub.store, "Which hotel?", session_id=f"of-{owner}", owner=owner)
        admin = await key_of(hub, "bob", "chat", "admin")

        async def owners(query: str) -> list[str]:
            body = (await hub.http.get(f"/api/sessions{query}", headers=admin)).json()
            return [session["owner"] for session in body["sessions"]]

        assert sorted(await owners("?owner=*")) == ["ann", "bob"]
        assert len(await owners("?owner=*&limit=1")) == 1
        assert await owners("?owner=ann") == ["ann"]
        assert await owners("") == ["bob"]
        found = (await hub.http.get("/api/search?q=hotel&owner=*", headers=admin)).json()["found"]
        assert {passage["owner"] for passage in found} == {"ann", "bob"}
