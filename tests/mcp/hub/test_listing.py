"""Lists and searches of operations are the same through chat, MCP and the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcp.client import Client

from tests.mcp.hub.hub_process import raw, sdk
from tests.serving import Served, serving

ASKED: dict[str, dict[str, Any]] = {
    "hub_search": {"q": "add two numbers"},
    "hub_schema": {"tool": "sdk.add"},
    "hub_list": {"namespace": "sdk"},
}
HIDDEN: dict[str, dict[str, Any]] = {
    "hub_search": {"q": "raw fail"},
    "hub_schema": {"tool": "raw.fail"},
    "hub_list": {"namespace": "raw"},
}
STEPS: list[dict[str, Any]] = [
    {"tools": [{"name": name, "input": input, "id": f"c{at}{name}"} for name, input in query.items()]}
    for at, query in enumerate((ASKED, HIDDEN))
]


async def test_what_is_found_is_the_same_every_way(tmp_path: Path) -> None:
    servers = {"raw": raw(tmp_path / "raw.txt"), "sdk": sdk()}
    rules = [{"deny": "raw.fail"}, {"allow": "*"}]
    steps = [*STEPS, {"text": "Done."}]
    async with serving(tmp_path, steps, mcp_servers=servers, policy=rules) as served:
        for id in ("sdk.add", "raw.echo"):
            assert (await served.http.get(f"/api/operations/{id}")).status_code == 200
        by_chat = await chat(served)
        for request in (ASKED, HIDDEN):
            for name, input in request.items():
                by_api = await api(served, name, input)
                assert by_api == await mcp(served, name, input), name
                assert by_api == by_chat.pop(0), name
    assert by_chat == []


async def chat(served: Served) -> list[Any]:
    """What the model was told, in the order in which it asked."""
    frames = await served.chat("go")
    requests = [each["toolCallId"] for each in frames if each["type"] == "tool-input-available"]
    report = {
        each["toolCallId"]: each.get("output") for each in frames if each["type"].startswith("tool-output")
    }
    return [report[id] for id in requests]


async def api(served: Served, name: str, input: dict[str, Any]) -> Any:
    reply = (await served.http.post(f"/api/operations/{name}/call", json=input)).json()
    assert "raw.fail" not in str(reply.get("result"))
    return reply.get("result")


async def mcp(served: Served, name: str, input: dict[str, Any]) -> Any:
    async with Client(f"{served.url}/mcp") as client:
        return (await client.call_tool(name, input)).structured_content
