"""Claude Code as a provider of a served hub: its answer and its cost."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.serving import serving, text_of, types

STAND_IN = Path(__file__).parents[1] / "providers" / "stand_in_claude.py"
COST = 0.0123


def claude(folder: Path, play: str = "plain", **more: Any) -> dict[str, Any]:
    """A hub whose model is a stand-in for the CLI."""
    folder.mkdir(exist_ok=True)
    cli = folder / "claude"
    part = f"CLAUDE_PLAY={play} CLAUDE_SEEN={folder / 'seen'}"
    cli.write_text(f'#!/bin/sh\n{part} exec "{sys.executable}" -S -E "{STAND_IN}" "$@"\n')
    cli.chmod(0o755)
    providers = {"claude": {"type": "claude-code", "executable": str(cli)}}
    return {"providers": providers, "model": "claude/sonnet", **more}


async def test_its_own_word_is_the_cost_of_a_chat_and_of_a_request(tmp_path: Path) -> None:
    async with serving(tmp_path, **claude(tmp_path)) as hub:
        frames = await hub.chat("hello")
        assert types(frames)[-1] == "finish"
        assert "text-delta" in types(frames)
        assert frames[-1]["messageMetadata"]["cost"] == COST
        body = {"model": "claude/sonnet", "messages": [{"role": "user", "content": "hi"}]}
        response = await hub.http.post("/v1/chat/completions", json=body)
        assert response.headers["x-dragoman-cost"] == str(COST)
        found = (await hub.http.get("/api/usage")).json()
        assert [(row["cost"], row["priceModel"]) for row in found["rows"]] == [(COST, "provider")] * 2
        assert found["total"]["cost"] == pytest.approx(2 * COST)


async def test_a_price_of_the_configuration_goes_before_its_word(tmp_path: Path) -> None:
    async with serving(tmp_path, **claude(tmp_path, prices={"claude/*": {"input": 0, "output": 0}})) as hub:
        assert (await hub.chat("hello"))[-1]["messageMetadata"]["cost"] == 0
        [row] = (await hub.http.get("/api/usage")).json()["rows"]
        assert (row["cost"], row["priceModel"]) == (0, "claude/*")


async def test_what_failed_costs_what_it_says_too(tmp_path: Path) -> None:
    async with serving(tmp_path, **claude(tmp_path, "spent")) as hub:
        frames = await hub.chat("hello")
        assert frames[-1]["messageMetadata"]["cost"] == COST
        [row] = (await hub.http.get("/api/usage")).json()["rows"]
        assert (row["status"], row["cost"], row["priceModel"]) == ("failed", COST, "provider")
        assert frames[-1]["finishReason"] == "other"
        assert "Claude Code stopped at its own budget" in text_of(frames)


async def test_the_budgets_of_owner_and_answer_are_reported(tmp_path: Path) -> None:
    limits = {"owner": {"usd_total": 1}, "unpriced": "allow"}
    agents = {"default": {"max_usd": 0.01, "output": {"type": "object", "required": ["city"]}}}
    async with serving(tmp_path, **claude(tmp_path, limits=limits, agents=agents)) as hub:
        frames = await hub.chat("hello")  # its answer is not JSON, and there is no money to ask again
        assert text_of(frames).endswith("Stopped: the budget of this run is spent.")
        await hub.hub.meter.ledger.flush()
        assert await hub.hub.store.budgets.get_balance("owner:local", "total") == (12_300_000, 0)
