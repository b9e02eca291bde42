"""The database goes down while an answer is written: what is told as finished is in it later, or on disk."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from dragoman.store import sqlite
from dragoman.store.hosts.host_folder import ANSWERS_FOLDER
from tests.faults.test_usage_database_down import Trouble, busy
from tests.moved_database import replaced
from tests.serving import Served, ask, frames_in, serving, text_of
from tests.waiting import poll, until

WORDS = [f"word{number} " for number in range(12)]
WHOLE = "".join(WORDS)
SLOW = {"text": WORDS, "delay": 0.02}
LATER = {"text": "Good day."}


pytestmark = pytest.mark.sqlite_file  # the file itself is moved away, locked or overwritten


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' locks are waited for a moment only."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)


async def begun(hub: Served) -> asyncio.Task[Any]:
    """An answer that has begun: its first words are in the run's message."""
    task = asyncio.create_task(hub.http.post("/api/chat", json=ask("go")))
    await until(lambda: (run := hub.active_run()) is not None and len(run.fold.builders) > 1)
    return task


async def up(hub: Served) -> None:
    """Wait until the database is up and has what waited for it."""
    await until(lambda: hub.hub.store.database.is_up)
    await hub.hub.store.flush()


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """The texts of the answer."""
    return [part["text"] for part in messages[1]["parts"] if part["type"] == "text"]


@pytest.mark.parametrize("trouble", [replaced, busy])
async def test_an_answer_that_ended_while_the_database_was_down_is_in_it_afterwards(
    tmp_path: Path, trouble: Trouble
) -> None:
    async with serving(tmp_path, [SLOW, LATER]) as hub:
        task = await begun(hub)
        with trouble(tmp_path / "hub"):
            frames = frames_in((await task).text)
            assert (text_of(frames), frames[-1]["finishReason"]) == (WHOLE, "stop")
        await up(hub)
        messages = await hub.messages()
        assert texts(messages) == [WHOLE]
        assert messages[1]["metadata"]["finishReason"] == "stop"
        assert text_of(await hub.chat("more")) == "Good day."
        folder = tmp_path / "hub" / ANSWERS_FOLDER
        await until(lambda: not any(folder.iterdir()))


@pytest.mark.parametrize("trouble", [replaced, busy])
async def test_what_was_told_in_an_outage_survives_a_crash_in_it(tmp_path: Path, trouble: Trouble) -> None:
    async with serving(tmp_path, [SLOW]) as hub:
        task = await begun(hub)
        with trouble(tmp_path / "hub"):
            assert frames_in((await task).text)[-1]["finishReason"] == "stop"
            shutil.copytree(tmp_path / "hub", tmp_path / "crashed" / "hub", ignore=without_lock)
            if trouble is replaced:
                shutil.copytree(tmp_path / "hub away", tmp_path / "crashed" / "hub", dirs_exist_ok=True)
        await up(hub)
    crashed = tmp_path / "crashed" / "hub"
    async with serving(tmp_path / "crashed", [LATER]) as hub:
        messages = await hub.messages()
        assert texts(messages) == [WHOLE]
        assert messages[1]["metadata"]["finishReason"] == "stop"
        assert not any((crashed / ANSWERS_FOLDER).iterdir())
        assert text_of(await hub.chat("more")) == "Good day."


def without_lock(_: str, names: list[str]) -> list[str]:
    """The lock of a hub that is still running is not copied."""
    return [name for name in names if name == sqlite.LOCK_FILE]


async def test_an_answer_that_can_be_stored_nowhere_ends_with_an_error(tmp_path: Path) -> None:
    async with serving(tmp_path, [SLOW, LATER]) as hub:
        (tmp_path / "hub" / ANSWERS_FOLDER).write_text("no folder can be made here")
        task = await begun(hub)
        with busy(tmp_path / "hub"):
            frames = frames_in((await task).text)
        assert frames[-1]["finishReason"] == "error"
        assert "could not be stored" in next(f["errorText"] for f in frames if f["type"] == "error")
        assert text_of(frames) == WHOLE
        await up(hub)
        assert texts(await hub.messages()) == [WHOLE]
        assert text_of(await hub.chat("more")) == "Good day."


async def test_what_is_told_after_an_outage_survives_a_crash_although_the_answer_was_on_disk_before(
    tmp_path: Path,
) -> None:
    look = [{"name": "hub_search", "input": {"q": "time"}}]
    steps = [
        SLOW | {"tools": look},
        {"text": ["and "] * 80 + ["Second."], "delay": 0.03, "tools": look},
        {"text": ["on "] * 500, "delay": 0.05},
    ]
    answers = tmp_path / "hub" / ANSWERS_FOLDER
    async with (
        serving(tmp_path, steps) as hub,
        hub.http.stream("POST", "/api/chat", json=ask("go")) as response,
    ):
        pieces = response.aiter_text()
        await until(lambda: (run := hub.active_run()) is not None and len(run.fold.builders) > 1)
        with busy(tmp_path / "hub"):
            await until(lambda: answers.is_dir() and any(answers.iterdir()))
        shown = ""
        while shown.count('"text-start"') < 3:
            shown += await anext(pieces)
        shutil.copytree(tmp_path / "hub", tmp_path / "crashed" / "hub", ignore=without_lock)
    assert "Second." in shown
    async with serving(tmp_path / "crashed", [LATER]) as hub:

        async def has_gone_on() -> bool:
            return "Good day." in texts(await hub.messages())

        await poll(has_gone_on)
        assert texts(await hub.messages())[:2] == [WHOLE, "and " * 80 + "Second."]
