"""Messages that are sent to a chat while it is answered, in the AI SDK's client: two pages of one session."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.clients.behaviours import calculate
from tests.clients.driver import Driver, Report, shape_of, story_of, text_of
from tests.clients.scenarios import send
from tests.clients.upstream import Upstream

MODES = ["queue", "steer"]
# The third request is the one with which the page follows on: what waits was read before.
RELOAD: list[dict[str, Any]] = [
    {"do": "reload", "chat": "other", "wait": False},
    {"do": "wait", "chat": "other", "for": {"requests": 3}},
]


def teach(upstream: Upstream) -> tuple[str, str, str]:
    """A first answer of two steps that waits in its first, a second answer; the gate of the first."""
    gate = f"busy-{uuid.uuid4()}"
    slow: list[Any] = [{"text": "One. "}, {"gate": gate}, {"calls": [calculate("6*7")]}]
    return upstream.teach(slow, [{"text": "It is 42."}]), upstream.teach([{"text": "Two."}]), gate


def check_story(report: Report, *, mode: str) -> None:
    """Every page shows what the hub has: both messages, each with its answer, once."""
    _, one, _, two = report.stored
    assert [each["role"] for each in report.stored] == ["user", "assistant", "user", "assistant"]
    assert text_of(two) == "Two."
    ended = ["step-start", "text", "tool-hub_call", "step-start"]
    assert shape_of(one) == [*ended, "text" if mode == "queue" else "data-steered"]
    assert text_of(one) == ("One. It is 42." if mode == "queue" else "One. ")
    assert one["parts"][2]["state"] == "output-available"
    assert len({each["id"] for each in report.stored}) == 4
    for name, tab in report.raw["chats"].items():
        assert story_of(tab["messages"]) == story_of(report.stored), name
        assert (tab["status"], tab["errors"]) == ("ready", []), name


@pytest.mark.promise("messages-to-a-busy-session")
@pytest.mark.parametrize("reloads", [False, True], ids=["stays", "reloads"])
@pytest.mark.parametrize("mode", MODES)
def test_two_pages_see_a_message_that_waits_and_both_answers(
    drive: Driver, upstream: Upstream, mode: str, reloads: bool
) -> None:
    first, second, gate = teach(upstream)
    waiting = {"id": "waiting", "role": "user", "parts": [{"type": "text", "text": f"{second} And?"}]}
    body = {"id": "{id}", "messages": [waiting], "background": True, "whenBusy": mode}
    actions: list[dict[str, Any]] = [
        send(f"{first} Go.", wait=False),
        {"do": "open", "as": "other", "after": {"text": "One"}, "wait": False},
        {"do": "wait", "chat": "other", "for": {"text": "One"}},
        {"do": "request", "method": "POST", "path": "/api/chat", "body": body, "name": "posted"},
        {"do": "wait", "for": {"data": "data-queued"}},
        {"do": "wait", "chat": "other", "for": {"data": "data-queued"}},
        *(RELOAD if reloads else []),
        {"do": "request", "method": "POST", "path": upstream.gate(gate), "name": "opened"},
        {"do": "wait", "for": {"messages": 4, "text": "Two."}},
        {"do": "wait", "chat": "other", "for": {"messages": 4, "text": "Two."}},
        {"do": "wait"},
        {"do": "wait", "chat": "other"},
        {"do": "open", "as": "later"},
    ]
    report = drive(*actions, follows=True)
    assert report.result("posted")["status"] == 202
    check_story(report, mode=mode)
    assert len(upstream.requests(first)) == (2 if mode == "queue" else 1)
    assert len(upstream.requests(second)) == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_page_that_sends_to_a_busy_chat_gets_its_answer_when_its_turn_comes(
    drive: Driver, upstream: Upstream, mode: str
) -> None:
    first, second, gate = teach(upstream)
    report = drive(
        send(f"{first} Go.", wait=False),
        {"do": "open", "as": "other", "after": {"text": "One"}, "resume": False},
        send(f"{second} And?", chat="other", wait=False),
        {"do": "wait", "for": {"data": "data-queued"}},
        {"do": "request", "method": "POST", "path": upstream.gate(gate), "name": "opened"},
        {"do": "wait", "chat": "other", "for": {"messages": 4, "text": "Two."}},
        {"do": "wait", "for": {"messages": 4, "text": "Two."}},
        {"do": "reload", "chat": "other"},
        {"do": "reload"},
        follows=True,
        body={"whenBusy": mode},
    )
    check_story(report, mode=mode)
