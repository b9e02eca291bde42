"""Titles, labels and archived sessions, and lists of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.runs.preparation import first_words
from tests.serving import Served, serving


async def listed(hub: Served, query: str = "") -> list[str]:
    response = await hub.http.get(f"/api/sessions{query}")
    assert response.status_code == 200, response.text
    return sorted(session["id"] for session in response.json()["sessions"])


async def test_sessions_have_labels_and_can_be_archived(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        for id, body in (
            ("a", {"title": "Lisbon in May", "labels": ["trip", "100%", "trip"]}),
            ("b", {"title": "Groceries", "labels": ["home"]}),
            ("c", {"archived": True}),
        ):
            created = await hub.http.post("/api/sessions", json={"id": id, **body})
            assert created.status_code == 201, created.text
        assert (await hub.http.get("/api/sessions/a")).json()["labels"] == ["trip", "100%"]
        assert await listed(hub) == ["a", "b"]
        assert await listed(hub, "?archived=all") == ["a", "b", "c"]
        assert await listed(hub, "?archived=true") == ["c"]
        assert await listed(hub, "?label=trip") == await listed(hub, "?label=100%25") == ["a"]
        assert await listed(hub, "?label=tri") == await listed(hub, "?label=%25") == []
        assert await listed(hub, "?title=lisbon") == ["a"]
        assert await listed(hub, "?title=%25") == await listed(hub, "?title=_") == []
        changed = await hub.http.patch("/api/sessions/a", json={"archived": True, "labels": None})
        assert (changed.json()["archived"], changed.json()["labels"]) == (True, [])
        assert await listed(hub) == ["b"]
        assert (await hub.http.patch("/api/sessions/a", json={"archived": False})).json()["archived"] is False


@pytest.mark.parametrize(
    "body",
    [
        {"labels": labels}
        for labels in ([""], [" "], ["x" * 65], ["a\nb"], "a", [str(number) for number in range(21)])
    ]
    + [{"archived": "yes"}],
)
async def test_labels_are_bounded(tmp_path: Path, body: dict[str, Any]) -> None:
    async with serving(tmp_path) as hub:
        assert (await hub.http.post("/api/sessions", json=body)).status_code == 400
        assert (await hub.http.get("/api/sessions?archived=maybe")).status_code == 400


@pytest.mark.parametrize(
    "query",
    ["sessions?label=", "sessions?title=", "search?q=", "calls?roots=1&text=", "approvals?operation="],
)
async def test_a_text_longer_than_a_pattern_of_the_database_is_a_bad_request(
    tmp_path: Path, query: str
) -> None:
    async with serving(tmp_path) as hub:
        for length in (20_000, 55_000):
            response = await hub.http.get(f"/api/{query}{'a' * length}")
            assert (response.status_code, response.json()["error"]["code"]) == (400, "bad_request")


async def test_a_session_is_titled_by_its_first_words_until_somebody_says_otherwise(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "one"}, {"text": "two"}]) as hub:
        await hub.chat("  What time\nis it in Lisbon? ")
        assert (await hub.http.get("/api/sessions/s")).json()["title"] == "What time is it in Lisbon?"
        await hub.http.patch("/api/sessions/s", json={"title": "Clock"})
        await hub.chat("And in Porto?")
        assert (await hub.http.get("/api/sessions/s")).json()["title"] == "Clock"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (" \n ", None),
        ("hi", "hi"),
        ("word " * 40, "word " * 11 + "word…"),
        ("x" * 100, "x" * 60 + "…"),
    ],
)
def test_a_title_ends_at_a_word(text: str, title: str | None) -> None:
    assert first_words(text) == title
