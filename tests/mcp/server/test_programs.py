"""The official TypeScript clients, the Inspector and the conformance suite."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.operations.meta_tools import META_TOOLS
from tests.effort import rows
from tests.mcp.server import fixtures
from tests.mcp.server.hub import batch, served
from tests.mcp.server.programs import CLIENTS, MODULES, node

pytestmark = pytest.mark.anyio
INSPECTOR = str(MODULES / "inspector/clients/launcher/build/index.js")
SUITE = ("--import", "./newer.mjs", str(MODULES / "conformance/dist/index.js"), "server")
REVISIONS = ["2025-11-25", "2026-07-28"]
NAMES = [tool.name for tool in META_TOOLS]


@pytest.mark.parametrize("version", ["v1", "v2", "v2-modern"])
async def test_the_typescript_client_sees_what_the_hub_can_do(version: str, tmp_path: Path) -> None:
    async with served() as hub:
        code, text = await node("drive.mjs", version, hub.url, data=tmp_path)
        assert code == 0, text
        assert hub.wiped == [{"path": "/"}]
        await asyncio.wait_for(hub.stopped.wait(), 60)  # the client does not wait for it
    seen: dict[str, Any] = json.loads(text)
    assert seen["tools"] == NAMES
    assert "disk, math, time" in seen["instructions"]
    assert seen["added"] == {"result": [{"success": True, "result": 3}]}
    assert (seen["wrong"]["isError"], "inputSchema" in seen["wrong"]["text"]) == (True, True)
    assert seen["counted"] == {"result": [{"success": True, "result": "counted"}]}
    assert {"one", "two"}.intersection(seen["progress"])
    assert seen["wiped"] == {"result": [{"success": True, "result": "wiped"}]}
    assert (len(seen["asked"]), seen["stopped"]) == (1, "stopped")


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_inspector_lists_and_calls_the_tools_and_finds_no_fault_with_them(
    era: str, tmp_path: Path
) -> None:
    common = ("--protocol-era", era, "--format", "json", "-q")
    call = ("--method", "tools/call", "--tool-name", "hub_call", "--tool-args-json")
    async with served() as hub:
        target = (INSPECTOR, "--cli", hub.url, *common)
        listed, tools = await node(*target, "--strict", "--method", "tools/list", data=tmp_path)
        arguments = json.dumps(batch("math.add", a=1, b=2))
        called, result = await node(*target, *call, arguments, data=tmp_path)
    assert (listed, called) == (0, 0), tools + result
    assert all(name in tools for name in NAMES)
    assert '"result": 3' in result or '"result":3' in result


# In `make test` the newest revision with everything, and the one before it with the bare hub.
@pytest.mark.promise("mcp-conformance")
@pytest.mark.parametrize("revision", rows(REVISIONS[::-1], quick=2))
async def test_the_http_stack_passes_the_conformance_suite(revision: str, tmp_path: Path) -> None:
    async with served(build=fixtures.build) as hub:
        code, text = await node(
            *SUITE, "--url", hub.url, "--requirements", revision, "-o", str(tmp_path), data=tmp_path
        )
    assert code == 0, text[-4_000:]


@pytest.mark.parametrize("revision", rows(REVISIONS, quick=2))
async def test_the_bare_hub_fails_only_what_is_not_for_it(revision: str, tmp_path: Path) -> None:
    expected = str(CLIENTS / f"expected-{revision}.yml")
    run = ("--requirements", revision, "--expected-failures", expected, "-o", str(tmp_path))
    async with served() as hub:
        code, text = await node(*SUITE, "--url", hub.url, *run, data=tmp_path)
    assert code == 0, text[-4_000:]
