"""The Responses API's stream as events: text, reasoning, calls, tools of the provider, usage, failures."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.wire.responses.decoder import ResponsesDecoder

from .openai_streams import document_failure, summarise
from .responses_streams import (
    CALLS,
    HELLO,
    MODEL,
    STREAMS,
    USAGE,
    call_events,
    decode,
    ending,
    item_events,
    message,
    opening,
    response,
    sse,
    text_events,
)

SEALED = {"responses": {"itemId": "rs_1", "encryptedContent": "gAAA+/=", "provider": "up"}}
THINKS = ("reasoning", "Two birds.\n\nBoth green.", SEALED)


def story(raw: bytes) -> list[Any]:
    return decode([raw], provider="up").story


def test_a_text_becomes_one_block_with_usage_and_the_model_at_its_end() -> None:
    answer = decode([STREAMS["text"]], provider="up")
    assert [event.delta for event in answer.events if isinstance(event, e.TextDelta)] == ["Hello wörld 🦜"]
    usage = e.Usage(36, 12, 48, reasoning_tokens=4, cached_input_tokens=16)
    assert answer.finish == e.FinishStep("stop", usage, MODEL, "up")


def test_reasoning_keeps_its_encrypted_item_for_the_provider_that_sent_it() -> None:
    assert story(STREAMS["calls"])[0] == THINKS


def test_calls_have_their_arguments_and_the_ids_by_which_they_are_answered() -> None:
    events = decode([STREAMS["calls"]]).events
    calls = [event for event in events if isinstance(event, e.ToolInputAvailable)]
    assert [(call.tool_call_id, call.tool_name, call.input) for call in calls] == [
        ("call_1", "weather", {"city": "Oslo"}),
        ("call_2", "now", {}),
    ]
    finish = events[-1]
    assert isinstance(finish, e.FinishStep)
    assert finish.finish_reason == "tool-calls"


def test_tools_that_the_provider_ran_are_its_calls_and_images_and_citations_are_there() -> None:
    events = decode([STREAMS["tools"]]).events
    calls = [event for event in events if isinstance(event, e.ToolInputAvailable)]
    assert [(call.tool_name, call.input, call.provider_executed) for call in calls] == [
        ("web_search", {"type": "search", "query": "parrots"}, True),
        ("count", {"of": "parrots"}, True),
    ]
    outputs = [event.output for event in events if isinstance(event, e.ToolOutputAvailable)]
    assert outputs == [{}, "two"]
    assert [event.url for event in events if isinstance(event, e.SourceUrl)] == [
        "https://example.org/parrots"
    ]
    assert [event for event in events if isinstance(event, e.File)] == [
        e.File("data:image/png;base64,aGk=", "image/png")
    ]
    finish = events[-1]
    assert isinstance(finish, e.FinishStep)
    assert finish.finish_reason == "stop"


SHELL = {"id": "sh_1", "type": "shell_call", "status": "completed", "call_id": "call_s"}
SHELL_OUTPUT = {"id": "sho_1", "type": "shell_call_output", "status": "completed", "call_id": "call_s"}
PATCH = {"id": "ap_1", "type": "apply_patch_call", "call_id": "call_p", "operation": {"path": "a"}}
X_SEARCH = {"id": "ctc_1", "type": "custom_tool_call", "call_id": "xs_call_1", "name": "x_keyword_search"}
APPROVAL = {"id": "mcpr_1", "type": "mcp_approval_request", "name": "shorten", "arguments": '{"url":"u"}'}
HOSTED: dict[str, tuple[list[dict[str, Any]], str, Any, Any]] = {  # items; name, input and result of the call
    "a shell in a container": (
        [{**SHELL, "action": {"commands": ["ls"]}}, {**SHELL_OUTPUT, "output": [{"stdout": "a"}]}],
        "shell",
        {"commands": ["ls"]},
        [{"stdout": "a"}],
    ),
    "a shell of the client": (
        [{**SHELL, "action": {"commands": ["ls"]}}],
        "shell",
        {"commands": ["ls"]},
        None,
    ),
    "a patch": ([PATCH], "apply_patch", {"operation": {"path": "a"}}, None),
    "a program": (
        [
            {"id": "cm_1", "type": "program", "call_id": "call_m", "code": "x()"},
            {"id": "cmo_1", "type": "program_output", "call_id": "call_m", "result": "7"},
        ],
        "program",
        {"code": "x()"},
        {"result": "7"},
    ),
    "a tool that waits for approval": ([APPROVAL], "shorten", {"url": "u"}, None),
    "xAI's search, as a custom tool": (
        [{**X_SEARCH, "input": '{"query":"parrots"}'}],
        "x_keyword_search",
        {"query": "parrots"},
        {},
    ),
    "xAI's search, as an item of its own": (
        [{"id": "x_1", "type": "x_search_call", "call_id": "", "name": "x", "arguments": '{"query":"q"}'}],
        "x_search",
        {"query": "q"},
        {},
    ),
}


@pytest.mark.parametrize("name", HOSTED)
def test_calls_of_hosted_tools_are_not_calls_for_the_client(name: str) -> None:
    items, tool, arguments, result = HOSTED[name]
    delta = {"type": "response.custom_tool_call_input.delta", "delta": items[0].get("input", "")}
    inner = [delta] if "input" in items[0] else []
    pieces = [event for number, item in enumerate(items) for event in item_events(number, item, *inner)]
    text = text_events(len(items), message("Two."), "Two.")
    streamed = decode([sse(*opening(), *pieces, *text, ending(*items, message("Two.")))]).events
    document = ResponsesDecoder().decode_document(
        msgspec.json.encode(response("completed", [*items, message("Two.")]))
    )
    for events in (streamed, document):
        (call,) = [event for event in events if isinstance(event, e.ToolInputAvailable)]
        assert (call.tool_name, call.input, call.provider_executed) == (tool, arguments, True)
        outputs = [event.output for event in events if isinstance(event, e.ToolOutputAvailable)]
        errors = [event for event in events if isinstance(event, e.ToolOutputError)]
        assert (outputs, len(errors)) == (([], 1) if result is None else ([result], 0))
        assert [event.delta for event in events if isinstance(event, e.TextDelta)] == ["Two."]
        finish = events[-1]
        assert isinstance(finish, e.FinishStep)
        assert finish.finish_reason == "stop"


@pytest.mark.parametrize("name", [[], {}, 5, None])
def test_a_call_whose_name_is_no_text_is_decoded_or_fails_the_answer(name: Any) -> None:
    item = {**X_SEARCH, "name": name}
    for call_id in ("xs_call_1", "call_1"):
        answer = decode([sse(*opening(), *item_events(0, {**item, "call_id": call_id}), ending(item))])
        assert answer.finish is not None or answer.failure is not None


def test_a_free_text_of_a_custom_tool_is_its_input() -> None:
    (call,) = [
        event for event in decode([STREAMS["custom"]]).events if isinstance(event, e.ToolInputAvailable)
    ]
    assert (call.tool_name, call.input) == ("run", "ls -l")


@pytest.mark.parametrize(
    ("name", "reason"), [("refusal", "stop"), ("cut", "length"), ("text", "stop"), ("calls", "tool-calls")]
)
def test_each_end_has_its_reason(name: str, reason: str) -> None:
    finish = decode([STREAMS[name]]).finish
    assert finish is not None
    assert finish.finish_reason == reason


def test_what_is_missing_in_the_stream_is_taken_from_the_whole_response() -> None:
    whole = summarise(decode([STREAMS["bare"]], provider="up").events)
    stream = sse(*opening(), *text_events(0, HELLO, "Hello wörld 🦜"), ending(HELLO, CALLS[0]))
    assert whole[:2] == [THINKS, ("text", "Hello wörld 🦜")]
    calls = [event for event in decode([stream]).events if isinstance(event, e.ToolInputAvailable)]
    assert [call.tool_name for call in calls] == ["weather"]


@pytest.mark.parametrize(
    "left_out",
    [
        *("output_item.added", "content_part.added", "content_part.done", "output_text.done"),
        *("output_item.done", "created", "in_progress", "output_text.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "reasoning_summary_text.delta", "reasoning_summary_part.added"),
    ],
)
def test_each_rung_of_the_ladder_may_be_missing(left_out: str) -> None:
    events = [
        *opening(),
        *text_events(0, HELLO, "Hello", " wörld 🦜"),
        *call_events(1, CALLS[0], '{"city"', ':"Oslo"}'),
        ending(HELLO, CALLS[0]),
    ]
    others = [event for event in events if event["type"] != f"response.{left_out}"]
    assert summarise(decode([sse(*others)]).events) == summarise(decode([sse(*events)]).events)


def test_ids_that_change_with_each_event_do_not_matter() -> None:
    events = [*opening(), *text_events(0, HELLO, "Hello", " wörld 🦜"), ending(HELLO)]
    changed = [{**event, "item_id": f"x{number}"} for number, event in enumerate(events)]
    assert summarise(decode([sse(*changed)]).events) == summarise(decode([sse(*events)]).events)


def test_events_are_read_without_their_names() -> None:
    events = [*opening(), *text_events(0, HELLO, "Hello wörld 🦜"), ending(HELLO)]
    unnamed = b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events)
    assert story(unnamed) == story(STREAMS["text"])


def test_halves_of_a_character_are_joined() -> None:
    halves = [f'{{"type":"response.output_text.delta","delta":"{half}"}}' for half in ("\\ud83e", "\\udd9c")]
    frames = [b"data: " + half.encode() + b"\n\n" for half in halves]
    text = message("🦜")
    assert ("text", "🦜") in story(sse(*opening(), *frames, ending(text)))


def test_an_unknown_event_item_or_reason_is_no_failure() -> None:
    new = {"id": "n", "type": "new_item", "status": "completed"}
    raw = sse(
        *opening(),
        {"type": "response.new.thing", "delta": {"x": 1}},
        *item_events(0, new),
        ending(new, status="incomplete", incomplete_details={"reason": "steered"}),
    )
    finish = decode([raw]).finish
    assert finish is not None
    assert finish.finish_reason == "other"


@pytest.mark.parametrize(
    ("error", "category", "transient"),
    [
        ({"code": "server_error", "message": "An error occurred."}, "api_error", True),
        ({"code": "rate_limit_exceeded", "message": "Try again in 1s"}, "rate_limit", True),
        ({"code": "insufficient_quota", "message": "Pay."}, "rate_limit", False),
        ({"code": "context_length_exceeded", "message": "Too long."}, "context_limit", False),
        ({"code": "server_is_overloaded", "message": "Later."}, "overloaded", True),
        ({"code": "invalid_prompt", "message": "No."}, "bad_request", False),
    ],
)
def test_a_failed_response_and_an_error_event_say_what_failed(
    error: dict[str, str], category: str, transient: bool
) -> None:
    failed = ending(status="failed", error=error)
    for end in (failed, {"type": "error", **error}, {"type": "error", "error": error}):
        failure = decode([sse(*opening(), end)]).failure
        assert failure is not None
        assert (failure.category, failure.transient, failure.message) == (
            category,
            transient,
            error["message"],
        )


def test_a_failed_response_that_counted_its_tokens_is_charged() -> None:
    end = ending(status="failed", usage=USAGE, error={"code": "server_error", "message": "Oh."})
    failure = decode([sse(*opening(), end)]).failure
    assert failure is not None
    assert failure.usage is not None
    assert failure.usage["output_tokens"] == 12


def test_a_stream_that_ends_without_its_response_is_incomplete() -> None:
    failure = decode([sse(*opening(), *text_events(0, HELLO, "Hello"), b"data: [DONE]\n\n")]).failure
    assert failure is not None
    assert (failure.category, failure.transient) == ("network", True)


@pytest.mark.parametrize("name", ["text", "calls", "custom", "refusal", "cut"])
def test_a_document_gives_what_its_stream_gives(name: str) -> None:
    streamed = decode([STREAMS[name]]).events
    last = STREAMS[name].rstrip().rpartition(b"data: ")[2]
    document = msgspec.json.encode(msgspec.json.decode(last)["response"])
    assert summarise(ResponsesDecoder().decode_document(document)) == summarise(streamed)


def test_a_document_that_failed_or_is_not_over_is_a_failure() -> None:
    for status in ("failed", "in_progress", "queued", "cancelled"):
        failure = document_failure(ResponsesDecoder(), msgspec.json.encode(response(status)))
        assert failure is not None
