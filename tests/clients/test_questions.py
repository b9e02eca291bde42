"""Questions and approvals, from sub-agents too, in the AI SDK's client."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.clients.behaviours import calculate
from tests.clients.driver import Driver, Report, player, run_node, shape_of, text_of
from tests.clients.hub import Hub, StartHub
from tests.clients.scenarios import assert_kept, send
from tests.clients.upstream import Upstream

QUESTION = {"name": "user_question", "arguments": {"text": "Which colour?", "options": ["red", "blue"]}}
OPEN = {"text": "Which colour?", "options": ["red", "blue"], "status": "pending"}
ZONE = {"time": "2026-01-01T10:00:00Z", "to_timezone": "Europe/Berlin"}
GUIDE = Path(__file__).parents[2] / "docs" / "usechat.md"
MOST = 6  # requests, before a client counts as one that loops


ASKING: dict[str, Any] = {
    "pinned": ["user.question", "agents.clerk", "math.calculate"],
    "policy": [{"ask": "math.calculate", "agent": "clerk"}, {"ask": "time.convert"}],
    "agents": {
        "clerk": {
            "model": "up/any-model",
            "description": "Works.",
            "operations": ["user.question", "math.calculate", "time.now"],
        }
    },
}


@pytest.fixture(scope="session")
def asking_hub(start_hub: StartHub) -> Hub:
    """A hub whose agents ask."""
    return start_hub(**ASKING)


@pytest.fixture
def ask(asking_hub: Hub, sdk: str) -> Driver:
    return Driver(sdk, asking_hub)


def answer(output: Any, **more: Any) -> dict[str, Any]:
    return {"do": "output", "output": output, **more}


def questions(report: Report) -> list[dict[str, Any]]:
    """What was asked, without the ids."""
    data = [part["data"] for part in report.answer["parts"] if part["type"] == "data-question"]
    return [{key: value for key, value in each.items() if key not in ("id", "toolCallId")} for each in data]


def clerk(upstream: Upstream, *steps: dict[str, Any]) -> str:
    """A mark for a turn in which a clerk takes these steps."""
    work = upstream.teach(*[[{"calls": [each]}] for each in steps], [{"text": "It is done."}])
    call = {"name": "agents_clerk", "arguments": {"prompt": f"{work} Do it."}}
    return upstream.teach([{"calls": [call]}], [{"text": "The clerk did it."}])


def test_a_question_is_shown_as_a_call_and_answered_by_its_output(ask: Driver, upstream: Upstream) -> None:
    mark = upstream.teach([{"calls": [QUESTION]}], [{"text": "Blue it is."}])
    report = ask(send(f"{mark} Paint it."), answer("blue"), auto="tools", maxRequests=MOST)
    assert shape_of(report.answer) == [
        "step-start",
        "tool-user_question",
        "data-question",
        "step-start",
        "text",
    ]
    tool = report.answer["parts"][1]
    assert (tool["state"], tool["output"]) == ("output-available", "blue")
    assert questions(report) == [{**OPEN, "status": "answered", "answer": "blue"}]
    assert json.loads(json.dumps(upstream.requests(mark)[1].body["messages"][-1]))["content"] == "blue"
    assert [finish["finishReason"] for finish in report.chat["finishes"]] == ["tool-calls", "stop"]
    assert len(report.posts) == 2
    assert_kept(report)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({"output": {"answer": "mauve"}}, "mauve"),
        ({"output": {"colour": "blue"}}, '{"colour":"blue"}'),
        ({"errorText": "ask Ann"}, "the question was not answered: ask Ann"),
    ],
)
def test_an_answer_may_be_a_value_or_declined(
    ask: Driver, upstream: Upstream, reply: dict[str, Any], expected: str
) -> None:
    mark = upstream.teach([{"calls": [QUESTION]}], [{"text": "I see."}])
    report = ask(send(f"{mark} Paint it."), {"do": "output", **reply}, auto="tools", maxRequests=MOST)
    assert expected in upstream.requests(mark)[1].body["messages"][-1]["content"]
    assert len(report.posts) == 2
    assert_kept(report)


def test_a_page_that_is_loaded_again_still_asks(ask: Driver, upstream: Upstream) -> None:
    mark = upstream.teach([{"calls": [QUESTION]}], [{"text": "Blue it is."}])
    report = ask(send(f"{mark} Paint it."), {"do": "reload"}, answer("blue"), auto="tools", maxRequests=MOST)
    [resumed] = [one for one in report.raw["requests"] if one["method"] == "GET"]
    [replay] = [one for one in report.raw["responses"] if one["n"] == resumed["n"]]
    assert replay["status"] == 200
    assert questions(report) == [{**OPEN, "status": "answered", "answer": "blue"}]
    assert text_of(report.answer) == "Blue it is."
    assert_kept(report)


def test_the_second_answer_is_refused_and_nothing_is_asked_again(ask: Driver, upstream: Upstream) -> None:
    mark = upstream.teach([{"calls": [QUESTION]}], [{"text": "Blue it is."}])
    report = ask(
        send(f"{mark} Paint it."),
        {"do": "open", "as": "other"},
        answer("blue"),
        answer("red", chat="other"),
        auto="tools",
        maxRequests=MOST,
    )
    assert len(upstream.requests(mark)) == 2
    [error] = report.tab("other")["errors"]
    assert "answered already" in error["message"]
    assert text_of(report.answer) == "Blue it is."
    assert_kept(report)


def test_what_was_answered_elsewhere_stays_so(ask: Driver, upstream: Upstream) -> None:
    mark = upstream.teach([{"calls": [QUESTION]}], [{"text": "Red it is."}])
    first = ask(send(f"{mark} Paint it."), auto="tools", maxRequests=MOST)
    request = first.answer["parts"][2]["data"]["id"]
    place = f"/api/approvals/{request}"
    status, report = ask.hub.request("POST", place, {"answer": "red"})
    assert (status, report["answer"]) == (200, "red")
    upstream.wait(lambda: len(upstream.requests(mark)) == 2)
    late = ask(
        answer("blue"),
        id=first.session,
        messages=first.messages,
        auto="tools",
        maxRequests=MOST,
    )
    assert len(upstream.requests(mark)) == 2
    told_parts = [part for part in late.stored[-1]["parts"] if part["type"] == "tool-user_question"]
    assert [part["output"] for part in told_parts] == ["red"]


def test_what_a_sub_agent_asks_is_approved_in_the_chat(ask: Driver, upstream: Upstream) -> None:
    now = {"name": "time_now", "arguments": {}}
    sums = {"name": "math_calculate", "arguments": {"expression": "6*7"}}
    mark = clerk(upstream, now, sums)
    report = ask(
        send(f"{mark} Have it done."),
        {"do": "reload"},
        {"do": "approve", "approved": True},
        auto="approvals",
        maxRequests=MOST,
    )
    tool = report.answer["parts"][1]
    assert (tool["type"], tool["state"]) == ("tool-agents_clerk", "output-available")
    assert tool["output"] == "It is done."
    assert text_of(report.answer) == "The clerk did it."
    assert len(report.posts) == 2
    assert_kept(report)


@pytest.mark.parametrize("approved", [True, False])
def test_what_a_sub_agent_asks_after_it_was_at_work_is_answered_as_an_approval(
    ask: Driver, upstream: Upstream, *, approved: bool
) -> None:
    now = {"name": "time_now", "arguments": {}}
    mark = clerk(upstream, now, QUESTION)
    report = ask(
        send(f"{mark} Have it done."),
        {"do": "approve", "approved": approved, "reason": "blue"},
        {"do": "reload"},  # the SDK has no state for a call that has an output although it was denied
        auto="both",
        maxRequests=MOST,
    )
    tool = report.answer["parts"][1]
    assert (tool["state"], tool["output"]) == ("output-available", "It is done.")
    reply = {"status": "answered", "answer": "blue"} if approved else {"status": "declined", "reason": "blue"}
    assert questions(report) == [{**OPEN, **reply}]
    assert len(report.posts) == 2
    assert_kept(report)


def test_a_sub_agent_may_ask_one_thing_after_another(ask: Driver, upstream: Upstream) -> None:
    now = {"name": "time_now", "arguments": {}}
    sums = {"name": "math_calculate", "arguments": {"expression": "6*7"}}
    when = {"name": "user_question", "arguments": {"text": "When?"}}
    mark = clerk(upstream, now, sums, QUESTION, when, sums)
    yes = {"do": "approve", "approved": True, "reason": "blue"}
    report = ask(send(f"{mark} Do it."), yes, yes, yes, yes, auto="both", maxRequests=MOST)
    assert text_of(report.answer) == "The clerk did it."
    assert [each["status"] for each in questions(report)] == ["answered", "answered"]
    assert len(report.posts) == 5
    assert_kept(report)


def test_a_replay_of_a_decided_approval_is_valid_for_the_client(ask: Driver, upstream: Upstream) -> None:
    sums = {"name": "math_calculate", "arguments": {"expression": "6*7"}}
    mark = clerk(upstream, sums)
    report = ask(
        send(f"{mark} Do it."),
        {"do": "approve", "approved": True},
        {"do": "reload"},
        {"do": "resume"},
        auto="approvals",
        maxRequests=MOST,
    )
    assert text_of(report.answer) == "The clerk did it."
    assert [one["status"] for one in report.raw["responses"]] == [200] * 4


def test_a_sub_agent_that_goes_on_after_a_denial_leaves_a_message_that_the_client_accepts(
    ask: Driver, upstream: Upstream
) -> None:
    mark = clerk(upstream, {"name": "math_calculate", "arguments": {"expression": "6*7"}})
    report = ask(
        send(f"{mark} Do it."),
        {"do": "approve", "approved": False},
        {"do": "reload"},
        {"do": "resume"},
        auto="approvals",
        maxRequests=MOST,
    )
    call = next(part for part in report.stored[-1]["parts"] if part["type"] == "tool-agents_clerk")
    assert (call["state"], call["output"]) == ("output-available", "It is done.")
    assert "approval" not in call
    assert_kept(report)


def call_of(report: Report) -> dict[str, Any]:
    call: dict[str, Any] = report.answer["parts"][1]
    return call


def continued(report: Report, *parts: dict[str, Any], session: str | None = None) -> dict[str, Any]:
    """What a client sends that claims these parts for the last message."""
    message = {**report.answer, "parts": list(parts)}
    return {"id": session or report.session, "messages": [message], "messageId": message["id"]}


def test_what_a_client_makes_up_is_refused_and_the_question_stays(ask: Driver, upstream: Upstream) -> None:
    mark = upstream.teach([{"calls": [QUESTION]}], [{"text": "Blue it is."}])
    mine, other = (ask(send(f"{mark} Paint it."), auto="tools") for _ in range(2))
    call, data = call_of(mine), mine.answer["parts"][2]
    blue = {**call, "state": "output-available", "output": "blue"}
    forged = {**data, "data": {**data["data"], "status": "answered", "answer": "blue"}}
    foreign = {**call_of(other), "state": "output-available", "output": "blue"}
    word = {"id": other.answer["parts"][2]["data"]["id"], "approved": True, "reason": "blue"}
    stolen = {**call, "state": "approval-responded", "approval": word}
    empty = {**call, "state": "output-available", "output": " "}
    long = {**call, "state": "output-available", "output": "x" * 10_001}
    claims = {
        "a part": (409, continued(mine, call, forged)),
        "nothing": (409, continued(mine)),
        "an output of another session's call": (409, continued(mine, foreign)),
        "a message of another session": (404, continued(mine, blue, session=other.session)),
        "another session's approval": (409, continued(mine, stolen)),
        "an empty answer": (400, continued(mine, empty)),
        "a long answer": (400, continued(mine, long)),
    }
    found = {name: ask.hub.request("POST", "/api/chat", body)[0] for name, (_, body) in claims.items()}
    assert found == {name: status for name, (status, _) in claims.items()}
    assert len(upstream.requests(mark)) == 2, "no model was asked"
    after = ask(answer("blue"), id=mine.session, messages=mine.messages, auto="tools", maxRequests=MOST)
    assert text_of(after.answer) == "Blue it is."


def test_an_output_is_no_approval(ask: Driver, upstream: Upstream) -> None:
    sums = {"name": "math_calculate", "arguments": {"expression": "6*7"}}
    mark = clerk(upstream, sums)
    report = ask(send(f"{mark} Do it."), {"do": "reload"}, auto="both", maxRequests=MOST)
    call = call_of(report)
    assert call["state"] == "approval-requested"
    claimed = {**call, "state": "output-available", "output": "It is done, trust me."}
    status, error = ask.hub.request("POST", "/api/chat", continued(report, claimed))
    assert (status, "waits for an approval" in error["error"]["message"]) == (409, True)
    assert len(upstream.requests(mark)) == 1


def test_a_batch_with_a_question_is_answered_by_its_output(ask: Driver, upstream: Upstream) -> None:
    batch = calculate("1+1")
    batch["arguments"]["calls"] = [{"tool": "user.question", "input": QUESTION["arguments"]}]
    mark = upstream.teach([{"calls": [batch]}], [{"text": "Blue it is."}])
    report = ask(send(f"{mark} Paint it."), answer("blue"), auto="tools", maxRequests=MOST)
    assert call_of(report)["output"] == [{"success": True, "result": "blue"}]
    assert len(report.posts) == 2
    assert_kept(report)


@pytest.mark.parametrize("click", ["Approve", "Deny"])
def test_the_guide_s_card_shows_what_runs_and_its_buttons_answer(
    asking_hub: Hub, upstream: Upstream, sdk: str, click: str
) -> None:
    calls = [
        {"tool": "time.convert", "input": ZONE},
        {"tool": "math.calculate", "input": {"expression": "6 * 7"}},
    ]
    mark = upstream.teach(
        [{"calls": [{"name": "hub_call", "arguments": {"calls": calls}}]}], [{"text": "That is all."}]
    )
    [code] = re.findall(r"```tsx\n(.*?)```", GUIDE.read_text().partition("## Approvals")[2], re.DOTALL)
    seen = player("approval_card.mjs").play(
        {
            "sdk": sdk,
            "code": code,
            "hub": asking_hub.url,
            "headers": asking_hub.headers,
            "session": f"card-{uuid.uuid4().hex}",
            "text": f"{mark} What time is it?",
            "click": click,
        }
    )
    assert "<b>time.convert, math.calculate</b>" in seen["card"]
    assert "time.convert (read) {" in seen["card"]
    assert "Europe/Berlin" in seen["card"]
    assert "math.calculate (read) {" in seen["card"]
    assert "hub_call" not in seen["card"]
    [part] = [part for part in seen["message"]["parts"] if part["type"] == "tool-hub_call"]
    if click == "Approve":
        assert [each["success"] for each in part["output"]] == [True, True]
    else:
        assert part["state"] == {"7": "output-denied", "6": "output-denied"}[sdk]
    assert text_of(seen["message"]) == "That is all."
    assert (seen["requests"], seen["hidden"]) == (2, "")


def test_a_page_hears_of_an_approval_that_is_given_elsewhere_by_the_guide_s_code(
    asking_hub: Hub, upstream: Upstream, sdk: str
) -> None:
    convert = {"name": "hub_call", "arguments": {"calls": [{"tool": "time.convert", "input": ZONE}]}}
    mark = upstream.teach([{"calls": [convert]}], [{"text": "That is all."}])
    section = GUIDE.read_text().partition("## Approvals that are given elsewhere")[2]
    [code] = re.findall(r"```js\n(.*?)```", section, re.DOTALL)
    seen = run_node(
        "approval_elsewhere.mjs",
        value={
            "sdk": sdk,
            "code": code,
            "hub": asking_hub.url,
            "headers": asking_hub.headers,
            "session": f"elsewhere-{uuid.uuid4().hex}",
            "text": f"{mark} What time is it?",
        },
    )
    assert text_of(seen["message"]) == "That is all."
    assert (seen["messages"], seen["posts"]) == (2, 1), "nothing is doubled, and the page has asked once"
