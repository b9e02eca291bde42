"""`useChat` of ai 6 and 7 on a session that a runner answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.driver import Driver, Report, text_of
from tests.clients.hub import Hub, StartHub
from tests.clients.runner_stage import RunnerStage, runner_stage
from tests.clients.scenarios import assert_kept, send

HALF = {"text": "three"}
WHOLE = "one two three four five"


@pytest.fixture(scope="module")
def runner_hub(start_hub: StartHub) -> Hub:
    """A hub without keys, so that the runner needs none."""
    return start_hub(keyless=True)


@pytest.fixture
def stage(runner_hub: Hub, tmp_path: Path) -> Iterator[RunnerStage]:
    with runner_stage(runner_hub, tmp_path) as made:
        yield made


@pytest.fixture
def play(runner_hub: Hub, sdk: str, stage: RunnerStage) -> Any:
    """Plays actions in the session of the runner."""
    driver = Driver(sdk, runner_hub)

    def play(*actions: dict[str, Any], **scenario: Any) -> Report:
        return driver(*actions, id=stage.session, **scenario)

    return play


def assert_whole(report: Report) -> None:
    """One answer, its text complete and there once, as the hub keeps it."""
    assert [message["role"] for message in report.messages] == ["user", "assistant"]
    assert text_of(report.answer) == WHOLE
    assert report.chat["status"] == "ready"
    assert_kept(report)


def tool_of(report: Report) -> dict[str, Any]:
    [tool] = [part for part in report.answer["parts"] if part["type"] == "dynamic-tool"]
    found: dict[str, Any] = tool
    return found


@pytest.mark.promise("use-chat-on-a-runner")
def test_a_tool_of_a_runner_is_shown_as_done_and_waits_for_no_output(play: Any) -> None:
    report = play(send("#tool please"), auto="tools", maxRequests=3)
    tool = tool_of(report)
    assert (tool["toolName"], tool["state"], tool["input"], tool["output"]) == (
        "read",
        "output-available",
        {"path": "a.txt"},
        {"text": "forty-two"},
    )
    assert tool["providerExecuted"] is True
    assert text_of(report.answer) == "Done."
    assert report.chat["toolCalls"] == []
    assert len(report.posts) == 1
    assert_kept(report)


def test_a_page_that_is_loaded_in_midstream_has_the_whole_answer_once(play: Any, stage: RunnerStage) -> None:
    report = play(
        send("#tool #gate:g1", wait=False),
        {"do": "reload", "after": HALF, "wait": False},
        {"do": "wait", "for": {"resumed": 1}},
        stage.do("open/g1"),
        {"do": "wait"},
        auto="tools",
    )
    assert tool_of(report)["state"] == "output-available"
    assert len(report.posts) == 1
    assert_whole(report)


@pytest.mark.parity
def test_a_lost_connection_is_resumed(play: Any, stage: RunnerStage) -> None:
    report = play(
        send("#gate:g1", wait=False, cut={"frames": 4}),
        {"do": "wait", "for": {"status": "error"}},
        stage.do("open/g1"),
        {"do": "reload"},
    )
    assert_whole(report)


@pytest.mark.parity
def test_stop_ends_the_turn_at_the_runner_and_the_next_one_is_answered(play: Any) -> None:
    report = play(
        send("#gate:never", wait=False), {"do": "stop", "how": "server", "after": HALF}, send("more")
    )
    roles = [message["role"] for message in report.messages]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert text_of(report.messages[1]) == "one two three "
    assert text_of(report.answer) == "Done."
    assert_kept(report)


def test_a_question_is_answered_in_the_page(play: Any) -> None:
    report = play(send("#ask me"), {"do": "output", "output": "blue"}, auto="tools", maxRequests=4)
    assert "You chose blue." in text_of(report.answer)
    questions = [part["data"] for part in report.answer["parts"] if part["type"] == "data-question"]
    assert [(each["text"], each["status"]) for each in questions] == [("Which colour?", "answered")]
    assert_kept(report)


@pytest.mark.parametrize("approved", [True, False])
def test_an_approval_is_given_or_refused_in_the_page(play: Any, *, approved: bool) -> None:
    answer = {"do": "approve", "approved": approved}
    report = play(send("#approve"), answer, auto="approvals", maxRequests=4)
    tool = tool_of(report)
    assert tool["state"] == ("output-available" if approved else "output-denied"), tool
    assert text_of(report.answer).endswith("Done.")
    assert_kept(report)


def test_the_error_of_a_runner_is_the_page_s(play: Any) -> None:
    report = play(send("#tool #fail"))
    assert report.chat["error"]["message"] == "the agent fell over"
    assert report.chat["status"] == "error"
    assert_kept(report)


def test_a_runner_that_is_killed_and_comes_back_leaves_a_valid_message_and_answers_the_next(
    play: Any, stage: RunnerStage
) -> None:
    report = play(
        send("#tool #gate:never", wait=False),
        stage.do("kill", after=HALF),
        stage.do("start"),
        {"do": "wait"},
        send("more"),
    )
    roles = [message["role"] for message in report.messages]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert text_of(report.messages[1]) == "one two three "
    assert text_of(report.answer) == "Done."
    assert len(report.posts) == 2
    assert_kept(report)
