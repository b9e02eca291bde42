"""Anthropic's client reads the same through the hub as from its server."""

from __future__ import annotations

import re
from typing import Any

import anthropic
import msgspec
import pydantic
import pytest

from tests.gateway.recordings import ANTHROPIC, ANTHROPIC_BROKEN
from tests.gateway.sdk_clients import HI, Failed, Pair, events, final, final_in_a_loop, heard, message
from tests.gateway.upstream import Answer, Stage, document
from tests.wire.anthropic_streams import STOP, sse, start, stop, text

TRAILING = "gateway"  # ends with [DONE], at which the SDK stumbles when it is alone
UNNAMED = "unnamed"  # events without the names by which the SDK goes


@pytest.mark.parametrize("name", sorted(ANTHROPIC.keys() - {TRAILING, UNNAMED}))
def test_each_way_to_read_a_stream_gives_the_same_as_without_the_hub(
    stage: Stage, messages: Pair, name: str
) -> None:
    stage.upstream.play(Answer(body=ANTHROPIC[name]))
    assert heard(events, messages.hub, "ant/m") == heard(events, messages.straight, "m")
    straight = heard(final, messages.straight, "m")
    assert not isinstance(straight, Failed)
    assert heard(final, messages.hub, "ant/m") == straight


@pytest.mark.parametrize("name", ["search", "thinking"])
def test_an_asynchronous_client_reads_the_same_as_without_the_hub(
    stage: Stage, messages: Pair, name: str
) -> None:
    stage.upstream.play(Answer(body=ANTHROPIC[name]))
    straight = heard(final_in_a_loop, messages.straight, "m")
    assert heard(final_in_a_loop, messages.hub, "ant/m") == straight


def test_what_a_gateway_says_behind_the_end_is_kept_from_the_client(stage: Stage, messages: Pair) -> None:
    stage.upstream.play(Answer(body=ANTHROPIC[TRAILING]))
    straight = heard(events, messages.straight, "m")
    assert straight[-1].kind == "JSONDecodeError"
    assert heard(events, messages.hub, "ant/m") == straight[:-1]


@pytest.mark.parametrize("event", ["", "event: data\n"])
def test_events_without_their_names_are_not_lost(stage: Stage, messages: Pair, event: str) -> None:
    raw = re.sub(r"event: \w+\n", event, ANTHROPIC["calls"].decode()).encode()
    stage.upstream.play(Answer(body=ANTHROPIC["calls"]))
    straight = heard(final, messages.straight, "m")
    stage.upstream.play(Answer(body=raw))
    assert heard(final, messages.hub, "ant/m") == straight


@pytest.mark.parametrize("name", sorted(ANTHROPIC_BROKEN))
def test_an_answer_that_broke_off_is_an_error_in_each_way_to_read_it(
    stage: Stage, messages: Pair, name: str
) -> None:
    raw, status, words = ANTHROPIC_BROKEN[name]
    stage.upstream.play(Answer(body=raw))
    for read in (events, final):
        report = heard(read, messages.hub, "ant/m")
        failure = report[-1] if isinstance(report, list) else report
        assert isinstance(failure, Failed)
        assert words in failure.message
        assert failure.status == status


def test_an_error_in_mid_stream_names_the_request(stage: Stage, messages: Pair) -> None:
    for model, answer in (
        ("ant/m", Answer(body=ANTHROPIC_BROKEN["cut"][0])),
        ("oai/m", Answer(body=b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n')),
    ):
        stage.upstream.play(answer)
        with messages.hub.messages.create(
            model=model, max_tokens=9, messages=HI, stream=True
        ) as stream, pytest.raises(anthropic.APIStatusError) as raised:  # fmt: skip
            list(stream)
        assert raised.value.body["request_id"] == stream.response.headers["request-id"]  # type: ignore[index]


WHOLE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [
        {"type": "thinking", "thinking": "Hm  ", "signature": "EqQB/+=="},
        {"type": "redacted_thinking", "data": "EmwK"},
        {"type": "text", "text": '{"city":"Oslo"}', "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"b": 1, "a": [None]}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 3,
        "output_tokens": 5,
        "cache_read_input_tokens": 7,
        "cache_creation_input_tokens": 2,
        "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 0},
        "service_tier": "standard",
    },
    "x_new": {"a": 1},
}


def test_a_plain_answer_is_the_same_as_without_the_hub(stage: Stage, messages: Pair) -> None:
    stage.upstream.play(document(WHOLE))
    straight = message(messages.straight, "m")
    assert message(messages.hub, "ant/m").to_dict() == straight.to_dict() == WHOLE


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (document({"type": "error", "error": {"type": "api_error", "message": "No luck"}}), "No luck"),
        (document({"type": "message", "role": "assistant"}), "no content"),
        (document({**WHOLE, "stop_reason": None}), "finish"),
        (document(b""), "is empty"),
        (document(msgspec.json.encode(WHOLE)[:99]), "invalid JSON"),
        (Answer(body=b"<html><title>Oops</title>", headers={"content-type": "text/html"}), "Oops"),
    ],
)
def test_a_plain_answer_that_is_none_is_an_error(
    stage: Stage, messages: Pair, answer: Answer, words: str
) -> None:
    stage.upstream.play(answer)
    failure = heard(message, messages.hub, "ant/m")
    assert failure == Failed("InternalServerError", 502, failure.message)
    assert words in failure.message


class City(pydantic.BaseModel):
    """A city."""

    city: str


def test_a_structured_answer_is_parsed_as_without_the_hub(stage: Stage, messages: Pair) -> None:
    replies = [WHOLE["content"][2]]
    stage.upstream.play(document({**WHOLE, "content": replies, "stop_reason": "end_turn"}))
    request: dict[str, Any] = {"max_tokens": 99, "messages": HI, "output_format": City}
    straight = messages.straight.messages.parse(model="m", **request)
    sent = stage.upstream.body
    report = messages.hub.messages.parse(model="ant/m", **request)
    assert report.parsed_output == straight.parsed_output == City(city="Oslo")
    assert stage.upstream.body == sent


def test_pings_and_comments_are_skipped(stage: Stage, messages: Pair) -> None:
    raw = sse(b": wait\n\n", start(), b": on\n\n", {"type": "ping"}, *text(0, "Hi"), stop("end_turn"), STOP)
    stage.upstream.play(Answer(body=raw, seed=1))
    assert heard(events, messages.hub, "ant/m") == heard(events, messages.straight, "m")


def test_tokens_are_counted_by_a_provider_that_can(stage: Stage, messages: Pair) -> None:
    stage.upstream.play(document({"input_tokens": 2095, "context_management": None}))
    request: dict[str, Any] = {"messages": HI, "system": "Be brief.", "tools": []}
    straight = messages.straight.messages.count_tokens(model="m", **request)
    sent = stage.upstream.requests[-1]
    report = messages.hub.messages.count_tokens(model="ant/m", **request)
    assert report.to_dict() == straight.to_dict()
    assert stage.upstream.requests[-1].line == sent.line
    assert stage.upstream.body == msgspec.json.decode(sent.body)


@pytest.mark.parametrize("model", ["oai/m", "oll/m"])
def test_tokens_are_estimated_where_nobody_counts_them(stage: Stage, messages: Pair, model: str) -> None:
    stage.upstream.play(document({"error": "no"}, status=500))
    raw = messages.hub.messages.with_raw_response.count_tokens(model=model, messages=HI)
    assert 0 < raw.parse().input_tokens < 50
    assert raw.headers["x-dragoman-estimated"] == "true"
    assert stage.upstream.requests == []


def test_models_are_listed_and_found(messages: Pair) -> None:
    listed = [model.id for model in messages.hub.models.list()]
    assert {"oai/m", "short"} <= set(listed)
    found = messages.hub.models.retrieve("short")
    assert (found.id, found.type, found.display_name) == ("short", "model", "short")
    with pytest.raises(anthropic.NotFoundError):
        messages.hub.models.retrieve("nobody")


def test_request_ids_are_where_the_client_looks(stage: Stage, messages: Pair) -> None:
    stage.upstream.play(document(WHOLE))
    raw = messages.hub.messages.with_raw_response.create(model="ant/m", max_tokens=9, messages=HI)
    assert raw.parse()._request_id == raw.headers["x-dragoman-request-id"]


def test_both_ways_to_show_a_key_are_taken(stage: Stage) -> None:
    stage.upstream.play(document(WHOLE))
    for way in ({"api_key": stage.key}, {"auth_token": stage.key}):
        with anthropic.Anthropic(base_url=stage.url, max_retries=0, **way) as client:  # type: ignore[arg-type]
            assert message(client, "ant/m").id == "msg_1"
        assert stage.upstream.requests[-1]["x-api-key"].startswith("sk-upstream")
        assert stage.upstream.requests[-1]["authorization"] == ""
