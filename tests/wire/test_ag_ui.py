"""The AG-UI dialect: whatever happens in a run, its stream is one that the clients take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from ag_ui.core import Event as AgUiEvent
from ag_ui.core import RunAgentInput
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from dragoman import events as e
from dragoman.errors import BadRequest, DragomanError, TooLarge
from dragoman.messages import FilePart, TextPart
from dragoman.server.ag_ui import last_block
from dragoman.wire.ag_ui.client_request import AgUiRequest, parse_ag_ui_request
from dragoman.wire.ag_ui.encoder import AgUiStreamEncoder, ResponseIds
from dragoman.wire.ag_ui.received_answer import NOTHING_RECEIVED, ReceivedAnswer

IDS = ResponseIds(thread_id="t", run_id="r", hub_run_id="run_1", message_id="msg_1")
ADAPTER: TypeAdapter[Any] = TypeAdapter(AgUiEvent)
OPENINGS = {
    "TEXT_MESSAGE_START": ("messageId", "TEXT_MESSAGE_END"),
    "REASONING_START": ("messageId", "REASONING_END"),
    "REASONING_MESSAGE_START": ("messageId", "REASONING_MESSAGE_END"),
    "TOOL_CALL_START": ("toolCallId", "TOOL_CALL_END"),
    "STEP_STARTED": ("stepName", "STEP_FINISHED"),
}
GROWING = {
    "TEXT_MESSAGE_CONTENT": "TEXT_MESSAGE_START",
    "REASONING_MESSAGE_CONTENT": "REASONING_MESSAGE_START",
    "TOOL_CALL_ARGS": "TOOL_CALL_START",
}
ENDS = {end: (field, start) for start, (field, end) in OPENINGS.items()}


def encode(*batches: Sequence[e.Event], received: ReceivedAnswer = NOTHING_RECEIVED) -> list[dict[str, Any]]:
    encoder = AgUiStreamEncoder(IDS, received=received)
    raw = b"".join([*map(encoder.encode, batches), encoder.end()])
    frames = [frame.removeprefix(b"data: ") for frame in raw.split(b"\n\n") if frame]
    return [msgspec.json.decode(frame) for frame in frames]


def check(bodies: Sequence[dict[str, Any]]) -> None:
    """Raise AssertionError or ValidationError unless the stock clients take the stream."""
    assert bodies[0]["type"] == "RUN_STARTED"
    assert bodies[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR")
    opened: set[tuple[str, str]] = set()
    seen: set[tuple[str, str]] = set()
    for at, body in enumerate(bodies):
        ADAPTER.validate_python(body)
        kind = body["type"]
        assert kind not in ("RUN_FINISHED", "RUN_ERROR") or at == len(bodies) - 1
        if kind in OPENINGS:
            key = (kind, body[OPENINGS[kind][0]])
            assert key not in opened, body
            assert key not in seen, body
            opened.add(key)
            seen.add(key)
        elif kind in GROWING:
            start = GROWING[kind]
            assert (start, body[OPENINGS[start][0]]) in opened, body
        elif kind in ENDS:
            field, start = ENDS[kind]
            opened.remove((start, body[field]))
    assert not opened or bodies[-1]["type"] == "RUN_ERROR", opened


block = st.sampled_from(["a", "b"])
call = st.sampled_from(["c1", "c2"])
QUESTION = {"id": "q1", "toolCallId": "c1", "text": "Which?", "options": ["x"]}
EVENTS = st.one_of(
    st.builds(e.Start, message_id=st.just("msg_1")),
    st.just(e.StartStep()),
    st.just(e.FinishStep()),
    st.builds(e.TextStart, block),
    st.builds(e.TextDelta, block, st.text(max_size=3)),
    st.builds(e.TextEnd, block),
    st.builds(e.ReasoningStart, block),
    st.builds(e.ReasoningDelta, block, st.text(max_size=3)),
    st.builds(e.ReasoningEnd, block),
    st.builds(e.ToolInputStart, call, st.just("paint")),
    st.builds(e.ToolInputDelta, call, st.sampled_from(["{", "}"])),
    st.builds(e.ToolInputAvailable, call, st.just("paint"), st.just({"a": 1})),
    st.builds(e.ToolInputError, call, st.just("paint"), st.just("x"), st.just("wrong")),
    st.builds(e.ToolApprovalRequest, st.just("apr"), call),
    st.builds(e.ToolApprovalResponse, st.just("apr"), st.booleans()),
    st.builds(
        e.ToolOutputAvailable,
        call,
        st.sampled_from(["x", 1, None, {}]),
        preliminary=st.sampled_from([None, True]),
    ),
    st.builds(e.ToolOutputError, call, st.just("failed")),
    st.builds(e.ToolOutputDenied, call),
    st.just(e.SourceUrl("s", "https://example.com")),
    st.just(e.SourceDocument("s", "text/plain", "title")),
    st.just(e.File("data:text/plain,x", "text/plain")),
    st.builds(e.Data, st.just("data-state"), st.sampled_from([1, {"a": 1}, {"a": 2}, {"b~/": None}])),
    st.builds(e.Data, st.just("data-diff"), st.just({"x": 1}), st.sampled_from([None, "d"])),
    st.sampled_from(["pending", "answered"]).map(
        lambda s: e.Data("data-question", {**QUESTION, "status": s}, "q1")
    ),
    st.just(e.MessageMetadata({"x": 1})),
    st.just(e.ResetStep()),
    st.just(e.ErrorEvent("broken", "api_error")),
    st.just(e.Abort("stopped")),
    st.builds(e.Finish, st.sampled_from(["stop", "tool-calls", "error", "aborted", None])),
)


SOME = ReceivedAnswer({"msg_1-1": "ab", "msg_1-2": ""}, {"c1": '{"a":1}'}, frozenset({"c2"}))


@given(st.lists(st.lists(EVENTS, max_size=6), max_size=6), st.sampled_from([SOME, NOTHING_RECEIVED]))
def test_every_stream_is_one_that_the_clients_take(
    batches: list[list[e.Event]], received: ReceivedAnswer
) -> None:
    check(encode(*batches, received=received))


def test_each_event_has_its_place() -> None:
    bodies = encode(
        [
            e.Start("msg_1"),
            e.StartStep(),
            e.ReasoningStart("a"),
            e.ReasoningDelta("a", "hm"),
            e.ReasoningEnd("a"),
        ],
        [e.TextStart("a"), e.TextDelta("a", "Hel"), e.TextDelta("a", "lo"), e.TextEnd("a")],
        [e.ToolInputStart("c1", "paint"), e.ToolInputAvailable("c1", "paint", {"a": 1})],
        [e.ToolOutputAvailable("c1", {"ok": True}), e.FinishStep(), e.Finish("stop")],
    )
    assert [body["type"] for body in bodies] == [
        *("RUN_STARTED", "STEP_STARTED"),
        *("REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT"),
        *("REASONING_MESSAGE_END", "REASONING_END"),
        *("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"),
        *("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"),
        *("STEP_FINISHED", "RUN_FINISHED"),
    ]
    by_type = {body["type"]: body for body in bodies}
    assert by_type["TOOL_CALL_ARGS"]["delta"] == '{"a":1}'
    assert by_type["TOOL_CALL_RESULT"]["content"] == '{"ok":true}'
    assert by_type["TOOL_CALL_START"]["parentMessageId"] == by_type["TEXT_MESSAGE_START"]["messageId"]
    assert by_type["RUN_FINISHED"]["outcome"] == {"type": "success"}


def test_usage_and_the_hubs_ids_are_in_the_frame_that_ends_the_run() -> None:
    metadata = {"usage": {"inputTokens": 3, "cacheWriteTokens": 1}, "provider": "up", "servedModel": "m"}
    started, finished = encode([e.Finish("stop", metadata)])
    assert started["metadata"] == {"runId": "run_1", "messageId": "msg_1"}
    tokens = {"provider": "up", "model": "m", "inputTokens": 3, "cacheWriteInputTokens": 1}
    assert finished["usage"] == [tokens]


def test_what_the_client_has_is_not_sent_again() -> None:
    received = ReceivedAnswer({"msg_1-1": "Hel", "msg_1-2": "other"}, {"c1": '{"a":'}, frozenset())
    bodies = encode(
        [e.StartStep(), e.TextStart("a"), e.TextDelta("a", "Hello"), e.TextEnd("a")],
        [e.TextStart("b"), e.TextDelta("b", "new"), e.TextEnd("b")],
        [e.ToolInputStart("c1", "paint"), e.ToolInputDelta("c1", '{"a":1}'), e.ToolOutputAvailable("c1", 1)],
        [e.FinishStep(), e.Finish("stop")],
        received=received,
    )
    check(bodies)
    grown = [
        (body.get("messageId") or body["toolCallId"], body["delta"]) for body in bodies if "delta" in body
    ]
    assert grown == [("msg_1-1", "lo"), ("msg_1-2r", "new"), ("c1", "1}")]


def test_a_call_that_the_client_has_whole_is_not_sent_again_however_it_writes_the_input() -> None:
    received = ReceivedAnswer({}, {"c1": '{ "b" : 2, "a": 1 }', "c2": "{}"}, frozenset())
    bodies = encode(
        [
            e.ToolInputStart("c1", "paint"),
            e.ToolInputDelta("c1", '{"a":1,'),
            e.ToolInputDelta("c1", '"b":2}'),
        ],
        [e.ToolInputAvailable("c1", "paint", {"a": 1, "b": 2}), e.ToolInputAvailable("c2", "paint", {})],
        [e.ToolOutputAvailable("c1", "done"), e.Finish("tool-calls")],
        received=received,
    )
    check(bodies)
    assert [body["type"] for body in bodies] == ["RUN_STARTED", "TOOL_CALL_RESULT", "RUN_FINISHED"]


def test_a_call_with_a_result_waits_for_no_approval() -> None:
    bodies = encode(
        [e.ToolInputAvailable("c1", "paint", {}), e.ToolApprovalRequest("apr_1", "c1")],
        [e.ToolInputAvailable("c2", "paint", {}), e.ToolApprovalRequest("apr_2", "c2")],
        [e.ToolOutputDenied("c1"), e.Finish("tool-calls")],
    )
    check(bodies)
    assert [each["id"] for each in bodies[-1]["outcome"]["interrupts"]] == ["apr_2"]


def test_values_that_python_takes_for_equal_are_other_states() -> None:
    states: list[Any] = [{"a": 1, "b": [0]}, {"a": True, "b": [0]}, {"a": True, "b": [False]}]
    bodies = encode([e.Data("data-state", state) for state in states])
    deltas = [body["delta"] for body in bodies if body["type"] == "STATE_DELTA"]
    assert msgspec.json.encode(deltas) == (
        b'[[{"op":"replace","path":"/a","value":true}],[{"op":"replace","path":"/b","value":[false]}]]'
    )


@pytest.mark.parametrize(
    ("ids", "last"),
    [
        (["msg_1-1", "msg_1-2"], 2),
        (["msg_1-2"], 2),  # the first was a reasoning, which this client does not send back
        (["msg_1-3r", "msg_1-1"], 3),
        (["msg_1", "msg_10-4", "msg_1-x", "msg_1-", f"msg_1-{'9' * 5000}", "msg_1-\u0663"], 0),
    ],
)
def test_texts_of_a_continued_message_get_numbers_that_the_client_does_not_have(
    ids: list[str], last: int
) -> None:
    assert last_block(ids, "msg_1") == last


def test_state_is_a_snapshot_first_and_then_what_changed() -> None:
    states = [{"a": 1, "b/c": 2}, {"a": 1, "d": 3}, {"a": 1, "d": 3}, [1]]
    bodies = encode([e.Data("data-state", state) for state in states])
    assert [body for body in bodies if body["type"].startswith("STATE")] == [
        {"type": "STATE_SNAPSHOT", "snapshot": states[0]},
        {
            "type": "STATE_DELTA",
            "delta": [{"op": "remove", "path": "/b~1c"}, {"op": "add", "path": "/d", "value": 3}],
        },
        {"type": "STATE_SNAPSHOT", "snapshot": [1]},
    ]


def test_a_stream_that_is_cut_says_so() -> None:
    assert [body["type"] for body in encode([e.StartStep(), e.TextStart("a")])][-1] == "RUN_ERROR"
    assert [body["type"] for body in encode()] == ["RUN_STARTED", "RUN_ERROR"]


# ---- requests ----------------------------------------------------------------------------------------------


def request(*messages: dict[str, Any], **fields: Any) -> bytes:
    return msgspec.json.encode({"threadId": "t", "runId": "r", "messages": messages, **fields})


def user(content: Any = "hi", id: str = "u1") -> dict[str, Any]:
    return {"id": id, "role": "user", "content": content}


def test_only_the_end_of_the_history_is_read() -> None:
    earlier: list[dict[str, Any]] = [
        {"id": 7, "role": "assistant"},
        {"role": "system", "content": []},
        user("old", "u0"),
    ]
    parsed = parse_ag_ui_request(request(*earlier, user()))
    assert parsed == AgUiRequest(thread_id="t", run_id="r", message=parsed.message)
    assert parsed.message is not None
    assert parsed.message.parts == (TextPart("hi"),)


def test_the_input_of_the_python_sdk_is_read() -> None:
    sent = RunAgentInput.model_validate(
        {"threadId": "t", "runId": "r", "messages": [user()], "tools": [], "context": [], "state": {"a": 1}}
    )
    parsed = parse_ag_ui_request(sent.model_dump_json(by_alias=True).encode())
    assert (parsed.thread_id, parsed.tools, parsed.answers) == ("t", (), ())


def test_files_and_the_apps_context_become_parts() -> None:
    image = {"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}}
    old = {"type": "binary", "mimeType": "image/png", "url": "https://example.com/a.png"}
    context = [{"description": "the page", "value": "orders"}]
    parsed = parse_ag_ui_request(
        request(user([{"type": "text", "text": "look"}, image, old]), context=context)
    )
    assert parsed.message is not None
    text, first, second, note = parsed.message.parts
    assert (text, first) == (TextPart("look"), FilePart("image/png", "data:image/png;base64,aGk="))
    assert second == FilePart("image/png", "https://example.com/a.png")
    assert isinstance(note, TextPart)
    assert "- the page: orders" in note.text


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"threadId":"t"}',
        request(),
        request({"id": "a", "role": "assistant", "content": "x"}),
        request(user(), threadId=""),
        request(user(), threadId="t" * 201),
        request(user(), threadId=None),
        request(user(), runId=5),
        request(user([])),
        request(user(None)),
        request(user([{"type": "video"}])),
        request(user([{"type": "image", "source": {"type": "url", "value": "file:///etc/passwd"}}])),
        request(user(id="")),
        request(user(), tools=[{"description": "no name"}]),
        request(user(), tools=3),
        request(user(), context=[{"value": 1}]),
        request(user(), resume=[{"interruptId": "a", "status": "maybe"}]),
        request(user(), {"id": "x", "role": "tool", "toolCallId": 5}),
        request(user(), messages=[1]),
        request(user(), context=[{"description": "d", "value": "v"}] * 101),
    ],
)
def test_what_is_no_run_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_ag_ui_request(raw)


def test_a_part_that_is_too_long_is_refused() -> None:
    with pytest.raises(TooLarge):
        parse_ag_ui_request(request(user("x" * 11)), max_part=10)


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["id", "role", "content", "source", "type", "toolCalls"]), inner, max_size=4
            )
        ),
    )
)
def test_odd_messages_are_refused_and_never_a_crash(message: Any) -> None:
    with pytest.raises(DragomanError):
        parse_ag_ui_request(request(message))
