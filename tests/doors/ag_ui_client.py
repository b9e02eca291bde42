"""Plays conversations with the stock AG-UI clients (clients/ag_ui.mjs)."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

from tests.clients.driver import player

CLIENTS = Path(__file__).with_name("clients")
VERSIONS = ("1", "0")  # @ag-ui/client 1.0.0, and 0.0.59, which CopilotKit uses
LIMIT = 120.0
Report = dict[str, Any]


async def play(version: str, url: str, *turns: dict[str, Any], thread: str = "t", **scenario: Any) -> Report:
    """Play turns; return what the client has: its runs, messages and state."""
    conversation = {"version": version, "url": url, "threadId": thread, "turns": turns, **scenario}
    return await asyncio.to_thread(player("ag_ui.mjs", folder=CLIENTS).play, conversation)


async def run_node(script: str, argument: dict[str, Any], *, folder: Path = CLIENTS) -> Report:
    """Run a script of a folder of clients; return the JSON that it prints."""
    node = shutil.which("node")
    assert node, "these tests need node"
    assert (folder / "node_modules").is_dir(), f"`npm ci --prefix {folder}` installs the clients"
    process = await asyncio.create_subprocess_exec(
        node,
        script,
        cwd=folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT):
            out, err = await process.communicate(json.dumps(argument).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    report: Report = json.loads(out)
    return report


def texts(report: Report) -> list[str]:
    """What the assistant said, by message."""
    return [
        each["content"] for each in report["messages"] if each["role"] == "assistant" and "content" in each
    ]


def errors(report: Report) -> list[Any]:
    """Whatever went wrong in any run."""
    return [each for run in report["runs"] for each in (run["failed"], run["error"]) if each is not None]
