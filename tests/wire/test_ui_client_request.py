"""The AI SDK's chat request: each action of a client, as in the wire notes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.errors import BadRequest, TooLarge
from dragoman.messages import FilePart, Message, TextPart
from dragoman.model_request import Tool
from dragoman.wire.ui.client_request import (
    ChatAction,
    ClientApprovalAnswer,
    ClientToolOutput,
    ContinueAnswer,
    EditMessage,
    NewMessage,
    RegenerateAnswer,
    parse_chat_request,
)

ASK = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
ANSWER = {"id": "a1", "role": "assistant", "parts": [{"type": "step-start"}, {"type": "text", "text": "ho"}]}
MORE = {"id": "u2", "role": "user", "parts": [{"type": "text", "text": "more"}]}
SAID = Message("u1", "user", (TextPart("hi"),))
SAID_MORE = Message("u2", "user", (TextPart("more"),))


def parse(**body: Any) -> ChatAction:
    return parse_chat_request(msgspec.json.encode({"id": "s", **body})).action


@pytest.mark.parametrize(
    ("body", "turn"),
    [
        ({"messages": [ASK], "trigger": "submit-message"}, NewMessage(SAID)),
        ({"messages": [ASK, ANSWER, MORE]}, NewMessage(SAID_MORE)),
        ({"message": ASK}, NewMessage(SAID)),
        ({"messages": [ASK], "trigger": "submit-message", "messageId": "u1"}, EditMessage(SAID)),
        ({"messages": [ASK, ANSWER], "messageId": "a1"}, ContinueAnswer("a1", steps=1)),
        ({"messages": [ASK, ANSWER]}, ContinueAnswer("a1", steps=1)),
        ({"messages": [ASK], "trigger": "regenerate-message"}, RegenerateAnswer(SAID)),
        (
            {"messages": [ASK, ANSWER, MORE], "trigger": "regenerate-message", "messageId": "x"},
            RegenerateAnswer(SAID_MORE),
        ),
    ],
)
def test_a_request_is_parsed_to_the_users_action(body: dict[str, Any], turn: ChatAction) -> None:
    assert parse(**body) == turn


def test_a_continued_message_has_outputs_and_approval_answers() -> None:
    parts = [
        {"type": "step-start"},
        {"type": "tool-ask", "toolCallId": "c1", "state": "output-available", "input": {}, "output": None},
        {
            "type": "dynamic-tool",
            "toolName": "x",
            "toolCallId": "c2",
            "state": "output-error",
            "errorText": "no",
        },
        {
            "type": "tool-y",
            "toolCallId": "c3",
            "state": "approval-responded",
            "approval": {"id": "p", "approved": False},
        },
        {"type": "tool-z", "toolCallId": "c4", "state": "input-available", "input": {}},
        {"type": "custom", "kind": "acme.thing"},
    ]
    message = {"id": "a1", "role": "assistant", "parts": parts}
    assert parse(messages=[ASK, message], messageId="a1") == ContinueAnswer(
        "a1",
        (ClientToolOutput("c1", None), ClientToolOutput("c2", error_text="no")),
        (ClientApprovalAnswer("p", "c3", approved=False),),
        steps=1,
    )


def test_app_fields_are_read_and_unknown_ones_ignored() -> None:
    raw = msgspec.json.encode(
        {
            "id": "s",
            "messages": [ASK],
            "model": "up/x",
            "agent": "coder",
            "whenBusy": "queue",
            "tools": {"ask": {"description": "Ask", "parameters": {"type": "object"}}},
            "somethingElse": 1,
        }
    )
    request = parse_chat_request(raw)
    assert (request.model, request.agent, request.when_busy) == ("up/x", "coder", "queue")
    assert request.tools == (Tool("ask", "Ask", {"type": "object"}),)


def test_files_of_a_user_message_are_kept() -> None:
    part = {
        "type": "file",
        "mediaType": "image/png",
        "url": "data:image/png;base64,AA==",
        "filename": "a.png",
    }
    turn = parse(messages=[{"id": "u", "role": "user", "parts": [part]}])
    assert turn == NewMessage(Message("u", "user", (FilePart("image/png", part["url"], "a.png"),)))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [ASK], "messageId": "nobody"}, "messageId"),
        ({"messages": [{**ASK, "parts": []}]}, "messages[0]"),
        ({"messages": [{**ASK, "parts": [{"type": "step-start"}]}]}, "messages[0].parts[0]"),
        ({"messages": [{**ASK, "parts": [{"type": "text"}]}]}, "messages[0].parts[0]"),
        ({"messages": [{**ASK, "parts": [{"text": "x"}]}]}, "messages[0].parts[0]"),
        ({"messages": [{**ASK, "role": "system"}]}, "messages[0].role"),
        ({"messages": [ANSWER], "trigger": "regenerate-message"}, "messages[0].role"),
        ({"messages": [ASK], "id": ""}, "id"),
        ({"messages": [ASK], "id": "x" * 201}, "id"),
        ({"messages": [ASK], "tools": [{"description": "x"}]}, "tools[0].name"),
    ],
)
def test_an_invalid_request_names_the_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(**body)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'"x"', b'{"messages": 1}', b"\xff\xfe", b'{"trigger": "other"}']
)
def test_an_invalid_body_is_a_bad_request_with_a_hint(raw: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_chat_request(raw, session_id="s")
    assert caught.value.hint or caught.value.field


def test_a_part_over_the_limit_is_too_large() -> None:
    with pytest.raises(TooLarge, match=r"parts\[0\] has 101 characters"):
        parse_chat_request(
            msgspec.json.encode(
                {"id": "s", "message": {**ASK, "parts": [{"type": "text", "text": "x" * 101}]}}
            ),
            max_part=100,
        )


def test_the_session_in_the_path_must_match_the_body() -> None:
    raw = msgspec.json.encode({"messages": [ASK]})
    assert parse_chat_request(raw, session_id="s").session_id == "s"
    with pytest.raises(BadRequest, match="does not match the session 's'"):
        parse_chat_request(msgspec.json.encode({"id": "t", "messages": [ASK]}), session_id="s")
