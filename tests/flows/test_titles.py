"""Titles of sessions that a model writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.program import scripted
from tests.serving import Served, hub_of, types
from tests.waiting import poll

ANSWER: list[dict[str, Any]] = [{"text": ["Take the ", "train."]}] * 3


@asynccontextmanager
async def titled_hub(folder: Path, title: Sequence[dict[str, Any]]) -> AsyncIterator[Served]:
    """A hub whose titles are written by a model that plays these steps."""
    config = {
        "providers": {
            "sim": scripted(folder, "answers", ANSWER),
            "small": scripted(folder, "titles", list(title)),
        },
        "model": "sim/x",
        "title_model": "small/x",
        "disconnect_grace": 0,
    }
    path = folder / "dragoman.yaml"
    path.write_bytes(msgspec.json.encode(config))
    async with hub_of(path, folder / "hub") as hub:
        yield hub


async def title_of(hub: Served, session: str = "s") -> Any:
    return (await hub.http.get(f"/api/sessions/{session}")).json()["title"]


async def title_calls(hub: Served) -> list[tuple[str, int]]:
    """The sessions and counts of the calls of the model that writes titles."""
    await hub.hub.meter.ledger.flush()
    report = await hub.http.get("/api/usage", params={"group_by": "session,provider"})
    groups = [(row["group"], row["calls"]) for row in report.json()["rows"]]
    return [(group["session_id"], calls) for group, calls in groups if group["provider"] == "small"]


async def test_a_model_writes_the_title_after_the_first_answer_and_its_call_is_counted(
    tmp_path: Path,
) -> None:
    async with titled_hub(tmp_path, [{"text": ['# "Getting ', 'to Porto".\n', "More."]}]) as hub:
        await hub.chat("How do I get to Porto?")

        async def look() -> bool:
            return bool(await title_of(hub) == "Getting to Porto")

        await poll(look)
        await hub.chat("And back?")
        assert await title_of(hub) == "Getting to Porto"
        assert await title_calls(hub) == [("s", 1)]


@pytest.mark.parametrize("steps", [[{"text": ["  \n"]}], [{"error": {"message": "down"}}]])
async def test_without_a_title_of_the_model_the_first_words_stay(
    tmp_path: Path, steps: list[dict[str, Any]]
) -> None:
    async with titled_hub(tmp_path, steps) as hub:
        frames = await hub.chat("How do I get to Porto?")
        assert types(frames)[-1] == "finish"
        await asyncio.gather(*hub.hub.titles._tasks)
        assert await title_of(hub) == "How do I get to Porto?"


async def test_a_title_that_somebody_has_set_stays(tmp_path: Path) -> None:
    async with titled_hub(tmp_path, [{"text": ["Another"]}]) as hub:
        await hub.http.post("/api/sessions", json={"id": "s", "title": "Mine"})
        await hub.chat("How do I get to Porto?")
        assert not hub.hub.titles._tasks or await asyncio.gather(*hub.hub.titles._tasks)
        assert await title_of(hub) == "Mine"
