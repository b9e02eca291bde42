"""The wiring of a hub: what is created once and not for each run."""

from __future__ import annotations

from pathlib import Path

from tests.serving import serving


async def test_runs_share_one_search_over_the_operations(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Good day."}], play="turns") as served:
        ground = served.hub._services
        await served.chat("one", session="a")
        watching = len(ground.registry._listeners)
        for number in range(3):
            await served.chat(f"again {number}", session=f"s{number}")
        assert len(ground.registry._listeners) == watching
