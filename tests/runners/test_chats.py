"""Chats of a hub that runners answer: the examples, and `dragoman runner`."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.runners.programs import LIMIT, command, program
from tests.serving import Served, ask, frames_in, serving, text_of, types

RUNNER = (sys.executable, "-m", "dragoman", "runner")


async def say(
    served: Served, text: str, *, session: str = "s", id: str | None = None
) -> list[dict[str, object]]:
    """The frames of an answer in a session."""
    async with asyncio.timeout(LIMIT):
        response = await served.http.post(
            f"/api/sessions/{session}/chat", json=ask(text, session=session, id=id)
        )
    assert response.status_code == 200, response.text
    assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
    return frames_in(response.text)


@pytest.mark.parametrize("language", ["python", "typescript"])
async def test_an_example_answers_a_chat_of_a_hub(language: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        made = await served.http.post("/api/sessions", json={"id": "s", "runner": True})
        assert made.status_code == 201, made.text
        async with program(*command(language), served.url, "s") as runner:
            await runner.see("answering s")
            frames = await say(served, "six seven")
        assert [word for word in types(frames) if not word.startswith("text")] == [
            "start",
            "start-step",
            "tool-input-start",
            "tool-input-available",
            "tool-output-available",
            "finish-step",
            "start-step",
            "finish-step",
            "finish",
        ]
        assert text_of(frames) == "six seven "


@pytest.mark.promise("runner-command")
async def test_the_command_makes_its_session_answers_in_it_and_ends_by_a_signal(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        arguments = ("--session", "s", "--hub", served.url, "--", "tr", "a-z", "A-Z")
        async with program(*RUNNER, *arguments) as runner:
            assert "runner answers s at ws://" in await runner.see("runner answers")
            assert text_of(await say(served, "shout")) == "SHOUT"
            assert text_of(await say(served, "again")) == "AGAIN"
            runner.process.send_signal(signal.SIGTERM)
            assert await runner.process.wait() == 0
        roles = [each["role"] for each in await served.messages("s")]
        assert roles == ["user", "assistant", "user", "assistant"]


async def test_the_command_makes_a_session_of_its_own_and_shows_its_errors_in_the_chat(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        async with program(*RUNNER, "--hub", served.url, "--", "sh", "-c", "echo half; exit 7") as runner:
            line = await runner.see("runner answers")
            session = line.split("answers ")[1].split(" at ")[0]
            frames = await say(served, "try", session=session)
        assert text_of(frames) == "half\n"
        [error] = [frame for frame in frames if frame["type"] == "error"]
        assert "sh ended with exit code 7" in str(error["errorText"])


async def test_the_command_ends_with_the_hub_s_words_when_its_key_is_no_good(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as served:
        _, key = await served.hub.store.keys.create("ann", name="a")
        arguments = ("--session", "s", "--hub", served.url, "--", "cat")
        async with program(*RUNNER, *arguments, key=key) as runner:
            assert await runner.process.wait() == 1
            assert runner.process.stdout is not None
            printed = (await runner.process.stdout.read()).decode()
        assert "runner" in printed
        assert key not in printed
