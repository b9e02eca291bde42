"""The stream checker (check.mjs) accepts valid streams and reports invalid ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.clients.driver import violations_in

Frame = dict[str, Any]

START: Frame = {"type": "start", "messageId": "m1"}
STEP: Frame = {"type": "start-step"}
STEP_END: Frame = {"type": "finish-step"}
FINISH: Frame = {"type": "finish", "finishReason": "stop"}
TEXT: list[Frame] = [
    {"type": "text-start", "id": "t"},
    {"type": "text-delta", "id": "t", "delta": "Hi"},
    {"type": "text-end", "id": "t"},
]
INPUT: list[Frame] = [
    {"type": "tool-input-start", "toolCallId": "c", "toolName": "hub_call"},
    {"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": "{}"},
    {"type": "tool-input-available", "toolCallId": "c", "toolName": "hub_call", "input": {}},
]
OUTPUT: Frame = {"type": "tool-output-available", "toolCallId": "c", "output": 42}
ERROR: Frame = {"type": "error", "errorText": "no"}


def body(*frames: Frame, done: bool = True) -> str:
    events = [json.dumps(frame) for frame in frames] + ["[DONE]"] * done
    return "".join(f"data: {event}\n\n" for event in events)


def turn(*frames: Frame) -> str:
    """A whole turn of one step that holds these frames."""
    return body(START, STEP, *frames, STEP_END, FINISH)


Context = dict[str, Any]

GOOD: dict[str, tuple[str, Context]] = {
    "a text": (turn(*TEXT), {}),
    "comments and CRLF": (": hello\r\n\r\n" + turn(*TEXT).replace("\n", "\r\n"), {}),
    "a tool turn": (body(START, STEP, *INPUT, OUTPUT, STEP_END, STEP, *TEXT, STEP_END, FINISH), {}),
    "a tool of the page": (
        body(START, STEP, *INPUT, STEP_END, {**FINISH, "finishReason": "tool-calls"}),
        {},
    ),
    "a continuation": (
        body(START, OUTPUT, STEP, *TEXT, STEP_END, FINISH),
        {"known": ["c"], "messageId": "m1"},
    ),
    "a finished call retold": (turn(*INPUT[:2], OUTPUT), {"method": "GET"}),
    "an error": (body(START, STEP, STEP_END, ERROR), {}),
    "a body that this side cut": (body(START, STEP, *TEXT[:2], done=False) + 'data: {"ty', {"cut": True}),
}

BAD: dict[str, tuple[str, Context, str]] = {
    "no messageId": (body({"type": "start"}, FINISH), {}, "start has no messageId"),
    "another message": (turn(*TEXT), {"messageId": "m0"}, "should go on with message m0"),
    "an id used before": (turn(*TEXT), {"used": ["m1"]}, "the id of another message"),
    "no start": (body(STEP, *TEXT, STEP_END, FINISH), {}, "the first frame is not start"),
    "an extra key": (turn(*TEXT, {**OUTPUT, "usage": 1}), {}, "strict schema of ai 6.0.1"),
    "an extra key for ai 7": (turn({**TEXT[0], "usage": 1}), {"sdk7": True}, "ai 7 does not name: usage"),
    "a null": (turn({**TEXT[0], "providerMetadata": None}), {}, "schema of ai 7: providerMetadata"),
    "a missing output": (
        turn(*INPUT, {"type": "tool-output-available", "toolCallId": "c"}),
        {},
        "strict schema of ai 6.0.1: output",
    ),
    "an unknown type": (turn({"type": "step-start"}), {}, "a type that the schema does not know"),
    "a finish reason of another wire": (
        body(START, {**FINISH, "finishReason": "tool_calls"}),
        {},
        "schema of ai 7: finishReason",
    ),
    "text outside of a step": (body(START, *TEXT, FINISH), {}, "outside of a step"),
    "a delta too early": (turn(TEXT[1]), {}, "no such open block"),
    "a block left open": (turn(*TEXT[:2]), {}, 'the block "text t" is still open'),
    "a block left open at an error": (body(START, STEP, *TEXT[:2], ERROR), {}, "is still open"),
    "text after a result": (turn(*INPUT, OUTPUT, *TEXT), {}, "begins a new step"),
    "an output before its input": (turn(INPUT[0], OUTPUT), {}, "the output of a call that is streaming"),
    "an output of nothing": (turn(OUTPUT), {}, "the output of an unknown call"),
    "an output in the next step": (
        body(START, STEP, *INPUT, STEP_END, STEP, OUTPUT, STEP_END, FINISH),
        {},
        "not in its call's step",
    ),
    "a call without an end": (turn(*INPUT), {}, "neither an output nor an error"),
    "a frame after finish": (body(START, FINISH, STEP), {}, "a frame after finish"),
    "no finish": (body(START, STEP, *TEXT, STEP_END), {}, "without finish or error"),
    "no [DONE]": (body(START, FINISH, done=False), {}, "the last event is not data: [DONE]"),
    "an event name": ("event: ping\n" + turn(*TEXT), {}, "neither data nor a comment"),
    "a frame that is not JSON": ("data: {]\n\n" + turn(*TEXT), {}, "not a frame"),
    "a cut last event": (body(START, FINISH, done=False) + "data: [DONE]", {}, "no blank line"),
    "headers of a plain page": (turn(*TEXT), {"headers": {}}, "headers: content-type is null"),
}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, list[str]]:
    """What the judge says about each case."""
    cases = {**GOOD, **{name: case[:2] for name, case in BAD.items()}}
    judged = violations_in([{"body": stream, **context} for stream, context in cases.values()])
    return dict(zip(cases, judged, strict=True))


@pytest.mark.parametrize("case", GOOD)
def test_the_judge_lets_pass_a_stream_that_keeps_the_rules(verdicts: dict[str, list[str]], case: str) -> None:
    assert verdicts[case] == []


@pytest.mark.parametrize("case", BAD)
def test_the_judge_notices_what_is_wrong_with_a_stream(verdicts: dict[str, list[str]], case: str) -> None:
    assert BAD[case][2] in "\n".join(verdicts[case])
