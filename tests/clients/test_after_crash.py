"""A page of the AI SDK's client whose hub is killed in the middle of an answer, and started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.clients import hub as hubs
from tests.clients.behaviours import calculate
from tests.clients.driver import Driver, shape_of, text_of
from tests.clients.hub import Hub
from tests.clients.scenarios import assert_kept, send
from tests.clients.upstream import Upstream

MARKS = Path(__file__).parents[1] / "faults" / "marks.py"
HALF = {"text": "three"}
KILL = {"do": "request", "method": "POST", "path": "/api/operations/marks.die/call", "wait": False}


def start(folder: Path, upstream: Upstream) -> Hub:
    up = {"type": "openai", "base_url": upstream.url, "api_key_env": "UP_KEY"}
    config: dict[str, Any] = {"providers": {"up": up}, "model": "up/any-model", "operations": [str(MARKS)]}
    return hubs.start(folder, config, keyless=True)


@pytest.mark.promise("runs-go-on-after-a-crash")
def test_a_page_whose_hub_was_killed_gets_one_whole_answer_after_the_restart(
    tmp_path: Path, upstream: Upstream, sdk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
    gate = f"after the kill {sdk}"
    half: list[dict[str, Any]] = [
        {"text": ["one ", "two ", "three "]},
        {"gate": gate},
        {"text": ["four ", "five"]},
    ]
    mark = upstream.teach([{"calls": [calculate("6*7")]}], half)
    killed = start(tmp_path, upstream)
    try:
        report = Driver(sdk, killed).play(
            send(mark, wait=False),
            {**KILL, "body": {"word": "killed"}, "after": HALF},
            {"do": "wait", "for": {"status": "error"}},
            auto="tools",
        )
        assert killed.process.wait(60) == -9
    finally:
        killed.stop()
    assert text_of(report.answer).startswith("one two three")
    upstream.open(gate)
    hub = start(tmp_path, upstream)
    try:
        whole = Driver(sdk, hub)({"do": "reload"}, id=report.session)
    finally:
        hub.stop()
    assert shape_of(whole.answer) == ["step-start", "tool-hub_call", "step-start", "text"]
    assert text_of(whole.answer) == "one two three four five"
    for field in ("toolCallId", "state", "input", "output"):
        assert whole.answer["parts"][1][field] == report.answer["parts"][1][field]
    assert len(upstream.requests(mark)) == 3
    assert_kept(whole)
