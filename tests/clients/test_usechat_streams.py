"""Streams that are stopped, lost, resumed and shared, in the AI SDK's client."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.clients.behaviours import Answer, calculate, piece
from tests.clients.driver import Driver, Report, shape_of, story_of, text_of
from tests.clients.hub import Hub, StartHub
from tests.clients.scenarios import ASK_USER, assert_kept, send
from tests.clients.upstream import Upstream
from tests.stopwatch import Stopwatch

STOP_LIMIT = 0.1  # seconds from the request to the closed connection
TRIES = 4  # the best counts: other work of the machine, its disk too, delays some


@dataclass(frozen=True)
class Held:
    """An answer that the model begins, and ends when its gate is opened."""

    upstream: Upstream
    gate: str

    def answer(self) -> Answer:
        return [{"text": ["one ", "two ", "three "]}, {"gate": self.gate}, {"text": ["four ", "five"]}]

    def release(self) -> dict[str, Any]:
        return {"do": "request", "method": "POST", "path": self.upstream.gate(self.gate), "name": "gate"}


@pytest.fixture
def blocked(upstream: Upstream) -> Iterator[Held]:
    pending = Held(upstream, uuid.uuid4().hex)
    yield pending
    upstream.open(pending.gate)


@pytest.fixture(scope="module")
def impatient_hub(start_hub: StartHub) -> Hub:
    """A hub that ends a run as soon as nobody follows it."""
    return start_hub(disconnect_grace=0)


WHOLE = "one two three four five"
HALF = {"text": "three"}
RESUMED = {"resumed": 1}


def reload_in_midstream(blocked: Held) -> list[dict[str, Any]]:
    return [
        {"do": "reload", "after": HALF, "wait": False},
        {"do": "wait", "for": RESUMED},
        blocked.release(),
        {"do": "wait"},
    ]


def assert_whole(report: Report) -> None:
    """One turn, one answer, its text complete and there once."""
    assert [message["role"] for message in report.messages] == ["user", "assistant"]
    assert text_of(report.answer) == WHOLE
    assert report.chat["status"] == "ready"
    assert_kept(report)


def test_a_fresh_page_resumes_the_answer_in_midstream(
    drive: Driver, upstream: Upstream, blocked: Held
) -> None:
    mark = upstream.teach(blocked.answer())
    report = drive(send(mark, wait=False), *reload_in_midstream(blocked))
    assert shape_of(report.answer) == ["step-start", "text"]
    assert len(report.posts) == 1
    assert len(upstream.requests(mark)) == 1
    assert_whole(report)


def test_a_fresh_page_shows_finished_calls_without_firing_them_again(
    drive: Driver, upstream: Upstream, blocked: Held
) -> None:
    mark = upstream.teach([{"calls": [calculate("6*7")]}], blocked.answer())
    report = drive(send(mark, wait=False), *reload_in_midstream(blocked), auto="tools")
    assert shape_of(report.answer) == ["step-start", "tool-hub_call", "step-start", "text"]
    assert report.answer["parts"][1]["state"] == "output-available"
    assert len(report.chat["toolCalls"]) == 1
    assert len(upstream.requests(mark)) == 2
    assert_whole(report)


def test_a_fresh_page_in_a_continued_message_gets_all_of_it(
    drive: Driver, upstream: Upstream, blocked: Held
) -> None:
    ask = {"name": "ask_user", "arguments": {"question": "Which colour?"}}
    mark = upstream.teach([{"calls": [ask]}], blocked.answer())
    report = drive(
        send(mark),
        {"do": "output", "output": "blue", "wait": False},
        *reload_in_midstream(blocked),
        auto="tools",
        body={"tools": [ASK_USER]},
    )
    assert shape_of(report.answer) == ["step-start", "tool-ask_user", "step-start", "text"]
    assert report.answer["parts"][1]["output"] == "blue"
    assert len(report.chat["toolCalls"]) == 1
    assert_whole(report)


def test_a_fresh_page_resumes_in_the_middle_of_a_call_s_input(
    drive: Driver, upstream: Upstream, blocked: Held
) -> None:
    begun = piece('{"calls": [{"tool": "math.calculate", "input": {"expr', id=blocked.gate, name="hub_call")
    rest = piece('ession": "6*7"}}]}')
    mark = upstream.teach([begun, {"gate": blocked.gate}, rest], [{"text": WHOLE}])
    report = drive(
        send(mark, wait=False),
        {"do": "reload", "after": {"tool": "input-streaming"}, "wait": False},
        {"do": "wait", "for": {"resumed": 3}},
        blocked.release(),
        {"do": "wait"},
        auto="tools",
    )
    assert report.answer["parts"][1]["input"] == calculate("6*7")["arguments"]
    assert report.answer["parts"][1]["state"] == "output-available"
    assert_whole(report)


@pytest.mark.parametrize("name", ["a/b", "ü ñ", "a?b#c", "%2F", "a+b&c=d"])
def test_a_session_of_any_name_is_resumed_and_stopped(
    drive: Driver, upstream: Upstream, blocked: Held, name: str
) -> None:
    mark = upstream.teach(blocked.answer())
    report = drive(
        send(mark, wait=False),
        {"do": "reload", "after": HALF, "wait": False},
        {"do": "stop", "after": RESUMED},
        id=f"{name} {blocked.gate}",
    )
    assert report.result("stop")["status"] == 200
    assert text_of(report.answer) == "one two three "
    assert text_of(report.stored[-1]) == "one two three "


def test_a_lost_connection_is_resumed_on_the_same_page(
    drive: Driver, upstream: Upstream, blocked: Held
) -> None:
    mark = upstream.teach(blocked.answer())
    report = drive(
        send(mark, wait=False, cut={"frames": 4}),
        {"do": "wait", "for": {"status": "error"}},
        {"do": "resume", "wait": False},
        {"do": "wait", "for": RESUMED},
        blocked.release(),
        {"do": "wait"},
    )
    lost, whole = report.chat["finishes"]
    assert (lost["isDisconnect"], lost["isError"]) == (True, True)
    assert (whole["isDisconnect"], whole["finishReason"]) == (False, "stop")
    assert len(upstream.requests(mark)) == 1
    assert_whole(report)


@pytest.mark.parametrize("frames", [1, 3, 6, 9])
def test_a_connection_lost_anywhere_in_a_tool_turn_is_resumed(
    drive: Driver, upstream: Upstream, blocked: Held, frames: int
) -> None:
    mark = upstream.teach([{"calls": [calculate("6*7")]}], blocked.answer())
    report = drive(
        send(mark, wait=False, cut={"frames": frames}),
        {"do": "wait", "for": {"status": "error"}},
        {"do": "resume", "wait": False},
        {"do": "wait", "for": RESUMED},
        blocked.release(),
        {"do": "wait"},
        auto="tools",
    )
    assert shape_of(report.answer) == ["step-start", "tool-hub_call", "step-start", "text"]
    assert len(upstream.requests(mark)) == 2
    assert_whole(report)


def test_resuming_when_the_run_has_ended_changes_nothing(drive: Driver) -> None:
    report = drive(send("#plain Hello."), {"do": "reload"}, {"do": "resume"})
    assert [response["status"] for response in report.raw["responses"]] == [200, 200, 200]
    assert text_of(report.answer) == "Hello from the model."
    assert report.chat["status"] == "ready"
    assert_kept(report)


def test_an_answer_that_ended_while_the_page_was_away_is_there_after_a_reload(
    drive: Driver, upstream: Upstream, blocked: Held
) -> None:
    mark = upstream.teach(blocked.answer())
    report = drive(
        send(mark, wait=False, cut={"frames": 4}),
        {"do": "wait", "for": {"status": "error"}},
        blocked.release(),
        {"do": "open", "as": "other", "wait": False},
        {"do": "wait", "chat": "other"},
        {"do": "reload"},
    )
    assert_whole(report)


def test_an_answer_that_ends_while_the_connection_is_lost_is_resumed_whole(
    drive: Driver, upstream: Upstream, blocked: Held
) -> None:
    mark = upstream.teach(blocked.answer())
    report = drive(
        send(mark, wait=False, cut={"frames": 4}),
        {"do": "wait", "for": {"status": "error"}},
        blocked.release(),
        {"do": "resume"},
    )
    assert_whole(report)


def test_two_tabs_follow_one_run_to_the_same_end(drive: Driver, upstream: Upstream, blocked: Held) -> None:
    mark = upstream.teach([{"calls": [calculate("6*7")]}], blocked.answer())
    report = drive(
        send(mark, wait=False),
        {"do": "open", "as": "second", "after": HALF, "wait": False},
        {"do": "wait", "chat": "second", "for": RESUMED},
        blocked.release(),
        {"do": "wait"},
        {"do": "wait", "chat": "second"},
    )
    assert_whole(report)
    assert story_of(report.tab("second")["messages"]) == story_of(report.messages)
    assert len(upstream.requests(mark)) == 2


def test_one_tab_s_stop_ends_the_run_for_the_other_too(
    drive: Driver, upstream: Upstream, blocked: Held
) -> None:
    mark = upstream.teach(blocked.answer())
    report = drive(
        send(mark, wait=False),
        {"do": "open", "as": "second", "after": HALF, "wait": False},
        {"do": "stop", "chat": "second", "after": RESUMED},
        {"do": "wait"},
    )
    assert text_of(report.answer) == "one two three "
    assert report.chat["status"] == "ready"
    assert report.answer["parts"][-1]["state"] == "done"
    assert_kept(report)


def test_a_stop_closes_the_model_s_connection_at_once(
    drive: Driver, upstream: Upstream, blocked: Held
) -> None:
    def stop_run() -> float:
        mark = upstream.teach(blocked.answer())
        report = drive(
            send(mark, wait=False),
            {"do": "stop", "after": HALF},
            {"do": "request", "path": "/api/chat/{id}/stream", "name": "after"},
        )
        [request] = upstream.requests(mark)
        upstream.wait(lambda: request.ended)
        stop = report.result("stop")
        assert request.left is not None
        assert stop["status"] == 200
        assert report.result("after")["status"] == 200, "a run that has just ended is replayed"
        assert report.chat["status"] == "ready"
        [_, answer] = report.stored
        assert text_of(answer) == "one two three "
        assert answer["parts"][-1]["state"] == "done"
        return float(request.left - stop["at"] / 1000)

    assert least_seconds(stop_run) < STOP_LIMIT


def least_seconds(measure: Callable[[], float]) -> float:
    """The least of a few measurements, without the time in which processes had no processor."""
    least = float("inf")
    for _ in range(TRIES):
        watch = Stopwatch()
        least = min(least, measure() - watch.in_line())
        if least < STOP_LIMIT:
            break
    return least


def test_a_stop_before_the_first_word_leaves_a_session_for_the_next_turn(
    drive: Driver, upstream: Upstream, blocked: Held
) -> None:
    mark = upstream.teach([{"gate": blocked.gate}])
    report = drive(
        send(mark, wait=False),
        {"do": "stop", "after": {"frames": 1}},
        {"do": "reload"},
        send("#plain Go on."),
    )
    assert text_of(report.answer) == "Hello from the model."
    assert report.chat["errors"] == []


def test_a_turn_after_a_stop_is_accepted_and_tells_what_was_said(
    drive: Driver, upstream: Upstream, blocked: Held
) -> None:
    stopped, mark = upstream.teach(blocked.answer()), upstream.teach([{"text": "Go on."}])
    report = drive(send(stopped, wait=False), {"do": "stop", "after": HALF}, send(mark))
    assert [message["role"] for message in report.messages] == ["user", "assistant", "user", "assistant"]
    assert text_of(report.answer) == "Go on."
    [request] = upstream.requests(mark)
    messages = [(m["role"], m["content"]) for m in request.body["messages"] if m["role"] != "system"]
    assert messages == [("user", stopped), ("assistant", "one two three "), ("user", mark)]


def test_a_turn_after_the_client_s_own_stop_takes_the_place_of_the_run_it_left(
    drive: Driver, upstream: Upstream, blocked: Held
) -> None:
    left, mark = upstream.teach(blocked.answer()), upstream.teach([{"text": "Go on."}])
    report = drive(send(left, wait=False), {"do": "stop", "how": "client", "after": HALF}, send(mark))
    assert text_of(report.answer) == "Go on."
    assert report.chat["errors"] == []
    [request] = upstream.requests(left)
    upstream.wait(lambda: request.ended)
    assert request.left is not None


def test_a_hub_without_grace_ends_the_run_when_its_client_leaves(
    impatient_hub: Hub, sdk: str, upstream: Upstream, blocked: Held
) -> None:
    def leave() -> float:
        mark = upstream.teach(blocked.answer())
        report = Driver(sdk, impatient_hub)(
            send(mark, wait=False), {"do": "stop", "how": "client", "after": HALF}
        )
        [request] = upstream.requests(mark)
        upstream.wait(lambda: request.ended)
        assert request.left is not None
        return float(request.left - report.raw["responses"][0]["endedAt"] / 1000)

    assert least_seconds(leave) < STOP_LIMIT


def test_stopping_when_nothing_runs_is_harmless(drive: Driver) -> None:
    report = drive(send("#plain Hello."), {"do": "stop"}, send("#plain Again."))
    assert report.result("stop")["status"] == 200
    assert text_of(report.answer) == "Hello from the model."
    assert_kept(report)


def test_a_second_turn_during_a_run_is_refused_and_the_run_goes_on(
    drive: Driver, upstream: Upstream, blocked: Held
) -> None:
    mark = upstream.teach(blocked.answer())
    intruder = {"id": "u-2", "role": "user", "parts": [{"type": "text", "text": "#plain Me too."}]}
    report = drive(
        send(mark, wait=False),
        {"do": "wait", "for": HALF},
        {
            "do": "request",
            "name": "second",
            "method": "POST",
            "path": "/api/chat",
            "body": {"id": "{id}", "messages": [intruder], "trigger": "submit-message"},
        },
        blocked.release(),
        {"do": "wait"},
    )
    second = report.result("second")
    assert second["status"] == 409
    assert second["json"]["error"]["message"]
    assert_whole(report)
