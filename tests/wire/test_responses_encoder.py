"""Events as a Responses stream: the whole ladder, as it is written down in the wire notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.errors import BudgetExhausted, DragomanError, ProviderError
from dragoman.wire.openai.field_reader import IgnoredFields
from dragoman.wire.responses.client_request import parse_responses_request
from dragoman.wire.responses.client_tools import ClientTools
from dragoman.wire.responses.encoder import ResponseHead, ResponsesStreamEncoder, encode_document
from dragoman.wire.sse import SSEParser

DONE = e.FinishStep("stop", e.Usage(3, 2, 5, cached_input_tokens=1, cache_write_tokens=2))
OPENING = ["response.created", "response.in_progress"]


def head(*tools: Any, **fields: Any) -> ResponseHead:
    client = ClientTools(IgnoredFields())
    client.add(list(tools), "tools")
    return ResponseHead(id="resp_1", model="p/m", created_at=1, tools=client, **fields)


def frames(raw: bytes) -> list[dict[str, Any]]:
    found = [msgspec.json.decode(frame) for frame in SSEParser().feed(raw)]
    assert [frame["sequence_number"] for frame in found] == list(range(len(found)))
    return found


def encode(events: Sequence[e.Event], at: ResponseHead | None = None) -> list[dict[str, Any]]:
    encoder = ResponsesStreamEncoder(at or head())
    raw = b"".join(encoder.encode([event]) for event in events)
    return frames(raw + encoder.end())


def kinds(found: Sequence[dict[str, Any]]) -> list[str]:
    return [frame["type"] for frame in found]


def test_a_text_climbs_the_whole_ladder_and_the_last_event_has_the_whole_response() -> None:
    found = encode([e.TextStart("t"), e.TextDelta("t", "Hel"), e.TextDelta("t", "lo"), e.TextEnd("t"), DONE])
    assert kinds(found) == [
        *OPENING,
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    part = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    item = {
        "id": "msg_10000",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }
    assert found[2]["item"] == {**item, "status": "in_progress", "content": []}
    assert found[4] == {
        "type": "response.output_text.delta",
        "sequence_number": 4,
        "item_id": "msg_10000",
        "output_index": 0,
        "content_index": 0,
        "delta": "Hel",
        "logprobs": [],
    }
    assert found[6]["text"] == "Hello"
    assert found[7]["part"] == part
    assert found[8]["item"] == item
    response = found[-1]["response"]
    assert (response["status"], response["output"]) == ("completed", [item])
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 2},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 5,
    }


@pytest.mark.parametrize("usage", [e.Usage(None, 7), e.Usage(11, None), e.Usage()])
def test_a_count_that_nobody_made_is_not_zero(usage: e.Usage) -> None:
    """Ollama does not count a prompt that it has cached."""
    found = encode([e.TextDelta("t", "Hi"), e.FinishStep("stop", usage)])
    assert found[-1]["response"]["usage"] is None


def test_reasoning_is_a_summary_and_brings_back_what_its_provider_sealed() -> None:
    signed = {"anthropic": {"signature": "s=="}}
    found = encode([e.ReasoningStart("r"), e.ReasoningDelta("r", "hm"), e.ReasoningEnd("r", signed), DONE])
    assert kinds(found)[2:-1] == [
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.output_item.done",
    ]
    item = found[-2]["item"]
    body = {"model": "p/m", "input": [item]}
    [message] = parse_responses_request(msgspec.json.encode(body)).request.messages
    assert message.reasoning == "hm"
    assert message.parts[0].provider_metadata == signed  # type: ignore[union-attr]


def test_a_call_of_the_client_is_a_function_call_with_its_arguments() -> None:
    found = encode(
        [
            e.ToolInputStart("c1", "weather"),
            e.ToolInputDelta("c1", '{"city":'),
            e.ToolInputDelta("c1", '"Rome"}'),
            e.ToolInputAvailable("c1", "weather", {"city": "Rome"}),
            e.FinishStep("tool-calls"),
        ]
    )
    assert kinds(found)[2:] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert found[-1]["response"]["output"] == [
        {
            "id": "fc_10000",
            "type": "function_call",
            "status": "completed",
            "call_id": "c1",
            "name": "weather",
            "arguments": '{"city":"Rome"}',
        }
    ]


def encode_call(name: str, arguments: str, *, tool: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a response that calls a tool of the client."""
    events: Sequence[e.Event] = [
        e.ToolInputStart("c1", name),
        e.ToolInputDelta("c1", arguments),
        e.ToolInputAvailable("c1", name, msgspec.json.decode(arguments)),
        e.FinishStep("tool-calls"),
    ]
    return encode(events, head(tool))


def test_a_call_of_a_custom_tool_in_a_namespace_goes_back_under_its_own_name() -> None:
    tool = {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]}
    found = encode_call("functions__exec", '{"input":"ls -l\\n"}', tool=tool)
    assert kinds(found)[2:-1] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]
    [item] = found[-1]["response"]["output"]
    assert (item["name"], item["namespace"], item["input"]) == ("exec", "functions", "ls -l\n")


def test_a_call_that_the_hub_runs_is_an_mcp_call_with_its_output() -> None:
    found = encode(
        [
            e.ToolInputStart("c1", "clock.now"),
            e.ToolInputAvailable("c1", "clock.now", {}),
            e.ToolOutputAvailable("c1", {"now": 1}),
            e.FinishStep("tool-calls", e.Usage(1, 1, 2)),
            e.TextStart("t"),
            e.TextDelta("t", "One."),
            e.TextEnd("t"),
            e.FinishStep("stop", e.Usage(2, 3, 5)),
        ],
        head(hub_runs_calls=True),
    )
    assert kinds(found)[2:9] == [
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
        "response.output_item.done",
        "response.output_item.added",
    ]
    response = found[-1]["response"]
    call = response["output"][0]
    assert (call["type"], call["server_label"], call["output"]) == ("mcp_call", "dragoman", '{"now":1}')
    assert response["usage"]["total_tokens"] == 7


def test_a_search_of_the_client_for_tools_has_its_arguments_as_an_object() -> None:
    tool = {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}
    found = encode_call("tool_search", '{"query":"time"}', tool=tool)
    assert kinds(found)[2:-1] == ["response.output_item.added", "response.output_item.done"]
    assert found[2]["item"]["arguments"] == {}
    assert found[-1]["response"]["output"] == [
        {
            "id": "tsc_10000",
            "status": "completed",
            "call_id": "c1",
            "type": "tool_search_call",
            "execution": "client",
            "arguments": {"query": "time"},
        }
    ]


EVERY_ITEM: list[e.Event] = [
    e.ReasoningStart("r"),
    e.ReasoningDelta("r", "hm"),
    e.ReasoningEnd("r", {"anthropic": {"signature": "s=="}}),
    e.TextStart("t"),
    e.TextDelta("t", "Hel"),
    e.SourceUrl("s", "https://x.example"),
    e.TextDelta("t", "lo"),
    e.TextEnd("t"),
    e.TextStart("n", {"openai": {"refusal": True}}),
    e.TextDelta("n", "No."),
    e.TextEnd("n"),
    e.ToolInputStart("h", "clock.now"),
    e.ToolInputDelta("h", '{"zone":'),
    e.ToolInputDelta("h", '"UTC"}'),
    e.ToolInputAvailable("h", "clock.now", {"zone": "UTC"}),
    e.ToolOutputAvailable("h", {"now": 1}),
    e.ToolInputStart("c", "weather"),
    e.ToolInputDelta("c", '{"city":'),
    e.ToolInputDelta("c", '"Rome"}'),
    e.ToolInputAvailable("c", "weather", {"city": "Rome"}),
    e.ToolInputStart("x", "exec"),
    e.ToolInputDelta("x", '{"input":"l'),
    e.ToolInputDelta("x", 's"}'),
    e.ToolInputAvailable("x", "exec", {"input": "ls"}),
    e.ToolInputStart("q", "tool_search"),
    e.ToolInputAvailable("q", "tool_search", {"query": "x"}),
    e.File("data:image/png;base64,AA==", "image/png"),
]
# What ends each thing that an event opens, within its item.
ENDS = {
    "response.content_part.added": "response.content_part.done",
    "response.output_text.delta": "response.output_text.done",
    "response.refusal.delta": "response.refusal.done",
    "response.reasoning_summary_part.added": "response.reasoning_summary_part.done",
    "response.reasoning_summary_text.delta": "response.reasoning_summary_text.done",
    "response.function_call_arguments.delta": "response.function_call_arguments.done",
    "response.custom_tool_call_input.delta": "response.custom_tool_call_input.done",
    "response.mcp_call_arguments.delta": "response.mcp_call_arguments.done",
}


def check_ladder(found: Sequence[dict[str, Any]]) -> None:
    """Whatever an event opens is ended once, in its item, and the last event has the items as they ended."""
    ended: list[Any] = []
    by_item: dict[int, list[dict[str, Any]]] = {}
    for frame in found:
        if "output_index" in frame:
            by_item.setdefault(frame["output_index"], []).append(frame)
    assert sorted(by_item) == list(range(len(by_item)))
    for index in sorted(by_item):
        names = kinds(by_item[index])
        assert (names[0], names[-1]) == ("response.output_item.added", "response.output_item.done"), names
        for opening in set(names) & set(ENDS):
            assert names.count(ENDS[opening]) == 1, (opening, names)
            assert names.index(opening) < names.index(ENDS[opening])
        item = by_item[index][-1]["item"]
        assert item.get("status") != "in_progress"
        assert {frame["item_id"] for frame in by_item[index] if "item_id" in frame} <= {item["id"]}
        for frame in by_item[index]:
            if frame["type"].endswith("arguments.done"):
                assert frame["arguments"] == item["arguments"]
        ended.append(item)
    assert found[-1]["response"]["output"] == ended
    assert len({item["id"] for item in ended}) == len(ended)


@pytest.mark.parametrize("end", ["cancel", "abort", "error", "finish"])
def test_an_answer_that_ends_anywhere_ends_all_that_is_open(end: str) -> None:
    tools = [
        {"type": "function", "name": "weather"},
        {"type": "custom", "name": "exec"},
        {"type": "tool_search", "execution": "client"},
    ]
    for count in range(len(EVERY_ITEM) + 1):
        encoder = ResponsesStreamEncoder(head(*tools, hub_runs_calls=True))
        raw = b"".join(encoder.encode([event]) for event in EVERY_ITEM[:count])
        match end:
            case "cancel":
                raw += encoder.cancel(by_request=True)
            case "abort":
                raw += encoder.encode([e.Abort("stopped")])
            case "error":
                raw += encoder.encode_error(DragomanError("x"))
            case _:
                raw += encoder.encode([DONE]) + encoder.end()
        check_ladder(frames(raw))


def test_an_answer_without_output_has_an_empty_message() -> None:
    [item] = encode([DONE])[-1]["response"]["output"]
    assert item["content"][0]["text"] == ""


@pytest.mark.parametrize(
    ("reason", "details"), [("length", "max_output_tokens"), ("content-filter", "content_filter")]
)
def test_an_answer_that_was_cut_is_incomplete_and_says_why(reason: Any, details: str) -> None:
    last = encode([e.TextStart("t"), e.TextDelta("t", "Hel"), e.FinishStep(reason)])[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": details}


_CUT_TEXT: list[e.Event] = [e.TextStart("t"), e.TextDelta("t", "Hel")]
_CUT_CALL: list[e.Event] = [e.ToolInputStart("c", "get"), e.ToolInputDelta("c", '{"a":')]


@pytest.mark.parametrize("reason", ["length", "content-filter", "stop", "max-steps"])
@pytest.mark.parametrize(
    "last",
    [
        _CUT_TEXT,
        [*_CUT_TEXT, e.TextEnd("t")],
        [*_CUT_CALL, e.ToolInputError("c", "get", '{"a":', "cut")],
        [*_CUT_CALL, e.ToolInputAvailable("c", "get", {"a": 1})],
    ],
)
@pytest.mark.parametrize("has_format", [False, True])
def test_the_item_that_an_answer_ends_in_is_as_incomplete_as_the_answer(
    last: list[e.Event], reason: Any, has_format: bool
) -> None:
    first: list[e.Event] = [e.TextStart("a"), e.TextDelta("a", "One."), e.TextEnd("a")]
    ends: list[e.Event] = [e.FinishStep(reason), e.Finish(reason)]
    found = encode([*first, *last, *ends], head({"type": "function", "name": "get"}, has_format=has_format))
    check_ladder(found)
    statuses = {item["type"]: item["status"] for item in found[-1]["response"]["output"]}
    cut = "incomplete" if reason in ("length", "content-filter") else "completed"
    if has_format and len(statuses) > 1:  # the text is shown after the calls
        assert statuses["function_call"] == cut
    else:
        assert list(statuses.values())[-1] == cut
        assert found[-1]["response"]["output"][0]["status"] == "completed"


def test_an_item_that_another_one_follows_is_complete_before_it() -> None:
    call: list[e.Event] = [e.ToolInputStart("c", "get"), e.ToolInputAvailable("c", "get", {})]
    found = encode([*_CUT_TEXT, e.TextEnd("t"), *call, e.FinishStep("tool-calls")], head())
    added = [frame["output_index"] for frame in found if frame["type"] == "response.output_item.added"]
    assert added == [0, 1]
    order = [frame["type"] for frame in found if frame["type"].startswith("response.output_item")]
    assert order == ["response.output_item.added", "response.output_item.done"] * 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProviderError("x", category="rate_limit", transient=True), "invalid_prompt"),
        (ProviderError("x", category="rate_limit"), "insufficient_quota"),
        (ProviderError("x", category="context_limit"), "context_length_exceeded"),
        (ProviderError("x", category="bad_request"), "invalid_prompt"),
        (ProviderError("x", category="auth"), "invalid_prompt"),
        (ProviderError("x", category="network", transient=True), "invalid_prompt"),
        (BudgetExhausted("x"), "insufficient_quota"),
        (DragomanError("x"), "invalid_prompt"),
    ],
)
def test_an_answer_that_failed_ends_with_a_code_after_which_no_client_tries_again(
    error: DragomanError, code: str
) -> None:
    encoder = ResponsesStreamEncoder(head())
    raw = encoder.encode([e.TextStart("t"), e.TextDelta("t", "Hel")]) + encoder.encode_error(error)
    found = frames(raw)
    assert kinds(found)[-2:] == ["response.output_item.done", "response.failed"]
    assert found[-1]["response"]["error"] == {"code": code, "message": "x"}
    assert encoder.encode_error(error) == b""


def test_an_answer_without_a_finish_is_an_error() -> None:
    with pytest.raises(ProviderError):
        encode([e.TextStart("t"), e.TextDelta("t", "Hel")])


def test_a_document_is_the_response_of_the_last_event() -> None:
    events: list[e.Event] = [e.TextStart("t"), e.TextDelta("t", "Hello"), e.TextEnd("t"), DONE]
    document = msgspec.json.decode(encode_document(events, head()))
    assert document == encode(events)[-1]["response"]
