"""`/api/approvals`: listed and answered by the owner and by administrators only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from starlette.routing import Route, Router

from dragoman.operations.approval import ApprovalItem, ApprovalRequest
from dragoman.server.app import Hub
from dragoman.server.approvals import ApprovalHandlers
from dragoman.server.auth import Auth
from dragoman.server.http.endpoint import HttpEndpoint
from dragoman.store.store import Store
from tests.serving import listening
from tests.waiting import LIMIT

NOW, DAY = time.time(), 86_400.0


class Served:
    """The doors of a store's approvals, and clients for them."""

    def __init__(self, store: Store, http: httpx2.AsyncClient) -> None:
        self.store = store
        self.http = http

    async def key(self, owner: str, *scopes: str) -> dict[str, str]:
        """The headers of a new key."""
        _, secret = await self.store.keys.create(owner, scopes=scopes)
        return {"x-api-key": secret}

    async def ids(self, headers: dict[str, str], query: str = "") -> list[str]:
        response = await self.http.get(f"/api/approvals?{query}", headers=headers)
        assert response.status_code == 200, response.text
        return [each["id"] for each in response.json()["approvals"]]

    async def answer(self, id: str, headers: dict[str, str], approved: Any = True) -> int:
        """The status of the answer to an answer."""
        body = {"approved": approved}
        response = await self.http.post(f"/api/approvals/{id}", json=body, headers=headers)
        return response.status_code


@asynccontextmanager
async def serving(folder: Path, *waiting: ApprovalRequest, keys: bool = True) -> AsyncIterator[Served]:
    async with await Store.open(folder) as store:
        for approval in waiting:
            await store.approvals.create(approval)
        auth = Auth(store.keys, required=keys)
        doors = ApprovalHandlers(store.approvals)
        routes = [
            Route("/api/approvals", HttpEndpoint({"GET": doors.list}, auth=auth)),
            Route("/api/approvals/{id}", HttpEndpoint({"GET": doors.get, "POST": doors.answer}, auth=auth)),
        ]
        hub = cast(Hub, SimpleNamespace(app=Router(routes)))
        async with (
            listening(hub) as url,
            httpx2.AsyncClient(base_url=url, timeout=LIMIT, trust_env=False) as http,
        ):
            yield Served(store, http)


def asking(id: str = "a", *, owner: str = "ann", **fields: Any) -> ApprovalRequest:
    arguments: dict[str, Any] = {
        "id": id,
        "owner": owner,
        "operation": "mail.send",
        "input": {"to": "x"},
        "input_hash": id,
        "items": (ApprovalItem("mail.send", {"to": "x"}, id, reason="others see it"),),
        "created_at": NOW,
        "expires_at": NOW + DAY,
        **fields,
    }
    return ApprovalRequest(**arguments)


async def test_an_approval_is_told_with_all_that_somebody_decides_by(tmp_path: Path) -> None:
    full = asking(run_id="r", session_id="s", tool_call_id="t", call_id="c", agent="helper")
    async with serving(tmp_path, full) as served:
        ann = await served.key("ann")
        report: dict[str, Any] = {
            "id": "a",
            "status": "pending",
            "owner": "ann",
            "operation": "mail.send",
            "operations": ["mail.send"],
            "input": {"to": "x"},
            "inputHash": "a",
            "question": None,
            "answer": None,
            "items": [
                {
                    "operation": "mail.send",
                    "input": {"to": "x"},
                    "reason": "others see it",
                    "question": None,
                    "agent": None,
                }
            ],
            "createdAt": NOW,
            "expiresAt": NOW + DAY,
            "answerers": ["owner"],
            "mayAnswer": True,
            "mayAlwaysAllow": False,  # the request does not say who would run it
            "agent": "helper",
            "callId": "c",
            "runId": "r",
            "sessionId": "s",
            "toolCallId": "t",
            "answeredAt": None,
            "answeredBy": None,
            "reason": None,
        }
        assert (await served.http.get("/api/approvals/a", headers=ann)).json() == report
        assert (await served.http.get("/api/approvals", headers=ann)).json() == {"approvals": [report]}
        body = {"approved": False, "reason": "no"}
        answered = (await served.http.post("/api/approvals/a", json=body, headers=ann)).json()
        changed = {"status": "denied", "mayAnswer": False, "answeredBy": "ann", "reason": "no"}
        assert answered == {**report, **changed, "answeredAt": answered["answeredAt"]}
        assert (await served.http.get("/api/approvals/a", headers=ann)).json() == answered


async def test_they_are_seen_and_answered_by_whom_they_concern(tmp_path: Path) -> None:
    waiting = [asking("own"), asking("boss", answerers=("boss",)), asking("bobs", owner="bob")]
    async with serving(tmp_path, *waiting) as served:
        ann, bob, boss = [await served.key(owner) for owner in ("ann", "bob", "boss")]
        admin = await served.key("root", "admin")
        assert (await served.http.get("/api/approvals")).status_code == 401
        assert await served.answer("own", {}) == 401
        assert sorted(await served.ids(ann)) == ["boss", "own"]
        assert await served.ids(bob) == ["bobs"]
        assert await served.ids(boss) == ["boss"]
        assert sorted(await served.ids(admin)) == ["bobs", "boss", "own"]
        assert (await served.http.get("/api/approvals/own", headers=bob)).status_code == 404
        assert (await served.http.get("/api/approvals/gone", headers=ann)).status_code == 404
        assert await served.answer("gone", ann) == 404
        assert await served.answer("own", bob) == 404
        assert await served.answer("boss", ann) == 403
        body = (await served.http.get("/api/approvals/boss", headers=ann)).json()
        assert (body["status"], body["mayAnswer"]) == ("pending", False)
        assert await served.answer("own", ann) == 200
        assert await served.answer("boss", boss) == 200
        assert await served.answer("bobs", admin) == 200


async def test_a_key_for_calling_operations_cannot_approve_its_own_calls(tmp_path: Path) -> None:
    async with serving(tmp_path, asking()) as served:
        caller = await served.key("ann", "operations", "gateway")
        body = (await served.http.get("/api/approvals/a", headers=caller)).json()
        assert body["mayAnswer"] is False
        assert await served.answer("a", caller) == 403
        assert await served.answer("a", await served.key("ann", "chat")) == 200


async def test_an_approval_takes_one_answer_however_many_come_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path, asking()) as served:
        ann = await served.key("ann")
        replies = await asyncio.gather(*(served.answer("a", ann, approved=n % 2 == 0) for n in range(20)))
        assert sorted(replies) == [200] + [409] * 19
        assert await served.answer("a", ann) == 409


async def test_what_has_expired_is_not_answered_and_not_pending(tmp_path: Path) -> None:
    async with serving(tmp_path, asking(expires_at=NOW - 1), asking("b")) as served:
        ann = await served.key("ann")
        assert await served.answer("a", ann) == 409
        assert await served.ids(ann, "status=pending") == ["b"]
        assert await served.ids(ann, "status=expired") == ["a"]
        assert len(await served.ids(ann, "limit=1")) == 1


@pytest.mark.parametrize(
    "body", [{}, [], {"approved": "yes"}, {"approved": None}, {"approved": True, "more": 1}]
)
async def test_an_answer_that_is_none_is_refused(tmp_path: Path, body: Any) -> None:
    async with serving(tmp_path, asking(), keys=False) as served:
        response = await served.http.post("/api/approvals/a", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "bad_request")
        assert (await served.store.approvals.get("a")).status == "pending"


@pytest.mark.parametrize("query", ["status=open", "status=", "limit=0", "limit=501", "limit=x", "limit=²"])
async def test_what_cannot_be_asked_is_reported_by_name(tmp_path: Path, query: str) -> None:
    async with serving(tmp_path, keys=False) as served:
        response = await served.http.get(f"/api/approvals?{query}")
        assert (response.status_code, response.json()["error"]["field"]) == (400, query.partition("=")[0])
