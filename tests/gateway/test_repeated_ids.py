"""Calls with the same id in one answer, and several finish reasons, in answers that are relayed."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from tests.gateway.sdk_clients import Pair, completion, final, message, snapshot
from tests.gateway.test_anthropic_sdk import WHOLE as MESSAGE
from tests.gateway.test_openai_sdk import WHOLE as COMPLETION
from tests.gateway.upstream import Answer, Stage, document
from tests.wire.anthropic_streams import STOP, call, start, stop
from tests.wire.anthropic_streams import sse as anthropic_sse
from tests.wire.openai_streams import chunk, sse
from tests.wire.responses_streams import ending, item_events, opening, response
from tests.wire.responses_streams import sse as responses_sse

IDS = [["a", "a", "b"], ["", "", "a"], ["a", "b", "c"]]


def chat_call(index: int, id: str) -> dict[str, Any]:
    function = {"name": f"tool{index}", "arguments": f'{{"x":{index}}}'}
    return {"index": index, "id": id, "type": "function", "function": function}


@pytest.mark.parametrize("ids", IDS)
def test_each_call_of_a_chat_answer_has_an_id_of_its_own(stage: Stage, chat: Pair, ids: list[str]) -> None:
    calls = [chat_call(index, id) for index, id in enumerate(ids)]
    stage.upstream.play(
        Answer(body=sse(*(chunk({"tool_calls": [each]}) for each in calls), chunk(finish="tool_calls")))
    )
    whole = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "message": whole, "finish_reason": "tool_calls"}
    answers = [snapshot(chat.hub, "oai/m")]
    stage.upstream.play(document({**COMPLETION, "choices": [choice]}))
    answers.append(completion(chat.hub, "oai/m"))
    for answer in answers:
        found = answer.choices[0].message.tool_calls
        assert [each.function.name for each in found] == ["tool0", "tool1", "tool2"]
        assert [each.function.arguments for each in found] == ['{"x":0}', '{"x":1}', '{"x":2}']
        call_ids = [each.id for each in found]
        assert len(set(call_ids)) == 3
        assert all(call_ids)
        if len(set(ids)) == 3:
            assert call_ids == ids


@pytest.mark.parametrize("ids", IDS)
def test_each_call_of_a_message_has_an_id_of_its_own(stage: Stage, messages: Pair, ids: list[str]) -> None:
    blocks = [{"type": "tool_use", "id": id, "name": "t", "input": {"x": n}} for n, id in enumerate(ids)]
    events = [event for n, id in enumerate(ids) for event in call(n, id, "t", f'{{"x":{n}}}')]
    stage.upstream.play(Answer(body=anthropic_sse(start(), *events, stop("tool_use"), STOP)))
    answers = [final(messages.hub, "ant/m")]
    stage.upstream.play(document({**MESSAGE, "content": blocks, "stop_reason": "tool_use"}))
    answers.append(message(messages.hub, "ant/m"))
    for answer in answers:
        assert [block.input for block in answer.content] == [{"x": 0}, {"x": 1}, {"x": 2}]
        call_ids = [block.id for block in answer.content]
        assert len(set(call_ids)) == 3
        assert all(call_ids)
        if len(set(ids)) == 3:
            assert call_ids == ids


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (["stop", "stop"], "stop"),
        (["length", "stop"], "length"),
        (["stop", "length"], "length"),
        (["tool_calls", "stop"], "tool_calls"),
        (["content_filter", "stop", "stop"], "content_filter"),
    ],
)
def test_a_later_stop_does_not_hide_why_an_answer_ended(
    stage: Stage, chat: Pair, reasons: list[str], expected: str
) -> None:
    ends = [chunk(finish=reason) for reason in reasons]
    body = sse(chunk({"role": "assistant", "content": "Hi"}), *ends)
    stage.upstream.play(Answer(body=body))
    stream = chat.hub.chat.completions.create(
        model="oai/m", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    found = [each.choices[0].finish_reason for each in stream if each.choices]
    assert [reason for reason in found if reason][-1] == expected
    assert len([reason for reason in found if reason]) == len(reasons)


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
@pytest.mark.parametrize("repeats_output", [True, False])
def test_each_call_of_a_response_has_an_id_of_its_own(
    stage: Stage, ids: list[str], kind: str, repeats_output: bool
) -> None:
    field = "arguments" if kind == "function_call" else "input"
    items = [
        {
            "id": f"fc_{n}",
            "type": kind,
            "status": "completed",
            "call_id": id,
            "name": "t",
            field: f'{{"x":{n}}}',
        }
        for n, id in enumerate(ids)
    ]
    events = [event for n, item in enumerate(items) for event in item_events(n, item)]
    end = ending(*(items if repeats_output else ()))
    stage.upstream.play(Answer(body=responses_sse(*opening(), *events, end)))
    client = OpenAI(base_url=f"{stage.url}/v1", api_key=stage.key, max_retries=0)
    with client.responses.stream(model="res/m", input="hi", store=False) as stream:
        seen: dict[int, set[str]] = {}
        event: Any
        for event in stream:
            if event.type in ("response.output_item.added", "response.output_item.done"):
                seen.setdefault(event.output_index, set()).add(event.item.call_id)
        answers: list[Any] = [stream.get_final_response()]
    assert [len(found) for found in seen.values()] == [1, 1, 1]
    assert [item.call_id for item in answers[0].output] == [found.pop() for found in seen.values()]
    stage.upstream.play(document(response("completed", items)))
    answers.append(client.responses.create(model="res/m", input="hi", store=False))
    for answer in answers:
        assert [getattr(item, field) for item in answer.output] == ['{"x":0}', '{"x":1}', '{"x":2}']
        call_ids = [item.call_id for item in answer.output]
        assert len(set(call_ids)) == 3
        assert all(call_ids)
        if len(set(ids)) == 3:
            assert call_ids == ids
