"""A React page with `useChat` in a real browser, in a session that a runner answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.hub import Hub, StartHub
from tests.clients.pages import Pages
from tests.clients.runner_stage import RunnerStage, runner_stage
from tests.clients.test_browser import READY, Visit, assert_shown_whole, bundle, sdk, see

__all__ = ["bundle", "sdk"]
HALF = "one two three"
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
def visit(
    runner_hub: Hub, stage: RunnerStage, sdk: str, bundle: Callable[[str], Path], tmp_path: Path
) -> Iterator[Visit]:
    pages = Pages(bundle(sdk), runner_hub.url)
    yield Visit(pages, runner_hub, tmp_path, stage.session)
    pages.close()


def say(text: str) -> dict[str, Any]:
    return {"do": "say", "text": text}


def kinds(seen: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(part["kind"], part.get("state")) for part in seen["messages"][-1]["parts"]]


@pytest.mark.parity
def test_a_person_sees_the_tool_of_a_runner_and_its_answer(visit: Visit) -> None:
    seen = visit(say("#tool please"), see("Done."), READY)
    assert ("dynamic-tool", "output-available") in kinds(seen)
    assert seen["complaints"] == []
    posts = [request for request in seen["requests"] if request["method"] == "POST"]
    assert posts == [{"method": "POST", "path": "/api/chat", "status": 200}]


def test_a_page_of_a_runner_s_session_reloaded_in_midstream_ends_with_the_whole_answer_once(
    visit: Visit, stage: RunnerStage
) -> None:
    seen = visit(
        say("#gate:g1"),
        see(HALF),
        {"do": "reload"},
        {"do": "status", "is": "streaming"},
        see(HALF),
        stage.do_in_page("open/g1"),
        see(WHOLE),
        READY,
    )
    assert_shown_whole(seen)
    assert seen["complaints"] == []


def test_a_page_of_a_runner_s_session_that_lost_its_connection_shows_the_answer_once(
    visit: Visit, stage: RunnerStage
) -> None:
    visit.pages.lose_after(frames=4)
    seen = visit(
        say("#gate:g1"),
        {"do": "lost", "is": 1},
        {"do": "status", "is": "streaming"},
        see(HALF),
        stage.do_in_page("open/g1"),
        see(WHOLE),
        READY,
    )
    assert_shown_whole(seen)


def test_a_person_stops_a_runner_and_goes_on(visit: Visit) -> None:
    seen = visit(
        say("#gate:never"),
        see(HALF),
        {"do": "press", "button": "Stop"},
        READY,
        say("more"),
        see("Done."),
        READY,
    )
    assert [message["role"] for message in seen["messages"]] == ["user", "assistant", "user", "assistant"]
    assert seen.get("error") is None
    assert [(part.get("text"), part.get("state")) for part in visit.stored()[1]["parts"]][-1] == (
        "one two three ",
        "done",
    )


def test_a_person_whose_runner_was_killed_and_came_back_goes_on(visit: Visit, stage: RunnerStage) -> None:
    seen = visit(
        say("#tool #gate:never"),
        see(HALF),
        stage.do_in_page("kill"),
        stage.do_in_page("start"),
        {"do": "reload"},
        {"do": "status", "is": "error"},  # the answer was cut off, and says so
        say("more"),
        see("Done."),
        READY,
    )
    assert [message["role"] for message in seen["messages"]] == ["user", "assistant", "user", "assistant"]
    texts = [part["text"] for part in seen["messages"][1]["parts"] if part["kind"] == "text"]
    assert "".join(texts).strip() == HALF


@pytest.mark.parity
def test_a_person_answers_the_question_of_a_runner(visit: Visit) -> None:
    seen = visit(say("#ask me"), {"do": "press", "button": "blue"}, see("You chose blue."), READY)
    assert [message["role"] for message in seen["messages"]] == ["user", "assistant"]
    assert (seen["complaints"], seen.get("error")) == ([], None)
    assert visit.stored()[1]["parts"][-1]["text"].endswith("Done.")


@pytest.mark.parametrize(("button", "state"), [("Approve", "output-available"), ("Deny", "output-denied")])
def test_a_person_answers_what_a_runner_wants_to_do(visit: Visit, button: str, state: str) -> None:
    seen = visit(say("#approve"), {"do": "press", "button": button}, see("Done."), READY)
    assert ("dynamic-tool", state) in kinds(seen)
    assert (seen["complaints"], seen.get("error")) == ([], None)


def test_a_person_sees_the_error_of_a_runner_and_goes_on(visit: Visit) -> None:
    seen = visit(say("#tool #fail"), {"do": "status", "is": "error"}, say("more"), see("Done."), READY)
    assert [message["role"] for message in seen["messages"]] == ["user", "assistant", "user", "assistant"]
    assert ("dynamic-tool", "output-available") in kinds({**seen, "messages": seen["messages"][:2]})
