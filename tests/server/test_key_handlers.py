"""Keys over HTTP: created, listed, changed, rotated and revoked by administrators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.store.accounts.keys import ApiKey, KeyRejection
from tests.server.openapi import check, refused
from tests.server.test_session_owners import key_of
from tests.serving import Served, serving


async def found_by(hub: Served, secret: str) -> set[str] | KeyRejection:
    """The scopes of a secret, or why it is rejected."""
    found = await hub.hub.store.keys.authenticate(secret)
    return set(found.scopes) if isinstance(found, ApiKey) else found


async def test_a_key_is_created_changed_rotated_and_revoked(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        admin = {"headers": await key_of(hub, "root", "admin")}
        body: dict[str, Any] = {"owner": "ann", "name": "laptop", "scopes": ["gateway"], "models": ["a/*"]}
        made = await check(hub, "post", "/api/keys", json={**body, "limits": {"parallel": 2}}, **admin)
        secret = made.pop("key")
        assert {name: made[name] for name in body} == body
        assert secret.startswith(made["prefix"])
        assert await check(hub, "get", "/api/keys/{id}", id=made["id"], **admin) == made
        assert made in (await check(hub, "get", "/api/keys", **admin))["keys"]
        assert await found_by(hub, secret) == {"gateway"}
        changes = {"scopes": None, "models": None, "limits": None, "name": None}
        changed = await check(hub, "patch", "/api/keys/{id}", id=made["id"], json=changes, **admin)
        used = {"lastUsedAt": changed["lastUsedAt"]}
        assert changed == {**made, **used, "scopes": [], "models": None, "limits": {}, "name": None}
        assert await found_by(hub, secret) == set()
        rotated = await check(hub, "post", "/api/keys/{id}/rotate", id=made["id"], json={"grace": 0}, **admin)
        assert rotated["key"] != secret
        assert [await found_by(hub, each) for each in (secret, rotated["key"])] == ["rotated", set()]
        await check(hub, "delete", "/api/keys/{id}", id=made["id"], **admin)
        assert await found_by(hub, rotated["key"]) == "revoked"
        assert await refused(hub, "delete", "/api/keys/{id}", id=made["id"], **admin) == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"owner": ""},
        {"owner": "a\nb"},
        {"owner": "x" * 201},
        {"owner": " "},
        {"owner": "ann", "name": " "},
        {"owner": "ann", "name": "\u3164\u2800 \u115f"},
        {"owner": "ann", "scopes": ["everything"]},
        {"owner": "ann", "models": [""]},
        {"owner": "ann", "limits": {"usd_per_century": 1}},
        {"owner": "ann", "secret": "mine"},
    ],
)
async def test_a_key_that_cannot_be_is_refused(tmp_path: Path, body: dict[str, Any]) -> None:
    async with serving(tmp_path) as hub:
        assert await refused(hub, "post", "/api/keys", json=body) == 400
        assert (await check(hub, "get", "/api/keys"))["keys"] == []


async def test_a_key_without_the_scope_admin_reads_and_makes_no_keys(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        key, secret = await hub.hub.store.keys.create("ann", scopes=["chat", "gateway", "operations"])
        own = {"headers": {"x-api-key": secret}}
        assert await refused(hub, "get", "/api/keys", **own) == 403
        assert (
            await refused(hub, "post", "/api/keys", json={"owner": "ann", "scopes": ["admin"]}, **own) == 403
        )
        wider = {"scopes": ["admin"]}
        assert await refused(hub, "patch", "/api/keys/{id}", id=key.id, json=wider, **own) == 403
