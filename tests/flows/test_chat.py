"""A chat turn through HTTP, runs, loop, provider and store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.databases import BACKENDS
from tests.serving import ask, serving, text_of, types, usage

DANGER = Path(__file__).with_name("approval_operation.py")

TOOL: dict[str, Any] = {"tools": [{"name": "hub_list", "input": {}}], "text": "Let me look."}


async def test_a_text_turn_is_streamed_and_kept(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [{"text": "Good day.", "reasoning": "greet", "usage": usage(5, 3)}]
    async with serving(tmp_path, steps) as hub:
        frames = await hub.chat("hello")
        assert types(frames) == [
            "start",
            "start-step",
            "reasoning-start",
            "reasoning-delta",
            "reasoning-end",
            "text-start",
            "text-delta",
            "text-end",
            "finish-step",
            "finish",
        ]
        assert text_of(frames) == "Good day."
        question, answered = await hub.messages()
        assert question["parts"] == [{"type": "text", "text": "hello"}]
        assert answered["id"] == frames[0]["messageId"]
        assert answered["parts"] == [
            {"type": "step-start"},
            {"type": "reasoning", "text": "greet", "state": "done"},
            {"type": "text", "text": "Good day.", "state": "done"},
        ]
        assert answered["metadata"]["usage"] == {"inputTokens": 5, "outputTokens": 3, "totalTokens": 8}
        assert answered["metadata"]["finishReason"] == "stop"


@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_a_tool_turn_runs_the_call_and_asks_again(tmp_path: Path) -> None:
    async with serving(tmp_path, [TOOL, {"text": "There."}]) as hub:
        frames = await hub.chat("look")
        words = types(frames)
        assert words.index("tool-output-available") < words.index("finish-step")
        assert words.count("start-step") == 2
        (_, answered) = await hub.messages()
        assert [part["type"] for part in answered["parts"]] == [
            "step-start",
            "text",
            "tool-hub_list",
            "step-start",
            "text",
        ]
        assert answered["parts"][2]["state"] == "output-available"


async def test_an_unknown_tool_is_told_to_the_model_and_the_loop_goes_on(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"tools": [{"name": "get_weather", "input": {}}, {"name": "hub_list", "input": "{no"}]},
        {"text": "Oh."},
    ]
    async with serving(tmp_path, steps) as hub:
        frames = await hub.chat("look")
        errors = [frame for frame in frames if frame["type"] == "tool-input-error"]
        assert "no tool 'get_weather'" in errors[0]["errorText"]
        assert "not valid JSON" in errors[1]["errorText"]
        assert text_of(frames) == "Oh."


async def test_at_the_step_limit_a_closing_step_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path, [TOOL] * 3, max_steps=3) as hub:
        frames = await hub.chat("look")
        assert types(frames).count("start-step") == 4
        assert frames[-1]["finishReason"] == "other"
        assert frames[-1]["messageMetadata"]["finishReason"] == "max-steps"
        assert text_of(frames).endswith(
            "Stopped after 3 steps, the most that this agent may take in one answer."
        )


async def test_a_models_error_ends_in_an_error_and_a_valid_message(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"text": "Well", "error": {"message": "the provider is on fire"}},
        {"text": "Again."},
    ]
    async with serving(tmp_path, steps) as hub:
        frames = await hub.chat("one")
        assert types(frames)[-5:] == ["text-delta", "text-end", "finish-step", "error", "finish"]
        assert frames[-2]["errorText"] == "the provider is on fire"
        assert text_of(await hub.chat("two")) == "Again."
        assert [message["role"] for message in await hub.messages()] == ["user", "assistant"] * 2


async def test_regenerate_and_edit_replace_what_came_after(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": text} for text in ("one", "two", "three")]) as hub:
        await hub.chat("ask", id="u1")
        await hub.post({**ask("ask", id="u1"), "trigger": "regenerate-message"})
        assert [m["parts"][-1]["text"] for m in await hub.messages()] == ["ask", "two"]
        await hub.post({**ask("asked better", id="u1"), "messageId": "u1"})
        assert [m["parts"][-1]["text"] for m in await hub.messages()] == ["asked better", "three"]


async def test_a_client_side_tool_ends_the_run_and_its_output_goes_on_with_the_same_message(
    tmp_path: Path,
) -> None:
    tools = [{"name": "ask_user", "description": "Ask", "inputSchema": {"type": "object"}}]
    steps: list[dict[str, Any]] = [
        {"tools": [{"name": "ask_user", "input": {"q": "?"}, "id": "c1"}]},
        {"text": "Thanks."},
    ]
    async with serving(tmp_path, steps) as hub:
        frames = await hub.chat("go", tools=tools)
        assert frames[-1]["finishReason"] == "tool-calls"
        question, waiting = await hub.messages()
        waiting["parts"][-1] |= {"state": "output-available", "output": "yes"}
        again = await hub.post(
            {"id": "s", "messages": [question, waiting], "messageId": waiting["id"], "tools": tools}
        )
        assert types(again)[:3] == ["start", "tool-output-available", "start-step"]
        assert again[0]["messageId"] == waiting["id"]
        assert [part["type"] for part in (await hub.messages())[1]["parts"]] == [
            "step-start",
            "tool-ask_user",
            "step-start",
            "text",
        ]


@pytest.mark.parametrize("tool", ["danger_wipe", "hub_call"])
async def test_a_call_that_wants_approval_waits_for_it_and_runs_once(tmp_path: Path, tool: str) -> None:
    call = (
        {"calls": [{"tool": "danger.wipe", "input": {"disk": "a"}}]} if tool == "hub_call" else {"disk": "a"}
    )
    steps: list[dict[str, Any]] = [{"tools": [{"name": tool, "input": call, "id": "c1"}]}, {"text": "Wiped."}]
    async with serving(tmp_path, steps, operations=[str(DANGER)], pinned=["danger.wipe"]) as hub:
        frames = await hub.chat("wipe")
        assert types(frames)[-3:] == ["tool-approval-request", "finish-step", "finish"]
        question, waiting = await hub.messages()
        part = waiting["parts"][-1]
        assert part["state"] == "approval-requested"
        answered = {**part, "state": "approval-responded", "approval": {**part["approval"], "approved": True}}
        body = {
            "id": "s",
            "messages": [question, {**waiting, "parts": [answered]}],
            "messageId": waiting["id"],
        }
        frames = await hub.post(body)
        assert types(frames)[:3] == ["start", "tool-output-available", "start-step"]
        assert "wiped a" in str(frames[1]["output"])
        assert text_of(await hub.post(body)) == "Wiped.", "sent again: no request, and no call"


async def test_a_denied_call_does_not_run_and_the_model_is_told(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"tools": [{"name": "danger_wipe", "input": {"disk": "a"}}]},
        {"text": "Fine."},
    ]
    async with serving(tmp_path, steps, operations=[str(DANGER)], pinned=["danger.wipe"]) as hub:
        await hub.chat("wipe")
        question, waiting = await hub.messages()
        part = waiting["parts"][-1]
        denied = {**part["approval"], "approved": False, "reason": "no way"}
        answered = {**part, "state": "approval-responded", "approval": denied}
        body = {
            "id": "s",
            "messages": [question, {**waiting, "parts": [answered]}],
            "messageId": waiting["id"],
        }
        assert types(await hub.post(body))[:3] == ["start", "tool-output-denied", "start-step"]
        part = (await hub.messages())[1]["parts"][1]
        assert (part["state"], part["approval"]) == ("output-denied", denied)


async def test_a_forged_approval_is_refused(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [{"tools": [{"name": "danger_wipe", "input": {"disk": "a"}}]}]
    async with serving(tmp_path, steps, operations=[str(DANGER)], pinned=["danger.wipe"]) as hub:
        await hub.chat("wipe")
        question, waiting = await hub.messages()
        part = {
            **waiting["parts"][-1],
            "state": "approval-responded",
            "approval": {"id": "x", "approved": True},
        }
        body = {"id": "s", "messages": [question, {**waiting, "parts": [part]}], "messageId": waiting["id"]}
        assert (await hub.http.post("/api/chat", json=body)).status_code == 409
