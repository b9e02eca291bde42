"""The UI dialect: exactly the keys that every v6 and v7 client accepts."""

from __future__ import annotations

import msgspec
import pytest

from dragoman import events as e
from dragoman.wire.ui.encoder import UIStreamEncoder


def frames(batch: list[e.Event], sdk: int = 6) -> list[dict[str, object]]:
    encoded = UIStreamEncoder(sdk=sdk).encode(batch)  # type: ignore[arg-type]  # 6 and 7 from a parameter
    assert not encoded or encoded.endswith(b"\n\n")
    return [msgspec.json.decode(frame.removeprefix(b"data: ")) for frame in encoded.split(b"\n\n") if frame]


METADATA = {"acme": {"x": 1}}


@pytest.mark.parametrize(
    ("event", "six", "seven"),
    [
        (
            e.Start("m", {"a": None}),
            {"type": "start", "messageId": "m", "messageMetadata": {"a": None}},
            None,
        ),
        (e.TextDelta("t", ""), {"type": "text-delta", "id": "t", "delta": ""}, None),
        (
            e.ToolInputStart("c", "x", provider_metadata=METADATA),
            {"type": "tool-input-start", "toolCallId": "c", "toolName": "x"},
            {"type": "tool-input-start", "toolCallId": "c", "toolName": "x", "providerMetadata": METADATA},
        ),
        (
            e.ToolInputAvailable("c", "x", None),
            {"type": "tool-input-available", "toolCallId": "c", "toolName": "x", "input": None},
            None,
        ),
        (
            e.ToolOutputAvailable("c", None),
            {"type": "tool-output-available", "toolCallId": "c", "output": None},
            None,
        ),
        (
            e.ToolOutputError("c", "no", provider_metadata=METADATA),
            {"type": "tool-output-error", "toolCallId": "c", "errorText": "no"},
            {"type": "tool-output-error", "toolCallId": "c", "errorText": "no", "providerMetadata": METADATA},
        ),
        (e.FinishStep("stop", usage=e.Usage(1, 2), model="m", duration=0.1), {"type": "finish-step"}, None),
        (e.ErrorEvent("no", "rate_limit", transient=True), {"type": "error", "errorText": "no"}, None),
        (e.Abort("stopped"), {"type": "abort"}, {"type": "abort", "reason": "stopped"}),
        (
            e.Finish("max-steps", {"finishReason": "max-steps"}, usage=e.Usage(1), cost=0.1, steps=3),
            {"type": "finish", "finishReason": "other", "messageMetadata": {"finishReason": "max-steps"}},
            None,
        ),
        (
            e.Data("data-x", None, "i", transient=True),
            {"type": "data-x", "data": None, "id": "i", "transient": True},
            None,
        ),
    ],
)
def test_an_event_is_encoded_without_extra_keys(
    event: e.Event, six: dict[str, object], seven: dict[str, object] | None
) -> None:
    assert frames([event]) == [six]
    assert frames([event], sdk=7) == [seven or six]


def test_events_and_fields_unknown_to_v6_clients_are_omitted() -> None:
    news: list[e.Event] = [e.ToolApprovalResponse("p", approved=True)]
    assert frames(news) == []
    assert [frame["type"] for frame in frames(news, sdk=7)] == ["tool-approval-response"]


def test_a_step_that_is_withdrawn_is_one_of_its_own_with_a_mark_for_v6_clients() -> None:
    assert frames([e.ResetStep()]) == [
        {"type": "data-reset-step", "data": {}},
        {"type": "finish-step"},
        {"type": "start-step"},
    ]
    assert frames([e.ResetStep()], sdk=7) == [{"type": "reset-step"}]


def test_keys_that_break_the_client_are_removed_at_any_depth() -> None:
    output = {"a": [{"__proto__": 1, "b": 2}], "constructor": {"prototype": 1}, "c": {"constructor": 3}}
    (frame,) = frames([e.ToolOutputAvailable("c", output)])
    assert frame["output"] == {"a": [{"b": 2}], "c": {"constructor": 3}}
    (frame,) = frames([e.TextDelta("t", 'the key "__proto__" and "prototype"')])
    assert frame["delta"] == 'the key "__proto__" and "prototype"'


def test_nan_and_infinity_never_reach_the_wire() -> None:
    (frame,) = frames([e.ToolOutputAvailable("c", {"x": float("nan"), "y": float("inf")})])
    assert frame["output"] == {"x": None, "y": None}


REQUEST = e.ToolApprovalRequest("p", "c")
OUTPUT = e.ToolOutputAvailable("c", 1)
DENIED = e.ToolOutputDenied("c")


@pytest.mark.parametrize(
    ("batch", "six"),
    [
        ([REQUEST], ["tool-approval-request"]),
        ([REQUEST, e.ToolApprovalResponse("p", approved=True), OUTPUT], ["tool-output-available"]),
        ([REQUEST, e.ToolApprovalResponse("p", approved=False), DENIED], ["tool-output-error"]),
        ([e.ToolApprovalResponse("p", approved=False), DENIED], ["tool-output-denied"]),
        (
            [e.ToolApprovalRequest("other", "d"), REQUEST, e.ToolApprovalResponse("p", approved=True)],
            ["tool-approval-request"],
        ),
    ],
)
def test_version_6_gets_no_request_that_is_decided(batch: list[e.Event], six: list[str]) -> None:
    assert [frame["type"] for frame in frames(batch)] == six
    assert len(frames(batch, sdk=7)) == len(batch)


def test_a_denial_without_its_request_says_why() -> None:
    batch: list[e.Event] = [
        REQUEST,
        e.ToolApprovalResponse("p", approved=False, reason="no way"),
        DENIED,
    ]
    [frame] = frames(batch)
    assert frame == {"type": "tool-output-error", "toolCallId": "c", "errorText": "denied: no way"}
