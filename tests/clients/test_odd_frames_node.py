"""Odd frames of vendors: the official Node SDKs read what the relay makes of them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from dragoman.wire.openai.tap import OpenAITap
from tests.clients.driver import run_node
from tests.wire import test_anthropic_odd_events as anthropic_table
from tests.wire import test_openai_odd_frames as openai_table
from tests.wire.openai_streams import sse

Json = dict[str, Any]


def openai_streams() -> dict[str, bytes]:
    before, after = sse(*openai_table.BEFORE, done=False), sse(*openai_table.AFTER)
    return {
        **{
            f"{name} × {times}": before + openai_table.written(odd) * times + after
            for name, odd in openai_table.ODD.items()
            for times in (1, 3)
        },
        **{f"call: {name}": openai_table.stream_of_calls(name) for name in openai_table.CALLS},
        **{f"role: {name}": openai_table.stream_of_role(name) for name in openai_table.ROLES},
    }


@cache
def reports() -> dict[tuple[str, str], Json]:
    """What one Node process makes of all streams, by SDK and name."""
    cases: dict[tuple[str, str], bytes] = {}
    for name, raw in openai_streams().items():
        tap = OpenAITap()
        cases["openai", name] = tap.feed(raw) + tap.close()
    for name, events in anthropic_table.ODD.items():
        cases["anthropic", name] = anthropic_table.relay(anthropic_table.encode(events))
    value = [{"sdk": sdk, "body": raw.decode()} for (sdk, _), raw in cases.items()]
    return dict(zip(cases, run_node("odd_frames.mjs", value=value), strict=True))


def folded(sdk: str) -> dict[str, Json]:
    failures = {name: report for name, report in reports().items() if "error" in report}
    assert not failures
    return {name: report["folded"] for (of, name), report in reports().items() if of == sdk}


def test_openais_node_library_reads_the_answer_around_odd_frames() -> None:
    for name, completion in folded("openai").items():
        (choice,) = completion["choices"]
        message = choice["message"]
        assert (message["role"], completion["usage"]["total_tokens"]) == ("assistant", 3), name
        if name.startswith("call: "):
            (call,) = message["tool_calls"]
            function = call["function"]
            arguments = json.loads(function["arguments"])
            assert (call["type"], function["name"], arguments) == ("function", "f", {"a": 1}), name
            assert isinstance(call["id"], str), name
            continue
        text = "Helo" if name.startswith("role: ") else "Hel" + "l" * int(name[-1]) + "o"
        assert (message["content"], choice["finish_reason"]) == (text, "stop"), name


def test_anthropics_node_library_reads_the_message_around_odd_events() -> None:
    for name, message in folded("anthropic").items():
        assert [part["text"] for part in message["content"]] == ["Hello"], name
        assert (message["role"], message["stop_reason"]) == ("assistant", "end_turn"), name
        assert message["usage"]["output_tokens"] == 5, name


def test_plain_iteration_yields_every_relayed_frame() -> None:
    assert reports()["openai", "role null × 1"]["pieces"] == len(openai_table.BEFORE + openai_table.AFTER) + 1
