"""The shortest runner of the documentation, as a program."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.runners.wire_runner import new_session
from tests.serving import ask, frames_in, serving, text_of
from tests.waiting import until

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).parents[2] / "docs" / "runners.md"


async def test_the_shortest_runner_of_the_page_answers(tmp_path: Path) -> None:
    program = re.findall(r"```python runner\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    async with serving(tmp_path) as hub:
        await new_session(hub, "s1")
        place = {"HUB": hub.url.replace("http:", "ws:"), "DRAGOMAN_KEY": "none"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program[0], env={**os.environ, **place}
        )
        try:
            await until(lambda: bool(hub.hub.runners.status()))
            response = await hub.http.post("/api/sessions/s1/chat", json=ask("hello", session="s1"))
            assert text_of(frames_in(response.text)) == "HELLO"
        finally:
            process.kill()
            await process.wait()
