"""Questions at the terminal, answered by number or in words."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.access.question_prompt import resolve_answer
from dragoman.operations.approval import ApprovalItem, Question
from tests.cli.conftest import Run
from tests.cli.program import Hub, Terminal, scripted, serving
from tests.cli.program import run as program
from tests.cli.test_approvals import ask, deny_all, status_of, within

COLOUR = Question("Which colour?\nNot \u202egreen.", ("red", "blue"))
ASK = {"text": "Which colour?", "options": ["red", "blue"]}


def question(folder: Path, request: Question = COLOUR) -> str:
    """The id of a new question."""
    item = ApprovalItem("user.question", {"text": request.text}, "h", question=request, agent="painter")
    return ask(folder, operation="user.question", items=(item,), agent=None)


@pytest.fixture(params=["folder", "hub"])
def where(request: pytest.FixtureRequest, hub: Hub) -> tuple[str, ...]:
    """Where the approvals are."""
    return ("--data", str(hub.data)) if request.param == "folder" else ("--hub", hub.url)


def test_a_question_is_shown_as_one(run: Run, hub: Hub, where: tuple[str, ...]) -> None:
    id = question(hub.data)
    [line] = [line for line in run("approvals", "list", *where).out.splitlines() if line.startswith(f"{id} ")]
    assert "user.question" in line
    assert "Which colour?" in line
    assert run("approvals", "show", id, *where).out.splitlines()[1:] == [
        "  for local",
        "  user.question, for the agent painter",
        "    Which colour?",
        "    Not \\u202egreen.",
        "      1. red",
        "      2. blue",
    ]
    report = run("approvals", "show", id, "--json", *where).json
    assert report["question"] == {"text": COLOUR.text, "options": ["red", "blue"]}


@pytest.mark.parametrize(
    ("typed", "answer"), [("2", "blue"), ("blue", "blue"), ("mauve, please", "mauve, please"), ("3", "3")]
)
def test_it_is_answered_by_number_or_in_words(
    run: Run, hub: Hub, where: tuple[str, ...], typed: str, answer: str
) -> None:
    id = question(hub.data)
    reply = run("approvals", "answer", id, typed, *where)
    assert (reply.code, reply.out, f"{id} is approved: user.question, {answer}" in reply.err) == (0, "", True)
    assert f"by local: {answer}" in run("approvals", "show", id, *where).out
    again = run("approvals", "answer", id, "1", *where)
    assert (again.code, "already approved" in again.err) == (1, True)


def test_what_is_no_answer_changes_nothing(run: Run, hub: Hub, where: tuple[str, ...]) -> None:
    id, other = question(hub.data), ask(hub.data)
    for wanted, text, complaint in (
        (id, " ", "empty"),
        (id, "x" * 10_001, "10000"),
        (other, "blue", "not a question"),
        ("nothing", "blue", "'nothing'"),
    ):
        reply = run("approvals", "answer", wanted, text, *where)
        assert (reply.code, complaint in reply.err) == (1, True), reply.err
    assert (status_of(hub.data, id), status_of(hub.data, other)) == ("pending", "pending")


def test_an_option_that_looks_like_a_number_is_itself() -> None:
    sizes = {"text": "Which size?", "options": ["38", "2", "40"]}
    typed = ["1", "2", "3", "40", "0", "9" * 30, "²"]
    assert [resolve_answer(sizes, each) for each in typed] == ["38", "2", "40", "40", "0", "9" * 30, "²"]


def test_the_terminal_asks_it(hub: Hub, where: tuple[str, ...]) -> None:
    within(hub.data, deny_all)
    ids = [question(hub.data)]
    terminal = Terminal("approvals", "watch", "--every", "0.1", *where, env={})
    assert "2. blue" in terminal.see("/quit: ")
    terminal.type("")
    terminal.see("/quit: ")
    terminal.type("2")
    terminal.see("is approved: user.question, blue")
    for typed in ("/no", "/later", "mauve"):
        ids.append(question(hub.data))
        terminal.see("/quit: ")
        terminal.type(typed)
    terminal.see("is approved: user.question, mauve")
    terminal.press(signal.SIGINT)
    assert terminal.wait() == 130
    assert [status_of(hub.data, id) for id in ids] == ["approved", "denied", "pending", "approved"]


def call(name: str, **input: Any) -> dict[str, Any]:
    return {"tools": [{"name": name, "input": input}]}


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub whose models ask: itself, and through a clerk."""
    folder = tmp_path_factory.mktemp("asker")
    scripts: dict[str, Sequence[dict[str, Any]]] = {
        "plain": [call("user_question", **ASK), {"text": "Thank you."}],
        "clerk": [call("user_question", **ASK), call("user_question", text="When?"), {"text": "It is done."}],
        "lead": [call("agents_clerk", prompt="paint"), {"text": "The clerk did it."}],
    }
    config = {
        "providers": {name: scripted(folder, name, steps) for name, steps in scripts.items()},
        "model": "plain/x",
        "pinned": ["user.question", "agents.clerk"],
        "agents": {"clerk": {"model": "clerk/x", "description": "Paints.", "operations": ["user.question"]}},
    }
    with serving(folder, config, "--no-auth") as served:
        yield served


@pytest.mark.parametrize(("typed", "expected"), [("2", "blue"), ("mauve", "mauve"), ("", "not answered")])
def test_a_talk_asks_and_goes_on(asker: Hub, typed: str, expected: str) -> None:
    chat = Terminal("chat", env={"DRAGOMAN_HUB": asker.url})
    chat.see("you> ")
    chat.type("paint it")
    shown = chat.see("declines)> ")
    assert "Which colour?" in shown
    assert "1. red" in shown
    chat.type(typed)
    shown = chat.see("you> ")
    assert expected in shown
    assert "Thank you." in shown
    assert chat.leave() == 0


def test_a_talk_asks_for_a_sub_agent_as_often_as_it_wants(asker: Hub) -> None:
    chat = Terminal("chat", "--model", "lead/x", env={"DRAGOMAN_HUB": asker.url})
    chat.see("you> ")
    chat.type("paint it")
    assert "Which colour?" in chat.see("declines)> ")
    chat.type("1")
    assert "When?" in chat.see("declines)> ")
    chat.type("tomorrow")
    shown = chat.see("you> ")
    assert "The clerk did it." in shown
    assert chat.leave() == 0


def test_a_session_that_waits_is_asked_about_when_it_is_opened(asker: Hub) -> None:
    reply = program("chat", "paint it", "--session", "left", "--hub", asker.url)
    assert (reply.code, "Which colour?" in reply.err) == (0, True)
    chat = Terminal("chat", "--session", "left", env={"DRAGOMAN_HUB": asker.url})
    assert "2. blue" in chat.see("declines)> ")
    chat.type("2")
    assert "Thank you." in chat.see("you> ")
    assert chat.leave() == 0


def test_an_operation_that_asks_is_answered_where_it_is_called(asker: Hub) -> None:
    for place in (["--hub", asker.url], []):
        terminal = Terminal("ops", "call", "user.question", "text=Which one?", *place, env={})
        assert "Which one?" in terminal.see("declines)")
        terminal.type("this one")
        terminal.see("this one")
        assert "this one" in terminal.see("this one")
        assert terminal.wait() == 0
    terminal = Terminal("ops", "call", "agents.clerk", "prompt=paint", "--hub", asker.url, env={})
    terminal.see("declines)")
    terminal.type("2")
    assert "When?" in terminal.see("declines)")
    terminal.type("now")
    terminal.see("It is done.")
    assert terminal.wait() == 0
