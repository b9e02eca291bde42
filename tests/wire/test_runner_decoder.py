"""The V2 events of a runner as our events: each row of the seed's table, and frames that are out of place."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.events import Usage
from dragoman.fold import fold
from dragoman.messages import Message, TextPart, ToolPart
from dragoman.wire.runner.decoder import RunnerDecoder
from dragoman.wire.runner.frames import (
    FrameRefused,
    RunnerUnknown,
    decode_from_hub,
    decode_from_runner,
    encode_runner_frame,
)
from dragoman.wire.ui.encoder import UIStreamEncoder
from tests.effort import rounds

LIMIT = 1_000_000
PLACE = {"sessionId": "s", "turnId": "T"}
CREATE = {"type": "message.create"}
END = {"type": "message.finalize", "reason": "end_turn"}


def new_decoder(message: Message | None = None) -> RunnerDecoder:
    return RunnerDecoder("T", message=message, request_id=lambda frame: f"apr_{frame.question_id}")


def read(fields: Mapping[str, Any]) -> Any:
    return decode_from_runner(json.dumps({**PLACE, **fields}), limit=LIMIT)


def feed(decoder: RunnerDecoder, *frames: Mapping[str, Any]) -> list[e.Event]:
    return [event for frame in frames for event in decoder.feed(read(frame))]


def delta(text: str) -> Mapping[str, Any]:
    return {"type": "message.part.text-delta", "delta": text}


def tool(status: str, id: str = "c1", **fields: Any) -> Mapping[str, Any]:
    update = {"type": "message.part.tool-update", "callId": id, "toolName": "bash"}
    return {**update, "status": status, **fields}


def test_a_final_text_that_begins_as_the_last_block_does_is_not_added_to_it() -> None:
    calls = (tool("running", args={}), tool("completed", result=1))
    frames = (CREATE, delta("Done. "), *calls, delta("Done. "), {**END, "finalText": "Done. Done. "})
    assert text_of(feed(new_decoder(), *frames)) == "Done. Done. "


@pytest.mark.parametrize(
    ("deltas", "final", "text"),
    [
        (["a\ud83d", "\ude00b"], None, "a😀b"),
        (["a\ud83d", "\ude00b"], "a😀b", "a😀b"),
        (["\ud83d", "\ude00\ud83d", "", "\ude00"], None, "😀😀"),
        (["a\ud83d", "b"], None, "a\ufffdb"),
        (["a\ud83d"], None, "a\ufffd"),
        (["a\ud83d"], "a😀 and more", "a😀 and more"),
        (["a\ude00", "\ufffd"], None, "a\ufffd\ufffd"),
    ],
)
def test_a_character_that_was_cut_between_two_deltas_is_whole(
    deltas: Sequence[str], final: str | None, text: str
) -> None:
    decoder = new_decoder()
    frames: list[Any] = [read(frame) for frame in (CREATE, *map(delta, deltas), {**END, "finalText": final})]
    logged: list[Any] = [decode_from_runner(encode_runner_frame(frame), limit=LIMIT) for frame in frames]
    assert logged == frames
    assert text_of([event for frame in logged for event in decoder.feed(frame)]) == text


def text_of(events: Sequence[e.Event]) -> str:
    message = fold(None, events)
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


# Each row of the table.


@pytest.mark.parity
def test_message_create_becomes_start_and_text_start() -> None:
    assert feed(new_decoder(), CREATE) == [e.Start("T"), e.StartStep(), e.TextStart("T")]


@pytest.mark.parity
def test_message_part_text_delta_becomes_text_delta() -> None:
    decoder = new_decoder()
    feed(decoder, CREATE)
    assert feed(decoder, delta("Hi ☃")) == [e.TextDelta("T", "Hi ☃")]


@pytest.mark.parity
def test_tool_update_pending_becomes_tool_input_start() -> None:
    decoder = new_decoder()
    feed(decoder, CREATE)
    start = e.ToolInputStart("c1", "bash", provider_executed=True, dynamic=True)
    assert feed(decoder, tool("pending")) == [e.TextEnd("T"), start]


@pytest.mark.parity
def test_tool_update_running_with_args_becomes_tool_input_available() -> None:
    decoder = new_decoder()
    feed(decoder, CREATE, tool("pending"))
    input = e.ToolInputAvailable("c1", "bash", {"cmd": "ls"}, provider_executed=True, dynamic=True)
    assert feed(decoder, tool("running", args={"cmd": "ls"})) == [input]
    assert feed(decoder, tool("running", args={"cmd": "ls"})) == []


@pytest.mark.parity
def test_tool_update_completed_becomes_tool_output_available() -> None:
    decoder = new_decoder()
    feed(decoder, CREATE, tool("pending"), tool("running", args={}))
    output = e.ToolOutputAvailable("c1", ["a"], provider_executed=True, dynamic=True)
    assert feed(decoder, tool("completed", result=["a"])) == [output]


@pytest.mark.parity
def test_tool_update_error_becomes_tool_output_error() -> None:
    decoder = new_decoder()
    feed(decoder, CREATE, tool("pending"), tool("running", args={}))
    output = e.ToolOutputError("c1", "exit 1", provider_executed=True, dynamic=True)
    assert feed(decoder, tool("error", error="exit 1")) == [output]


def test_tool_update_completed_without_earlier_ones_brings_its_input() -> None:
    decoder = new_decoder()
    feed(decoder, CREATE)
    events = feed(decoder, tool("completed", args={"cmd": "ls"}, result="a"))
    assert [event.type for event in events] == [
        "text-end",
        "tool-input-start",
        "tool-input-available",
        "tool-output-available",
    ]


def test_a_result_of_a_running_call_is_preliminary() -> None:
    decoder = new_decoder()
    feed(decoder, CREATE, tool("pending"))
    events = feed(decoder, tool("running", args={}, result="10 %"))
    assert events[-1] == e.ToolOutputAvailable(
        "c1", "10 %", provider_executed=True, dynamic=True, preliminary=True
    )


@pytest.mark.parity
def test_finalize_end_turn_becomes_text_end_finish_step_and_finish() -> None:
    decoder = new_decoder()
    feed(decoder, CREATE, delta("Hi"))
    usage = {"inputTokens": 3, "outputTokens": 4}
    assert feed(decoder, {**END, "usage": usage, "cost": 0.5, "model": "m"}) == [
        e.TextEnd("T"),
        e.FinishStep("stop", Usage(input_tokens=3, output_tokens=4), "m"),
        e.Finish("stop", usage=Usage(input_tokens=3, output_tokens=4), cost=0.5, steps=1),
    ]


@pytest.mark.parity
def test_finalize_error_becomes_error_and_finish() -> None:
    decoder = new_decoder()
    feed(decoder, CREATE, delta("Hi"))
    events = feed(decoder, {"type": "message.finalize", "reason": "error", "error": "no disk"})
    assert events[-2:] == [e.ErrorEvent("no disk", "runner"), e.Finish("error", steps=1)]
    assert [event.type for event in events] == ["text-end", "finish-step", "error", "finish"]


@pytest.mark.parity
def test_finalize_canceled_becomes_text_end_and_finish() -> None:
    decoder = new_decoder()
    feed(decoder, CREATE, delta("Hi"))
    events = feed(decoder, {"type": "message.finalize", "reason": "canceled"})
    assert [event.type for event in events] == ["text-end", "finish-step", "abort", "finish"]
    assert isinstance(events[-1], e.Finish)
    assert events[-1].finish_reason == "aborted"


@pytest.mark.parity
def test_complete_ends_a_turn_that_was_not_finalized() -> None:
    decoder = new_decoder()
    feed(decoder, CREATE, delta("Hi"))
    events = feed(decoder, {"type": "complete"})
    assert [event.type for event in events] == ["text-end", "finish-step", "finish"]


@pytest.mark.parity
def test_agent_status_becomes_data_agent_status() -> None:
    decoder = new_decoder()
    feed(decoder, CREATE)
    status = {"type": "agentStatus", "status": "thinking", "detail": "reads"}
    body = {"status": "thinking", "detail": "reads"}
    assert feed(decoder, status) == [e.Data("data-agent-status", body, transient=True)]


@pytest.mark.parity
def test_question_becomes_data_question() -> None:
    decoder = new_decoder()
    feed(decoder, CREATE)
    question = {"text": "Which?", "options": ["a", "b"]}
    events = feed(decoder, {"type": "question", "questionId": "q1", **question})
    body = {"id": "apr_q1", "toolCallId": "question-q1", **question, "status": "pending"}
    assert events == [
        e.TextEnd("T"),
        e.ToolInputAvailable("question-q1", "question", {"questionId": "q1", **question}),
        e.Data("data-question", body, "apr_q1"),
    ]
    assert decoder.is_waiting
    assert decoder.take_answer("apr_q1", approved=True, text="a") == [
        e.ToolOutputAvailable("question-q1", "a")
    ]
    assert not decoder.is_waiting


@pytest.mark.parity
@pytest.mark.parametrize("type", ["status", "git-state", "diff", "review", "child-session", "toast", "audit"])
def test_v2_domain_events_become_nothing_in_the_chat(type: str) -> None:
    decoder = new_decoder()
    feed(decoder, CREATE)
    frame = read({"type": type, "branch": "main"})
    assert (frame.name, frame.data) == (type, {"branch": "main"})
    assert decoder.feed(frame) == []


def test_named_data_becomes_data_of_that_name() -> None:
    decoder = new_decoder()
    feed(decoder, CREATE)
    events = feed(decoder, {"type": "data-diff", "id": "d", "data": {"files": 2}})
    assert events == [e.Data("data-diff", {"files": 2}, "d")]


@pytest.mark.parity
@pytest.mark.parametrize(
    "type", ["message", "message.updated", "chunk", "init", "unheard-of", "data-", "data"]
)
def test_unknown_events_become_nothing(type: str) -> None:
    decoder = new_decoder()
    feed(decoder, CREATE)
    frame = read({"type": type, "seq": 2, "content": "x"})
    assert isinstance(frame, RunnerUnknown)
    assert decoder.feed(frame) == []
    assert decoder.seq == 2


@pytest.mark.parametrize("type", ["data-question", "data-agent-status"])
def test_a_runner_does_not_make_up_data_that_means_something_to_the_hub(type: str) -> None:
    decoder = new_decoder()
    feed(decoder, CREATE)
    assert feed(decoder, {"type": type, "data": {"status": "pending"}}) == []


@pytest.mark.parity
def test_a_full_turn_is_a_valid_stream() -> None:
    decoder = new_decoder()
    frames = [CREATE, delta("Let me "), delta("look."), tool("pending"), tool("running", args={"cmd": "ls"})]
    events = feed(decoder, *frames, tool("completed", result="a"), delta("One file."), END)
    message = fold(None, events)
    assert [part.type for part in message.parts] == [
        "step-start",
        "text",
        "dynamic-tool",
        "step-start",
        "text",
    ]
    call = next(part for part in message.parts if isinstance(part, ToolPart))
    assert (call.state, call.output, call.provider_executed) == ("output-available", "a", True)
    stream = UIStreamEncoder(sdk=6).encode(events).decode()
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    assert chunks[0] == {"type": "start", "messageId": "T"}
    assert {"type": "text-start", "id": "T"} in chunks
    assert chunks[-1]["type"] == "finish"


# finalText.


@pytest.mark.parity
@pytest.mark.parametrize(
    ("frames", "final", "expected"),
    [
        ([], "All of it", "All of it"),
        ([delta("All ")], "All of it", "All of it"),
        ([delta("All of it")], "All of it", "All of it"),
        ([delta("All of it ")], "All of it", "All of it "),
        ([delta("All "), delta("it")], "All of it", "All of it"),
        ([delta("half \ufffd")], "half 😀", "half \ufffd"),
        ([delta("Look. "), tool("completed", result=1), delta("On")], "Look. One file", "Look. One file"),
        ([delta("Look. "), tool("completed", result=1), delta("On")], "One file", "Look. One file"),
        ([delta("Look. "), tool("completed", result=1), delta("O file")], "Look. One file", "Look. One file"),
        ([delta("Look. "), tool("completed", result=1)], "Look. One file", "Look. One file"),
    ],
)
def test_final_text_repairs_lost_deltas(frames: list[Mapping[str, Any]], final: str, expected: str) -> None:
    decoder = new_decoder()
    events = feed(decoder, CREATE, *frames, {**END, "finalText": final})
    assert text_of(events) == expected


@pytest.mark.parity
def test_whatever_is_lost_of_one_text_final_text_brings_it_back() -> None:
    for seed in range(rounds(quick=100, thorough=3_000)):
        source = random.Random(seed)
        deltas = [source.choice(["a", "b ", "c", "☃", "dd"]) for _ in range(source.randint(1, 30))]
        arrived = [text for text in deltas if source.random() < 0.7]
        events = feed(new_decoder(), CREATE, *map(delta, arrived), {**END, "finalText": "".join(deltas)})
        assert text_of(events) == "".join(deltas), seed


# Questions and approvals in a message that goes on.


def test_a_turn_goes_on_in_another_run_after_an_approval() -> None:
    decoder = new_decoder()
    approval = {"type": "question", "questionId": "q", "callId": "c1", "approval": True}
    events = feed(decoder, CREATE, delta("I ask."), tool("running", args={"cmd": "rm"}), approval)
    assert events[-1] == e.ToolApprovalRequest("apr_q", "c1")
    assert decoder.is_waiting
    first = fold(None, [*events, *decoder.pause()])
    again = new_decoder(first)
    again.seq = decoder.seq
    response = e.ToolApprovalResponse("apr_q", True)
    assert again.waiting_requests() == ["apr_q"]
    output = again.take_answer("apr_q", approved=True)
    rest = feed(again, tool("completed", result="gone"), delta("Done."), {**END, "finalText": "I ask.Done."})
    message = fold(first, [e.Start("T"), response, *output, *rest])
    assert [part.type for part in message.parts] == [
        "step-start",
        "text",
        "dynamic-tool",
        "step-start",
        "text",
    ]
    assert [part.state for part in message.tool_calls] == ["output-available"]


def test_text_that_comes_before_the_output_of_an_approved_call_waits_for_it() -> None:
    decoder = new_decoder()
    approval = {"type": "question", "questionId": "q", "callId": "c1", "approval": True}
    first = fold(None, [*feed(decoder, CREATE, tool("running", args={}), approval), *decoder.pause()])
    again = new_decoder(first)
    again.take_answer("apr_q", approved=True)
    assert feed(again, delta("It runs.")) == []
    events = feed(again, tool("completed", result=1), END)
    message = fold(first, [e.Start("T"), e.ToolApprovalResponse("apr_q", True), *events])
    assert [part.text for part in message.parts if isinstance(part, TextPart)] == ["", "It runs."]


def test_a_denied_call_is_closed_and_what_the_runner_says_of_it_is_nothing() -> None:
    decoder = new_decoder()
    approval = {"type": "question", "questionId": "q", "callId": "c1", "approval": True}
    feed(decoder, CREATE, tool("running", args={}), approval)
    assert decoder.take_answer("apr_q", approved=False, text="no") == [e.ToolOutputDenied("c1")]
    assert feed(decoder, tool("error", error="denied")) == []


# What is refused, with a word.


@pytest.mark.parametrize(
    ("before", "frame", "code"),
    [
        ([], delta("x"), "out_of_order"),
        ([], tool("pending"), "out_of_order"),
        ([CREATE], CREATE, "out_of_order"),
        ([CREATE], {**delta("x"), "seq": 3}, "out_of_order"),
        ([CREATE], {**delta("x"), "seq": 1}, "repeated"),
        ([CREATE, tool("completed", result=1)], tool("completed", result=1), "late"),
        ([CREATE, END], delta("x"), "late"),
        ([CREATE, END], END, "late"),
        ([CREATE, END], {"type": "complete"}, "late"),
    ],
)
def test_frames_out_of_place_are_refused_with_a_word(
    before: list[Mapping[str, Any]], frame: Mapping[str, Any], code: str
) -> None:
    decoder = new_decoder()
    feed(decoder, *before)
    seq = decoder.seq
    with pytest.raises(FrameRefused) as caught:
        feed(decoder, frame)
    assert (caught.value.code, caught.value.session_id, caught.value.turn_id) == (code, "s", "T")
    assert decoder.seq == seq
    assert decode_from_hub(encode_runner_frame(caught.value.to_frame())) == caught.value.to_frame()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '"text"',
        "{",
        '{"type": 1}',
        '{"type": "message.create"}',
        '{"type": "message.part.text-delta", "sessionId": "s", "turnId": "T"}',
        '{"type": "message.part.text-delta", "sessionId": "s", "turnId": "T", "delta": 1}',
        '{"type": "message.part.text-delta", "sessionId": "s", "turnId": "T", "delta": "", "seq": -1}',
        '{"type": "message.finalize", "sessionId": "s", "turnId": "T", "reason": "bored"}',
        '{"type": "message.create", "sessionId": "s", "turnId": "T", "x": ' + "[" * 5_000 + "]" * 5_000 + "}",
        '{"type": "message.create", "sessionId": "s", "turnId": "T", "x": [' + "1," * 200_000 + "1]}",
        '{"type": "message.create", "x": "' + "y" * LIMIT + '"}',
        '{"type": "message.create", "sessionId": "s", "turnId": "T", "x": NaN}',
        "\x00\x01",
    ],
    ids=range(16),
)
def test_garbage_fails_its_own_frame(text: str) -> None:
    with pytest.raises(FrameRefused):
        decode_from_runner(text, limit=LIMIT)


def test_half_of_an_emoji_is_replaced() -> None:
    frame = decode_from_runner(
        '{"type": "message.part.text-delta", "sessionId": "s", "turnId": "T", "delta": "a\\ud83db"}',
        limit=LIMIT,
    )
    assert feed_one(frame) == [e.TextDelta("T", "a\ufffdb")]


def feed_one(frame: Any) -> list[e.Event]:
    decoder = new_decoder()
    feed(decoder, CREATE)
    return decoder.feed(frame)


def test_any_sequence_of_frames_is_refused_or_makes_a_valid_message() -> None:
    choices = [
        CREATE,
        delta("x"),
        delta(""),
        tool("pending"),
        tool("running", args={}),
        tool("running", result=1),
        tool("completed", result=2),
        tool("error", "c2", error={"message": "no"}),
        tool("running", "c2", args={}),
        {"type": "question", "questionId": "q", "text": "?"},
        {"type": "question", "questionId": "p", "callId": "c1", "approval": True},
        {"type": "agentStatus", "status": "idle"},
        {"type": "data-x", "data": 1},
        {"type": "nothing"},
        {**END, "finalText": "xxxx"},
        {"type": "message.finalize", "reason": "error"},
    ]
    for seed in range(rounds(quick=300, thorough=20_000)):
        source = random.Random(seed)
        decoder, events = new_decoder(), list[e.Event]()
        for number in range(source.randint(1, 25)):
            try:
                events += decoder.feed(read(CREATE if number == 0 and seed % 5 else source.choice(choices)))
            except FrameRefused:
                continue
            if decoder.phase != "finished" and source.random() < 0.1:
                for request in decoder.waiting_requests():
                    events += answered(decoder, request, approved=source.random() < 0.5)
        if decoder.phase not in ("finished", "idle"):
            events += decoder.feed(read(END))
        message = fold(None, events)
        assert msgspec.json.encode(message), seed
        if events:
            assert isinstance(events[-1], e.Finish), seed


def answered(decoder: RunnerDecoder, request: str, *, approved: bool) -> list[e.Event]:
    response = [e.ToolApprovalResponse(request, approved)] if request == "apr_p" else []
    return [*response, *decoder.take_answer(request, approved=approved, text="t")]
