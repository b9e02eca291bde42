"""An approval of another owner is answered like one that is not there, by every endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.operations.approval import ApprovalItem, Question
from tests.server.test_approvals import asking
from tests.serving import Served, serving

QUESTION = (ApprovalItem("user.question", {}, "h", question=Question("Which?")),)
REQUESTS: list[tuple[str, str, Any]] = [
    ("GET", "/api/approvals/{id}", None),
    ("GET", "/api/approvals/{id}?compare=1", None),
    ("POST", "/api/approvals/{id}", {"approved": True}),
    ("POST", "/api/approvals/{id}", {"approved": False, "reason": "no"}),
    ("POST", "/api/approvals/{id}", {"answer": "yes"}),
    ("POST", "/api/approvals/{id}", {"answer": "yes", "reason": "no"}),
    ("POST", "/api/approvals/{id}", {}),
    ("POST", "/api/approvals/answers", {"ids": ["{id}"], "approved": True}),
    ("POST", "/api/policy/rules", {"approvalId": "{id}"}),
]


async def ask_about(hub: Served, request: tuple[str, str, Any], id: str, headers: dict[str, str]) -> Any:
    method, path, body = request
    fields = None if body is None else {name: replaced(value, id) for name, value in body.items()}
    response = await hub.http.request(method, path.replace("{id}", id), json=fields, headers=headers)
    return response.status_code, response.text.replace(id, "ID")


def replaced(value: Any, id: str) -> Any:
    return [id] if isinstance(value, list) else id if value == "{id}" else value


@pytest.mark.promise("a-key-sees-its-own-sessions")
@pytest.mark.parametrize("fields", [{}, {"items": QUESTION}])
async def test_anothers_approval_is_answered_like_one_that_is_not_there(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    async with serving(tmp_path, keys=True) as hub:
        await hub.hub.store.approvals.create(asking("apr_anns", **fields))
        _, secret = await hub.hub.store.keys.create("bob")
        bob = {"authorization": f"Bearer {secret}"}
        for request in REQUESTS:
            unknown = await ask_about(hub, request, "apr_none", bob)
            assert (request, await ask_about(hub, request, "apr_anns", bob)) == (request, unknown)
        assert (await hub.hub.store.approvals.get("apr_anns")).status == "pending"
