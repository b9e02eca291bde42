"""CopilotKit's own client over its own runtime, with an agent at `POST /agui/{agent}`; 280 MB of packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doors.ag_ui_client import run_node, texts
from tests.serving import serving

COPILOTKIT = Path(__file__).with_name("copilotkit")
BOARD = str(Path(__file__).with_name("state_operation.py"))


@pytest.mark.thorough
async def test_copilotkit_has_text_tools_front_end_tools_and_state(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"text": ["Hel", "lo"]},
        {"tools": [{"name": "board_fill", "input": {"count": 2}}]},
        {"text": "Filled."},
        {"tools": [{"name": "paint", "input": {"colour": "red"}}]},
        {"text": "It is red now."},
    ]
    async with serving(tmp_path, steps, operations=[BOARD], pinned=["board.fill"]) as hub:
        scenario = {"url": f"{hub.url}/agui/default", "turns": ["hi", "fill it", "paint it"]}
        report = await run_node("copilotkit.mjs", scenario, folder=COPILOTKIT)
        assert report["problems"] == []
        assert texts(report) == ["Hello", "Filled.", "It is red now."]
        results = [message["content"] for message in report["messages"] if message["role"] == "tool"]
        assert results == ["filled", "painted"]
        assert (report["painted"], report["state"]) == (["red"], {"cards": 2, "of": 2})
        stored = await hub.messages("t")
        assert [message["role"] for message in stored] == ["user", "assistant"] * 3
        [painted] = [part for part in stored[5]["parts"] if part["type"] == "tool-paint"]
        assert (painted["state"], painted["output"]) == ("output-available", "painted")
        assert len(await hub.runs("t")) == 3 + 1  # the answer goes on after the front end's tool
