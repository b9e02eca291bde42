"""The runners of examples/, against the hub's end of the protocol."""

from __future__ import annotations

import pytest

from tests.runners.programs import PYTHON, TYPESCRIPT, command, program
from tests.runners.stand_in_hub import final, stand_in_hub, text_of


@pytest.fixture(params=["python", "typescript"])
def language(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_an_example_has_200_lines_at_most() -> None:
    for path in (PYTHON, TYPESCRIPT):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 200


async def test_an_example_answers_asks_and_stops(language: str) -> None:
    async with stand_in_hub() as hub, program(*command(language), hub.url, "s", key="k") as runner:
        await runner.see("answering s")
        frames = await hub.finalized("please ask me")
        tool = [each for each in frames if each["type"] == "message.part.tool-update"]
        assert [each["status"] for each in tool] == ["running", "completed"]
        assert tool[1]["result"] == {"letters": 13}
        assert text_of(frames) == "You chose blue. please ask me "
        assert final(frames)["reason"] == "end_turn"
        await hub.prompt("word " * 2000, turn="t2")
        await hub.until(lambda: len(text_of(hub.frames["t2"])) > 20)
        await hub.abort("t2")
        await hub.until(lambda: hub.frames["t2"][-1]["type"] == "message.finalize")
        assert final(hub.frames["t2"])["reason"] == "canceled"


async def test_an_example_that_loses_its_connection_loses_and_repeats_nothing(language: str) -> None:
    words = " ".join(f"w{number}" for number in range(100))
    async with stand_in_hub() as hub, program(*command(language), hub.url, "s") as runner:
        await runner.see("answering s")
        await hub.prompt(words)
        for size in (30, 100, 200):
            await hub.until(lambda size=size: len(text_of(hub.frames["t1"])) > size)  # type: ignore[misc]
            connections = len(hub.hellos)
            await hub.lose()
            await hub.until(lambda count=connections: len(hub.hellos) > count)  # type: ignore[misc]
        await hub.until(lambda: hub.frames["t1"][-1]["type"] == "message.finalize")
        assert text_of(hub.frames["t1"]) == words + " "
