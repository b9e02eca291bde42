"""Runs the programs of tests/mcp/clients: the TypeScript clients, the Inspector and the conformance suite."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

CLIENTS = Path(__file__).parents[1] / "clients"
MODULES = CLIENTS / "node_modules" / "@modelcontextprotocol"
LIMIT = 120.0


class Missing(Exception):
    """A program or package that these tests need is not installed."""


async def node(*arguments: str, data: Path) -> tuple[int, str]:
    """The exit code and what it printed. `data` is where it may keep files of its own."""
    program = shutil.which("node")
    if program is None or not MODULES.exists():
        raise Missing(f"these tests need node, and its packages: npm ci in {CLIENTS}")
    environment = {
        **os.environ,
        "NO_PROXY": "*",
        "HOME": str(data),
        "MCP_CATALOG_PATH": str(data / "mcp.json"),
    }
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        cwd=CLIENTS,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        raw, complaints = await asyncio.wait_for(process.communicate(), LIMIT)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, raw.decode() or complaints.decode()
