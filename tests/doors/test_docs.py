"""The shortest clients in the docs of AG-UI and A2A work as they are printed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path

from tests.doors.ag_ui_client import CLIENTS
from tests.serving import serving

DOCS = Path(__file__).parents[2] / "docs"


def first_block(page: str, language: str) -> str:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    found = re.search(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
    assert found is not None
    return found.group(1)


async def output_of(*command: str, hub: str, key: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=CLIENTS,
        env={**os.environ, "HUB": hub, "KEY": key},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_the_shortest_ag_ui_client(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "It is 42."}], keys=True) as hub:
        _, key = await hub.hub.store.keys.create("ada")
        program = first_block("ag-ui", "js")
        node = shutil.which("node") or "node"
        printed = await output_of(node, "--input-type=module", "-e", program, hub=hub.url, key=key)
        assert printed == "It is 42.\n"


async def test_the_shortest_a2a_client(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "It is 42."}], keys=True) as hub:
        _, key = await hub.hub.store.keys.create("ada")
        program = first_block("a2a", "python")
        printed = await output_of(sys.executable, "-c", program, hub=hub.url, key=key)
        assert printed.strip() == "It is 42."
