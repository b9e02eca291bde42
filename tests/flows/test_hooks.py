"""Hooks and shortened conversations in a served hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.serving import serving

HERE = Path(__file__).parent
BENCH, CHECKS = str(HERE / "slow_operations.py"), HERE / "configured_hooks.py"
FAIL = {"calls": [{"tool": "lab.fail", "input": {"name": "luck"}}]}


async def test_a_hook_of_the_configuration_stops_a_call_of_a_chat_and_of_a_program(tmp_path: Path) -> None:
    hooks = [{"event": "pre_tool_use", "use": f"{CHECKS}:no_luck", "match": "lab.*"}]
    steps: list[dict[str, Any]] = [{"tools": [{"name": "hub_call", "input": FAIL}]}, {"text": "No luck."}]
    async with serving(tmp_path, steps, operations=[BENCH], hooks=hooks) as hub:
        [output] = [f["output"] for f in await hub.chat() if f["type"] == "tool-output-available"]
        assert "luck is not to be had" in output[0]["error"]["message"]
        answer = (await hub.http.post("/api/operations/hub.call/call", json=FAIL)).json()
        assert "luck is not to be had" in answer["result"][0]["error"]["message"]


async def test_a_ready_made_hook_of_the_configuration_guards_the_paths(tmp_path: Path) -> None:
    hooks = [{"event": "pre_tool_use", "use": "path_guard", "options": {"roots": [str(tmp_path)]}}]
    call = {"calls": [{"tool": "lab.fail", "input": {"name": "/etc/passwd"}}]}
    steps: list[dict[str, Any]] = [{"tools": [{"name": "hub_call", "input": call}]}, {"text": "No."}]
    async with serving(tmp_path, steps, operations=[BENCH], hooks=hooks) as hub:
        [output] = [f["output"] for f in await hub.chat() if f["type"] == "tool-output-available"]
        assert output[0]["error"]["code"] == "call_denied"


async def test_a_conversation_that_grows_too_long_is_cut_and_says_so(tmp_path: Path) -> None:
    agents = {"default": {"context": {"policy": "truncate", "limit": 3000}}}
    async with serving(tmp_path, [{"text": "word " * 400}], play="turns", agents=agents) as hub:
        frames = [frame for number in range(8) for frame in await hub.chat(f"tell me {number}")]
        cut = [frame["data"] for frame in frames if frame["type"] == "data-context"]
        assert cut
        assert cut[0]["kind"] == "truncate"
        assert len(await hub.messages()) == 16
