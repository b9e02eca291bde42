"""MCP servers that misbehave, through the whole hub: each fault stays with its call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.hub.hub_process import World, is_alive, pids, raw, until, world


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("hub")
    servers = {
        "raw": raw(folder / "raw.txt"),
        "hasty": raw(folder / "hasty.txt", timeout=1),
        "hostile": raw(folder / "hostile.txt", "hostile"),
        "many": raw(folder / "many.txt", "many"),
        "mute": raw(folder / "mute.txt", "mute", connect_timeout=1),
    }
    with world(folder, servers, limits={"artifact": 5_000_000}) as opened:
        opened.settled("raw")
        yield opened


def status_of(hub: World, tool: str) -> tuple[str, str | None]:
    """How the last call of a tool ended, and whether the tree says so too."""
    [call] = hub.ask("GET", "/api/calls", params={"operation": tool, "limit": "1"})["calls"]
    node = hub.tree(call["id"])["tree"]
    assert (node["name"], node["status"]) == (tool, call["status"])
    return call["status"], (call.get("error") or {}).get("code")


FAULTS = {
    "hang": ("call_timeout", "did not end by its deadline", "failed"),
    "garble": ("call_failed", "not valid JSON", "failed"),
    "ask": ("call_failed", "What is your mother's name?", "failed"),
    "askhang": ("call_failed", "What is your mother's name?", "failed"),
    "fail": ("call_failed", "no such city", "failed"),
    "crash": ("uncertain", "ended with exit code 3", "uncertain"),
    "crash_read": ("call_failed", "ended with exit code 3", "failed"),
    "crash_again": ("call_failed", "ended with exit code 3", "failed"),
}


@pytest.mark.parametrize("tool", FAULTS)
def test_what_goes_wrong_in_a_server_is_the_end_of_that_call_alone(hub: World, tool: str) -> None:
    code, words, status = FAULTS[tool]
    server = "hasty" if code == "call_timeout" else "raw"
    hub.settled(server)
    beside = [{"tool": "time.now"}, {"tool": f"{server}.{tool}"}, {"tool": "many.tool_1"}]
    before, entry, _ = hub.ask("POST", "/api/operations/hub.call/call", json={"calls": beside})["result"]
    assert before["success"]
    assert (entry["success"], entry["error"]["code"]) == (False, code)
    assert words in entry["error"]["message"]
    assert status_of(hub, f"{server}.{tool}") == (status, code)
    hub.settled("raw")
    assert hub.batch("raw.echo", after=tool)["success"]


@pytest.mark.parametrize(
    ("tool", "times"), [("crash", 1), ("crash_read", 2), ("crash_again", 2), ("flaky", 2)]
)
def test_what_a_crash_cut_off_is_asked_again_only_where_that_does_no_harm(
    hub: World, tool: str, times: int
) -> None:
    state = hub.folder / "raw.txt"
    hub.settled("raw")
    before = state.read_text().count(f"call {tool}\n")
    entry = hub.batch(f"raw.{tool}")
    assert state.read_text().count(f"call {tool}\n") - before == times
    assert entry["success"] is (tool == "flaky")


ODDITIES: dict[str, Any] = {
    "junk": "fine",
    "several": ["one", "two"],
    "structured": {"sum": 5},
    "quiet": None,
}


@pytest.mark.parametrize("tool", ODDITIES)
def test_an_odd_answer_that_can_be_read_is_an_answer(hub: World, tool: str) -> None:
    hub.settled("raw")
    assert hub.batch(f"raw.{tool}") == {"success": True, "result": ODDITIES[tool]}


@pytest.mark.parametrize("tool", ["odd", "list_answer"])
def test_an_answer_of_nonsense_ends_the_call_and_nothing_else(hub: World, tool: str) -> None:
    hub.settled("raw")
    hub.batch(f"raw.{tool}")
    assert status_of(hub, f"raw.{tool}")[0] in ("done", "failed")
    assert hub.batch("raw.echo")["success"]


def test_a_huge_result_is_kept_as_an_artifact_and_one_beyond_that_is_told_in_part(hub: World) -> None:
    hub.settled("raw")
    stored = hub.batch("raw.huge", size=4_000_000)["result"]
    assert (stored["size"], len(json.dumps(stored)) < 30_000) == (4_000_000, True)
    read = hub.batch("artifacts.read", id=stored["artifact"], offset=3_999_000, limit=100)
    assert "x" * 100 in json.dumps(read["result"])
    lost = hub.batch("raw.huge", size=20_000_000)["result"]
    assert (lost["size"], "artifact" in lost, "The rest is lost" in lost["hint"]) == (20_000_000, False, True)
    refused = hub.batch("raw.huge", size=33_000_000)
    assert (refused["error"]["code"], "32,000,000" in refused["error"]["message"]) == ("call_failed", True)
    assert hub.batch("raw.echo")["success"]


def test_of_a_hostile_list_what_can_be_used_is_and_the_rest_is_explained(hub: World) -> None:
    reply = hub.settled("hostile")
    problems = "\n".join(reply["problems"])
    for words in ("not an object", "without a name", "nested more than", "GOOD"):
        assert words in problems, words
    assert hub.batch("hostile.Good")["success"]
    shown = hub.ask("GET", "/api/operations/hostile.hidden")["description"]
    assert (shown, "\u202e" in json.dumps(hub.server("hostile"))) == ("Adds. Now really.", False)


def test_five_thousand_tools_of_one_server_are_found(hub: World) -> None:
    assert hub.settled("many")["tools"] == 5_000
    found = hub.ask("GET", "/api/operations", params={"q": "tool_4321"})
    assert found["tools"][0]["tool"] == "many.tool_4321"


def test_a_server_that_says_nothing_fails_after_its_time_and_its_process_is_ended(hub: World) -> None:
    reply = hub.settled("mute", "failed")
    assert "did not start within 1 second" in reply["error"]
    first = pids(hub.folder / "mute.txt")[0]
    until(lambda: not is_alive(first))


def test_definitions_that_change_while_calls_run_leave_no_call_behind(tmp_path: Path) -> None:
    with world(tmp_path, {"pull": raw(tmp_path / "pull.txt", "changing")}) as hub:
        hub.settled("pull")
        with ThreadPoolExecutor(8) as threads:
            looks = [threads.submit(hub.batch, "pull.look", number=number) for number in range(40)]
            changed = threads.submit(hub.batch, "pull.change")
            looks += [threads.submit(hub.batch, "pull.look", number=number) for number in range(40)]
            ends = [each.result(120) for each in looks]
        assert changed.result()["success"]
        codes = {entry["error"]["code"] for entry in ends if not entry["success"]}
        assert codes <= {"not_found", "call_failed"}
        assert ends[0]["success"]
        until(lambda: hub.server("pull").get("waiting") == 2)
        assert hub.batch("pull.look")["error"]["code"] == "not_found"
        assert hub.ask("GET", "/api/calls", params={"status": "running"})["calls"] == []
