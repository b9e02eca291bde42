"""`/api/approvals` with questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.operations.approval import ApprovalItem, ApprovalRequest, Question
from tests.server.openapi import refused
from tests.server.test_approvals import asking, serving
from tests.serving import serving as hub_serving

ASKED = Question("Which colour?", ("red", "blue"))


def question(id: str = "q", **fields: Any) -> ApprovalRequest:
    item = ApprovalItem("user.question", {"text": "Which colour?"}, id, question=ASKED, agent="painter")
    return asking(id, items=(item,), operation="user.question", **fields)


async def test_a_question_is_told_and_takes_one_answer(tmp_path: Path) -> None:
    async with serving(tmp_path, question(state=b"how far it was")) as served:
        ann = await served.key("ann")
        report = (await served.http.get("/api/approvals/q", headers=ann)).json()
        request = {"text": "Which colour?", "options": ["red", "blue"]}
        assert (report["question"], report["answer"]) == (request, None)
        assert [(each["question"], each["agent"]) for each in report["items"]] == [(request, "painter")]
        body = {"answer": "mauve"}
        response = await served.http.post("/api/approvals/q", json=body, headers=ann)
        assert (response.json()["status"], response.json()["answer"]) == ("approved", "mauve")
        again = await served.http.post("/api/approvals/q", json=body, headers=ann)
        assert again.status_code == 409
        listed = await served.http.get("/api/approvals", headers=ann)
        assert "how far" not in response.text + listed.text
        assert "state" not in listed.json()["approvals"][0]


async def test_a_yes_without_a_word_answers_yes_and_a_no_declines(tmp_path: Path) -> None:
    async with serving(tmp_path, question("a"), question("b"), question("c")) as served:
        ann = await served.key("ann")
        replies = [
            (await served.http.post(f"/api/approvals/{id}", json=body, headers=ann)).json()
            for id, body in (
                ("a", {"approved": True}),
                ("b", {"approved": True, "reason": " "}),
                ("c", {"approved": False, "reason": "ask her"}),
            )
        ]
        assert [(each["status"], each["answer"]) for each in replies] == [
            ("approved", "yes"),
            ("approved", "yes"),
            ("denied", None),
        ]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"answer": ""},
        {"answer": " \n"},
        {"answer": "x" * 10_001},
        {"answer": 7},
        {"answer": None},
        {"approved": None},
        {"answer": "blue", "approved": False},
        {"answer": "blue", "reason": "I like it"},
        {"answer": "blue", "state": "x"},
    ],
)
async def test_what_is_no_answer_is_refused_and_the_question_stays(tmp_path: Path, body: Any) -> None:
    async with serving(tmp_path, question()) as served:
        ann = await served.key("ann")
        response = await served.http.post("/api/approvals/q", json=body, headers=ann)
        assert (response.status_code, bool(response.json()["error"]["hint"])) == (400, True), response.text
        longest = await served.http.post("/api/approvals/q", json={"answer": "é" * 10_000}, headers=ann)
        assert (longest.status_code, longest.json()["answer"]) == (200, "é" * 10_000)


async def test_an_answer_to_what_is_no_question_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, asking()) as served:
        ann, eve = await served.key("ann"), await served.key("eve")
        body = await served.http.post("/api/approvals/a", json={"answer": "blue"}, headers=ann)
        assert body.status_code == 400
        assert "approved" in body.json()["error"]["hint"]
        response = await served.http.post("/api/approvals/a", json={"answer": "blue"}, headers=eve)
        assert response.status_code == 404, "who may not answer does not learn that there is one"
        assert (await served.store.approvals.get("a")).status == "pending"


@pytest.mark.parametrize(
    ("owner", "scopes", "status"),
    [("ann", ("operations",), 403), ("ann", ("gateway",), 403), ("eve", (), 404)],
)
async def test_a_question_is_not_answered_by_whom_it_does_not_concern(
    tmp_path: Path, owner: str, scopes: tuple[str, ...], status: int
) -> None:
    async with serving(tmp_path, question()) as served:
        key = await served.key(owner, *scopes)
        body = await served.http.post("/api/approvals/q", json={"answer": "blue"}, headers=key)
        assert body.status_code == status
        assert (await served.store.approvals.get("q")).status == "pending"


async def test_the_document_knows_what_is_refused(tmp_path: Path) -> None:
    async with hub_serving(tmp_path) as served:
        await served.hub.store.approvals.create(question(owner="local"))
        place = {"verb": "post", "path": "/api/approvals/{id}", "id": "q"}
        assert await refused(served, **place, json={"answer": ""}) == 400
        assert await refused(served, **place, json={}) == 400
