"""Chat turns in the AI SDK's client."""

from __future__ import annotations

import json

import pytest

from tests.clients.behaviours import calculate
from tests.clients.driver import Driver, shape_of, text_of
from tests.clients.scenarios import ASK_USER, META_TOOLS, assert_kept, send
from tests.clients.upstream import Upstream


def test_a_plain_turn_is_shown_as_the_model_said_it_and_kept(drive: Driver) -> None:
    report = drive(send("#plain Good morning."))
    assert [message["role"] for message in report.messages] == ["user", "assistant"]
    assert shape_of(report.answer) == ["step-start", "text"]
    assert text_of(report.answer) == "Hello from the model."
    assert report.chat["transitions"] == ["ready", "submitted", "streaming", "ready"]
    [finish] = report.chat["finishes"]
    assert (finish["finishReason"], finish["isError"], finish["isAbort"]) == ("stop", False, False)
    assert_kept(report)


def test_a_second_turn_tells_the_model_the_first(drive: Driver, upstream: Upstream) -> None:
    mark = upstream.teach([{"text": "Yes."}])
    report = drive(send("#plain I am Ada."), send(f"{mark} Who am I?"))
    [request] = upstream.requests(mark)
    replies = [(m["role"], m["content"]) for m in request.body["messages"] if m["role"] != "system"]
    assert replies == [
        ("user", "#plain I am Ada."),
        ("assistant", "Hello from the model."),
        ("user", f"{mark} Who am I?"),
    ]
    assert len(report.messages) == 4
    assert_kept(report)


def test_a_tool_call_is_shown_run_and_told_to_the_model(drive: Driver, upstream: Upstream) -> None:
    call = calculate("6*7")
    mark = upstream.teach([{"calls": [call]}], [{"text": "It is 42."}])
    report = drive(send(f"{mark} How much is 6*7?"), auto="tools")
    assert shape_of(report.answer) == ["step-start", "tool-hub_call", "step-start", "text"]
    tool = report.answer["parts"][1]
    assert (tool["state"], tool["input"]) == ("output-available", call["arguments"])
    assert "42" in json.dumps(tool["output"])
    assert text_of(report.answer) == "It is 42."
    first, second = upstream.requests(mark)
    assert {tool["function"]["name"] for tool in first.body["tools"]} == META_TOOLS
    *_, request, message = second.body["messages"]
    assert [call["id"] for call in request["tool_calls"]] == [message["tool_call_id"]]
    assert message["role"] == "tool"
    assert "42" in message["content"]
    assert len(report.posts) == 1
    assert_kept(report)


def test_parallel_calls_share_a_step_and_are_told_in_call_order(drive: Driver, upstream: Upstream) -> None:
    mark = upstream.teach([{"calls": [calculate("2+2"), calculate("3*3")]}], [{"text": "4 and 9."}])
    report = drive(send(f"{mark} 2+2 and 3*3?"), auto="tools")
    assert shape_of(report.answer) == [
        "step-start",
        "tool-hub_call",
        "tool-hub_call",
        "step-start",
        "text",
    ]
    _, four, nine, *_ = report.answer["parts"]
    assert [four["state"], nine["state"]] == ["output-available", "output-available"]
    *_, request, told_four, told_nine = upstream.requests(mark)[1].body["messages"]
    ids = [call["id"] for call in request["tool_calls"]]
    assert ids == [told_four["tool_call_id"], told_nine["tool_call_id"]]
    assert "4" in told_four["content"]
    assert "9" in told_nine["content"]
    assert len(report.posts) == 1
    assert_kept(report)


def test_reasoning_is_shown_apart_from_the_answer(drive: Driver) -> None:
    report = drive(send("#reasoning Why?"))
    assert shape_of(report.answer) == ["step-start", "reasoning", "text"]
    _, thought, answer = report.answer["parts"]
    assert (thought["text"], thought["state"]) == ("Let me think about it.", "done")
    assert (answer["text"], answer["state"]) == ("Thought through.", "done")
    assert_kept(report)


FAILURES = {"#refuse": "", "#midfail": "Half an ", "#cut": "Half an ", "#unfinished": "Half an "}


@pytest.mark.parametrize("mark", FAILURES)
def test_a_failed_turn_is_an_error_and_the_next_turn_is_fine(drive: Driver, mark: str) -> None:
    report = drive(send(f"{mark} Hello?"), send("#plain Still there?"))
    assert "error" in report.chat["transitions"]
    [error] = report.chat["errors"]
    assert error["message"].strip()
    assert "Traceback" not in error["message"]
    assert text_of(report.answer) == "Hello from the model."
    assert report.chat["status"] == "ready"
    halves = [text_of(message) for message in report.stored[1:-2] if message["role"] == "assistant"]
    assert "".join(halves) == FAILURES[mark]


def test_a_tool_that_does_not_exist_is_told_to_the_model_and_the_run_goes_on(
    drive: Driver, upstream: Upstream
) -> None:
    mark = upstream.teach(
        [{"calls": [{"name": "no_such_tool", "arguments": {"a": 1}}]}], [{"text": "Then without it."}]
    )
    report = drive(send(f"{mark} Try it."), auto="tools")
    assert shape_of(report.answer) == ["step-start", "tool-no_such_tool", "step-start", "text"]
    assert report.answer["parts"][1]["state"] == "output-error"
    assert "no_such_tool" in report.answer["parts"][1]["errorText"]
    message = upstream.requests(mark)[1].body["messages"][-1]
    assert (message["role"], "no_such_tool" in message["content"]) == ("tool", True)
    assert len(report.posts) == 1
    assert_kept(report)


def test_calls_that_reuse_an_id_in_the_next_step_stay_apart(drive: Driver, upstream: Upstream) -> None:
    same = {**calculate("1+1"), "id": "call_0"}
    mark = upstream.teach([{"calls": [same]}], [{"calls": [same]}], [{"text": "Twice."}])
    report = drive(send(mark), auto="tools")
    first, second = (part for part in report.answer["parts"] if part["type"] == "tool-hub_call")
    assert first["toolCallId"] != second["toolCallId"]
    assert (first["state"], second["state"]) == ("output-available", "output-available")
    assert_kept(report)


@pytest.mark.parametrize(("text", "reason"), [("length", "length"), ("content_filter", "content-filter")])
def test_an_answer_that_the_model_had_to_cut_says_why(
    drive: Driver, upstream: Upstream, text: str, reason: str
) -> None:
    mark = upstream.teach([{"text": ["Half ", "an "]}, {"finish": text}])
    report = drive(send(mark))
    assert report.chat["status"] == "ready"
    assert [finish["finishReason"] for finish in report.chat["finishes"]] == [reason]
    assert text_of(report.answer) == "Half an "
    assert_kept(report)


def test_the_step_limit_ends_in_a_notice_and_no_client_goes_on_by_itself(
    drive: Driver, upstream: Upstream
) -> None:
    mark = upstream.teach([{"calls": [calculate("1+1")]}], repeat=True)
    report = drive(send(f"{mark} Count for ever."), auto="tools", maxRequests=4)
    assert len(report.posts) == 1
    assert len(upstream.requests(mark)) == 10
    assert report.answer["parts"][-2]["type"] == "step-start"
    assert report.answer["parts"][-1]["type"] == "text"
    assert report.answer["parts"][-1]["text"].strip()
    [finish] = report.chat["finishes"]
    assert (finish["finishReason"], finish["isError"]) == ("other", False)
    assert "max-steps" in json.dumps(report.answer["metadata"])
    assert_kept(report)


def test_regenerating_replaces_the_answer_by_a_new_one(drive: Driver, upstream: Upstream) -> None:
    mark = upstream.teach([{"text": "First try."}], [{"text": "Second try."}], in_order=True)
    report = drive(
        send(f"{mark} Say something."),
        {"do": "request", "name": "before", "path": "/api/sessions/{id}/messages"},
        {"do": "regenerate"},
    )
    assert [text_of(message) for message in report.messages] == [f"{mark} Say something.", "Second try."]
    first, second = upstream.requests(mark)
    assert first.body["messages"] == second.body["messages"]
    before = report.result("before")["json"]["messages"]
    assert before[0]["id"] == report.messages[0]["id"]
    assert text_of(before[1]) == "First try."
    assert_kept(report)


def test_regenerating_an_earlier_answer_drops_what_came_after(drive: Driver, upstream: Upstream) -> None:
    mark = upstream.teach([{"text": "First try."}], [{"text": "Second try."}], in_order=True)
    report = drive(send(f"{mark} Say something."), send("#plain And then?"), {"do": "regenerate", "nth": 0})
    assert [text_of(message) for message in report.messages] == [f"{mark} Say something.", "Second try."]
    assert_kept(report)


def test_editing_a_message_goes_on_from_there(drive: Driver, upstream: Upstream) -> None:
    mark = upstream.teach([{"text": "Hello Ada."}], [{"text": "Hello Grace."}], in_order=True)
    report = drive(
        send(f"{mark} I am Ada."),
        send("#plain And you?"),
        {"do": "edit", "nth": 0, "text": f"{mark} I am Grace."},
    )
    assert [text_of(message) for message in report.messages] == [f"{mark} I am Grace.", "Hello Grace."]
    messages = [m["content"] for m in upstream.requests(mark)[1].body["messages"] if m["role"] != "system"]
    assert messages == [f"{mark} I am Grace."]
    assert_kept(report)


def test_a_tool_of_the_page_is_answered_there_and_the_message_goes_on(
    drive: Driver, upstream: Upstream
) -> None:
    ask = {"name": "ask_user", "arguments": {"question": "Which colour?"}}
    mark = upstream.teach([{"calls": [ask]}], [{"text": "Blue it is."}])
    report = drive(
        send(f"{mark} Paint it."),
        {"do": "output", "tool": "ask_user", "output": {"colour": "blue"}},
        auto="tools",
        body={"tools": [ASK_USER]},
    )
    assert [message["role"] for message in report.messages] == ["user", "assistant"]
    assert shape_of(report.answer) == ["step-start", "tool-ask_user", "step-start", "text"]
    tool = report.answer["parts"][1]
    assert (tool["state"], tool["output"]) == ("output-available", {"colour": "blue"})
    first, second = upstream.requests(mark)
    assert {tool["function"]["name"] for tool in first.body["tools"]} == META_TOOLS | {"ask_user"}
    assert json.loads(second.body["messages"][-1]["content"]) == {"colour": "blue"}
    assert [finish["finishReason"] for finish in report.chat["finishes"]] == ["tool-calls", "stop"]
    assert len({finish["messageId"] for finish in report.chat["finishes"]}) == 1
    assert len(report.posts) == 2
    assert_kept(report)


def test_a_failure_of_the_page_s_tool_is_told_to_the_model(drive: Driver, upstream: Upstream) -> None:
    ask = {"name": "ask_user", "arguments": {"question": "Which colour?"}}
    mark = upstream.teach([{"calls": [ask]}], [{"text": "Never mind."}])
    report = drive(
        send(f"{mark} Paint it."),
        {"do": "output", "errorText": "the user closed the dialogue"},
        auto="tools",
        body={"tools": [ASK_USER]},
    )
    assert report.answer["parts"][1]["state"] == "output-error"
    assert text_of(report.answer) == "Never mind."
    assert "the user closed the dialogue" in upstream.requests(mark)[1].body["messages"][-1]["content"]
    assert_kept(report)


def test_the_hub_s_calls_and_the_page_s_share_a_step(drive: Driver, upstream: Upstream) -> None:
    ask = {"name": "ask_user", "arguments": {"question": "Which colour?"}}
    mark = upstream.teach([{"calls": [calculate("6*7"), ask]}], [{"text": "42 in blue."}])
    report = drive(
        send(f"{mark} Paint 6*7."),
        auto="tools",
        body={"tools": [ASK_USER]},
        clientTools={"ask_user": "blue"},
    )
    assert shape_of(report.answer) == [
        "step-start",
        "tool-hub_call",
        "tool-ask_user",
        "step-start",
        "text",
    ]
    *_, told_sum, told_colour = upstream.requests(mark)[1].body["messages"]
    assert "42" in told_sum["content"]
    assert "blue" in told_colour["content"]
    assert len(report.posts) == 2
    assert_kept(report)


def test_a_user_who_types_instead_of_answering_the_page_s_tool_gets_an_answer(
    drive: Driver, upstream: Upstream
) -> None:
    ask = {"name": "ask_user", "arguments": {"question": "Which colour?"}}
    mark = upstream.teach([{"calls": [ask]}])
    report = drive(
        send(f"{mark} Paint it."),
        send("#plain Forget it."),
        body={"tools": [ASK_USER]},
    )
    assert text_of(report.answer) == "Hello from the model."
    assert report.chat["status"] == "ready"
