"""The real Codex CLI against the hub: turns, tools, resumed threads, and how often a provider is asked."""

from __future__ import annotations

import asyncio
import base64
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.effort import rows
from tests.gateway.upstream import Answer, Stage, document
from tests.responses.answers import FAMILIES, call, say, sent
from tests.responses.codex_cli import Codex
from tests.serving import serving
from tests.wire.responses_streams import STREAMS, ending, message, opening, sse, text_events

pytestmark = pytest.mark.timeout(300)
# Of which every other one has each family, and both transports.
TURNS = [
    (family, "websocket" if (number + other) % 2 else "http")
    for number, family in enumerate(FAMILIES)
    for other in (0, 1)
]
SHELL = '{"cmd":"echo hub-$((40+2))"}'


@pytest.mark.parametrize(("family", "transport"), rows(TURNS, quick=2))
def test_a_turn_runs_a_command_and_a_resumed_thread_has_what_was_before(
    stage: Stage, tmp_path: Path, family: str, transport: str
) -> None:
    settings = {"provider": f"supports_websockets = {str(transport == 'websocket').lower()}"}
    codex = Codex(
        tmp_path / "codex", url=stage.url, key=stage.key, model=f"{family}/house", settings=settings
    )
    stage.upstream.play(call(family, "exec_command", SHELL), say(family, "It says hub-42."))
    first = codex.run("What does it say?")
    assert (first.code, first.text) == (0, "It says hub-42."), first.errors
    (command,) = first.items("command_execution")
    assert (command["aggregated_output"], command["exit_code"]) == ("hub-42\n", 0)
    assert first.usage["input_tokens"] > 0
    if family == "res":  # over a socket Codex sends only what is new, and the hub puts the rest before it
        continues = '"previous_response_id":null' in sent(stage.upstream)
        assert continues is (transport == "websocket")
    assert len(stage.upstream.requests) == 2
    assert "hub-42\\\\n" in sent(stage.upstream) or "hub-42\\n" in sent(stage.upstream)
    stage.upstream.play(say(family, "Again hub-42."))
    second = codex.run("resume", first.thread_id, "And again?")
    assert (second.code, second.text) == (0, "Again hub-42."), second.errors
    assert len(stage.upstream.requests) == 1
    assert "previous_response_id" not in sent(stage.upstream).replace('"previous_response_id":null', "")
    for words in ("What does it say?", "It says hub-42.", "And again?", "echo hub-"):
        assert words in sent(stage.upstream)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turn_calls_a_tool_of_an_mcp_server(stage: Stage, tmp_path: Path, family: str) -> None:
    server = (
        f'[mcp_servers.hub]\nurl = "{stage.url}/mcp"\nbearer_token_env_var = "HUB_KEY"\nrequired = true\n'
    )
    codex = Codex(
        tmp_path / "codex",
        url=stage.url,
        key=stage.key,
        model=f"{family}/house",
        settings={"sections": server},
    )
    arguments = '{"q":"what time is it"}'
    stage.upstream.play(
        call(family, "hub_search", arguments, namespace="mcp__hub"), say(family, "There is time.now.")
    )
    run = codex.run("Which operation tells the time?")
    assert (run.code, run.text) == (0, "There is time.now."), run.errors
    (tool,) = run.items("mcp_tool_call")
    assert (tool["server"], tool["tool"], tool["status"]) == ("hub", "hub_search", "completed")
    assert "time.now" in sent(stage.upstream)
    assert len(stage.upstream.requests) == 2


def test_tools_that_codex_leaves_out_until_they_are_searched_are_found_and_called(
    stage: Stage, tmp_path: Path
) -> None:
    """With a model that it knows, Codex offers `tool_search` in place of the tools of MCP servers."""
    server = (
        f'[mcp_servers.hub]\nurl = "{stage.url}/mcp"\nbearer_token_env_var = "HUB_KEY"\nrequired = true\n'
    )
    codex = Codex(
        tmp_path / "codex", url=stage.url, key=stage.key, model="gpt-5.5", settings={"sections": server}
    )
    patch = "*** Begin Patch\n*** Add File: now.txt\n+time.now\n*** End Patch\n"
    stage.upstream.play(
        call("oai", "tool_search", '{"query":"hub search"}', id="call_1"),
        call("oai", "hub_search", '{"q":"what time is it"}', id="call_2", namespace="mcp__hub"),
        call("oai", "apply_patch", msgspec.json.encode({"input": patch}).decode(), id="call_3"),
        say("oai", "There is time.now."),
    )
    run = codex.run("Write down which operation tells the time.")
    assert (run.code, run.text) == (0, "There is time.now."), run.errors
    assert "mcp__hub__hub_search" in sent(stage.upstream, 1)
    [tool] = run.items("mcp_tool_call")
    assert (tool["server"], tool["tool"], tool["status"]) == ("hub", "hub_search", "completed")
    assert (codex.work / "now.txt").read_text() == "time.now\n"
    assert len(stage.upstream.requests) == 4


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
REVIEW = {
    "findings": [],
    "overall_correctness": "patch is correct",
    "overall_explanation": "Fine.",
    "overall_confidence_score": 0.9,
}


@pytest.mark.thorough  # twelve runs of Codex
@pytest.mark.parametrize("transport", ["http", "websocket"])
@pytest.mark.parametrize("family", FAMILIES)
def test_images_forks_reviews_and_schemas(stage: Stage, tmp_path: Path, family: str, transport: str) -> None:
    settings = {"provider": f"supports_websockets = {str(transport == 'websocket').lower()}"}
    codex = Codex(
        tmp_path / "codex", url=stage.url, key=stage.key, model=f"{family}/house", settings=settings
    )
    image = tmp_path / "a.png"
    image.write_bytes(base64.b64decode(PIXEL))
    stage.upstream.play(call(family, "view_image", f'{{"path":"{image}"}}'), say(family, "A pixel."))
    first = codex.run("What is it?", options=("-i", str(image), "--"))
    assert (first.code, first.text) == (0, "A pixel."), first.errors
    assert sent(stage.upstream).count(PIXEL[:40]) == 2  # the message's, and the tool's
    stage.upstream.play(say(family, "Forked."))
    fork = codex.run("fork", first.thread_id, "And?")
    assert (fork.text, "A pixel." in sent(stage.upstream)) == ("Forked.", True)
    schema = tmp_path / "schema.json"
    schema.write_text('{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}')
    stage.upstream.play(say(family, '{"a":"x"}'))
    shaped = codex.run("Give.", options=("--output-schema", str(schema)))
    assert (shaped.text, '"a":{"type":"string"}' in sent(stage.upstream)) == ('{"a":"x"}', True)
    stage.upstream.play(say(family, msgspec.json.encode(REVIEW).decode()))
    subprocess.run(["git", "init", "-q", str(codex.work)], check=True)
    (codex.work / "f").write_text("new")
    review = codex.run("review", "--uncommitted")
    assert (review.code, review.text) == (0, "Fine."), review.errors


@pytest.mark.parametrize(
    ("name", "transport"), [("hub", "http"), ("OpenAI", "http"), ("OpenAI", "websocket")]
)
def test_a_long_thread_is_compacted_and_goes_on(
    stage: Stage, tmp_path: Path, name: str, transport: str
) -> None:
    """As a provider of the name OpenAI, Codex asks for a compaction; of any other it writes the prompt."""
    codex = Codex(
        tmp_path / "codex",
        url=stage.url,
        key=stage.key,
        model="ant/house",
        settings={
            "name": name,
            "top": "model_auto_compact_token_limit = 30\n",
            "provider": f"supports_websockets = {str(transport == 'websocket').lower()}",
        },
    )
    stage.upstream.play(
        call("ant", "exec_command", SHELL), say("ant", "It was hub-42."), say("ant", "It says hub-42.")
    )
    run = codex.run("What does it say?")
    assert (run.code, run.text) == (0, "It says hub-42."), (run.errors, run.events)
    assert len(stage.upstream.requests) == 3
    prompt = sent(stage.upstream, 1)
    assert ("Write a summary of the conversation" in prompt) is (name == "OpenAI")
    prompt = sent(stage.upstream)
    assert all(words in prompt for words in ("What does it say?", "It was hub-42."))
    assert "echo hub-" not in prompt


BROKEN: dict[str, tuple[Answer, int]] = {
    "400": (document({"error": {"message": "No."}}, 400), 1),
    "401": (document({"error": {"message": "No."}}, 401), 1),
    "429": (document({"error": {"message": "Slow."}}, 429), 3),
    "500": (document({"error": {"message": "Oh."}}, 500), 3),
    "failed": (
        Answer(
            body=sse(*opening(), ending(status="failed", error={"code": "server_error", "message": "Oh."}))
        ),
        1,
    ),
    "cut": (Answer(body=sse(*opening(), *text_events(0, message("On"), "On")[:-1])), 1),
    "error": (
        Answer(
            body=sse(*opening(), {"type": "error", "code": "server_error", "message": "Oh.", "param": None})
        ),
        1,
    ),
}


@pytest.mark.parametrize("name", rows(sorted(BROKEN), quick=3))
def test_its_retries_do_not_multiply_those_of_the_hub(stage: Stage, tmp_path: Path, name: str) -> None:
    answer, requests = BROKEN[name]
    codex = Codex(tmp_path / "codex", url=stage.url, key=stage.key, model="res-again/house")
    stage.upstream.play(answer)
    run = codex.run("Hi")
    assert run.code != 0
    assert len(stage.upstream.requests) == requests


@pytest.mark.parametrize("name", rows(sorted(STREAMS), quick=5))
def test_every_kind_of_answer_ends_its_turn(stage: Stage, tmp_path: Path, name: str) -> None:
    codex = Codex(tmp_path / "codex", url=stage.url, key=stage.key, model="res/house")
    stage.upstream.play(Answer(body=STREAMS[name]), say("res", "Done."))
    run = codex.run("Hi")
    ends: list[Any] = [event for event in run.events if event["type"] in ("turn.completed", "turn.failed")]
    assert len(ends) == 1
    assert len(stage.upstream.requests) <= 2


async def test_an_agent_of_the_hub_uses_its_shell(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"tools": [{"name": "exec_command", "input": {"cmd": "echo hub-42"}}]},
        {"text": "It says hub-42."},
    ]
    async with serving(tmp_path / "hub", steps) as hub:
        codex = Codex(tmp_path / "codex", url=hub.url, key="none", model="agent/default")
        run = await asyncio.to_thread(codex.run, "What does it say?")
        assert (run.code, run.text) == (0, "It says hub-42."), run.errors
        (command,) = run.items("command_execution")
        assert command["aggregated_output"] == "hub-42\n"
        assert len((await hub.http.get("/api/sessions")).json()["sessions"]) == 1
