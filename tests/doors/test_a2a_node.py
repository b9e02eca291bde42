"""A2A with the stock JavaScript client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doors.ag_ui_client import run_node
from tests.serving import serving

DANGER = str(Path(__file__).parents[1] / "flows" / "approval_operation.py")


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_the_javascript_client_follows_a_task_that_waits_for_an_approval(
    tmp_path: Path, binding: str
) -> None:
    steps: list[dict[str, Any]] = [
        {"text": "I will. ", "tools": [{"name": "danger_wipe", "input": {"disk": "a"}}]},
        {"text": "It is wiped."},
    ]
    config: dict[str, Any] = {"operations": [DANGER], "pinned": ["danger.wipe"], "keep_alive": 0.05}
    async with serving(tmp_path, steps, keys=True, **config) as hub:
        _, key = await hub.hub.store.keys.create("ann")
        report = await run_node(
            "a2a.mjs",
            {
                "url": f"{hub.url}/a2a/default/",
                "binding": binding,
                "headers": {"authorization": f"Bearer {key}"},
                "turns": [{"text": "wipe it"}, {"data": {"approved": True}, "sameTask": True}],
            },
        )
        first, second = report["items"]
        assert first[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert second[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        artifacts = [item["artifactUpdate"]["artifact"] for item in second if "artifactUpdate" in item]
        assert [part["text"] for each in artifacts for part in each["parts"]] == ["I will. ", "It is wiped."]
        assert len(report["task"]["artifacts"]) == 2
