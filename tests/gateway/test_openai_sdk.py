"""OpenAI's client reads the same through the hub as from its server."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import msgspec
import openai
import pydantic
import pytest

from tests.gateway.recordings import OPENAI, OPENAI_BROKEN, decoded, known_ids, said_by_openai
from tests.gateway.sdk_clients import (
    HI,
    USAGE,
    Failed,
    Pair,
    chunks,
    chunks_in_a_loop,
    completion,
    folded,
    heard,
    snapshot,
)
from tests.gateway.upstream import Answer, Stage, document
from tests.wire.openai_streams import REGULAR, chunk, sse

TAGGED = ("think_tags", "think_talk", "ollama")  # the relay leaves tags in the text
HALF = ("halves",)  # a half at the end, without its other half: left out
UNSEEN = ("copilot", "snowflake")  # reasoning in a field of the vendor's own
UNCOUNTED = ("gemini", "xai")  # the vendor does not count reasoning as output
ONLY_OPENAI = ("openai_custom_tool", "openai_function_call")  # kinds of calls that others do not have
GOOD = sorted({*REGULAR, "logprobs"})


@pytest.mark.parametrize("name", GOOD)
def test_each_way_to_read_a_stream_gives_the_same_as_without_the_hub(
    stage: Stage, chat: Pair, name: str
) -> None:
    stage.upstream.play(Answer(body=OPENAI[name]))
    for read in (chunks, folded):
        straight = heard(read, chat.straight, "m", stream_options=USAGE)
        assert heard(read, chat.hub, "oai/m", stream_options=USAGE) == straight


@pytest.mark.parametrize("name", sorted(OPENAI.keys() - OPENAI_BROKEN.keys() - set(ONLY_OPENAI)))
def test_the_accumulator_reads_what_the_server_says(stage: Stage, chat: Pair, name: str) -> None:
    """Also where it fails at the server's own chunks, or misreads them."""
    raw = OPENAI[name]
    stage.upstream.play(Answer(body=raw, seed=3))
    report = heard(snapshot, chat.hub, "oai/m")
    want = decoded("oai", raw)
    assert not isinstance(report, Failed), report
    assert not isinstance(want, str), want
    got = known_ids(said_by_openai(report), raw)
    assert got.calls == known_ids(want, raw).calls
    assert got.finish == want.finish
    assert name in UNCOUNTED or got.tokens == want.tokens
    assert name in (*TAGGED, *HALF) or got.text == want.text
    assert name in (*TAGGED, *UNSEEN) or got.reasoning == want.reasoning


@pytest.mark.parametrize("name", ["openai_calls", "groq_error"])
def test_an_asynchronous_client_reads_the_same_as_without_the_hub(
    stage: Stage, chat: Pair, name: str
) -> None:
    stage.upstream.play(Answer(body=OPENAI[name]))
    straight = heard(chunks_in_a_loop, chat.straight, "m", stream_options=USAGE)
    assert heard(chunks_in_a_loop, chat.hub, "oai/m", stream_options=USAGE) == straight


@pytest.mark.parametrize("name", sorted(OPENAI_BROKEN))
def test_an_answer_that_broke_off_is_an_error_in_each_way_to_read_it(
    stage: Stage, chat: Pair, name: str
) -> None:
    status, words = OPENAI_BROKEN[name]
    stage.upstream.play(Answer(body=OPENAI[name]))
    for read in (chunks, folded):
        report = heard(read, chat.hub, "oai/m")
        failure = report[-1] if isinstance(report, list) else report
        assert isinstance(failure, Failed)
        assert words in failure.message
        assert failure.status == status


def test_a_byte_order_mark_takes_nothing_from_a_stream(stage: Stage, chat: Pair) -> None:
    stage.upstream.play(Answer(body=OPENAI["openai_text"]))
    whole = heard(chunks, chat.straight, "m", stream_options=USAGE)
    stage.upstream.play(Answer(body=b"\xef\xbb\xbf" + OPENAI["openai_text"].partition(b"\n\n")[2]))
    assert heard(chunks, chat.straight, "m", stream_options=USAGE) == whole[1:]
    assert heard(chunks, chat.hub, "oai/m", stream_options=USAGE) == whole


def test_the_usage_chunk_comes_only_to_who_asked_for_it(stage: Stage, chat: Pair) -> None:
    stage.upstream.play(Answer(body=OPENAI["openai_text"]))
    request = heard(chunks, chat.hub, "oai/m", stream_options=USAGE)
    assert [one["choices"] for one in request if one.get("usage")] == [[]]
    unasked = heard(chunks, chat.hub, "oai/m")
    assert unasked == [one for one in request if not one.get("usage")]
    assert stage.upstream.body["stream_options"] == USAGE


WHOLE = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1763700000,
    "model": "m-1",
    "system_fingerprint": "fp_1",
    "choices": [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": '{"city":"Oslo","warm":false}',
                "refusal": None,
                "annotations": [],
                "reasoning_content": "Norway.",
                "tool_calls": [
                    {"id": f"c{index}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            "logprobs": {"content": [{"token": "x", "logprob": -1.5, "bytes": None, "top_logprobs": []}]},
            "finish_reason": "tool_calls",
        }
        for index in range(2)
    ],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 5,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 4},
        "cost": 0.25,
    },
    "x_vendor": [1, {"two": None}],
}


def test_a_plain_answer_is_the_same_as_without_the_hub(stage: Stage, chat: Pair) -> None:
    stage.upstream.play(document(WHOLE))
    straight = completion(chat.straight, "m")
    assert completion(chat.hub, "oai/m").to_dict() == straight.to_dict() == WHOLE


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (document({"error": {"message": "No luck", "type": "server_error", "code": None}}), "No luck"),
        (document({**WHOLE, "choices": []}), "no choices"),
        (document(b""), "is empty"),
        (document(b'{"id": "chatcmpl'), "invalid JSON"),
        (Answer(body=b"<html><title>Oops</title>", headers={"content-type": "text/html"}), "Oops"),
        (Answer(body=msgspec.json.encode(WHOLE)[:200], framing="cut"), ""),
    ],
)
def test_a_plain_answer_that_is_none_is_an_error(
    stage: Stage, chat: Pair, answer: Answer, words: str
) -> None:
    stage.upstream.play(answer)
    failure = heard(completion, chat.hub, "oai/m")
    assert failure == Failed("InternalServerError", 502, failure.message)
    assert words in failure.message


class Weather(pydantic.BaseModel):
    """A city's weather."""

    city: str
    warm: bool


def test_a_structured_answer_is_parsed_as_without_the_hub(stage: Stage, chat: Pair) -> None:
    stage.upstream.play(document({**WHOLE, "choices": WHOLE["choices"][:1]}))  # type: ignore[index]
    request: dict[str, Any] = {"messages": HI, "response_format": Weather}
    straight = chat.straight.chat.completions.parse(model="m", **request)
    sent = stage.upstream.body
    report = chat.hub.chat.completions.parse(model="oai/m", **request)
    assert report.choices[0].message.parsed == Weather(city="Oslo", warm=False)
    assert report.to_dict(warnings=False) == straight.to_dict(warnings=False)
    assert stage.upstream.body == sent


def test_a_structured_stream_is_parsed_as_without_the_hub(stage: Stage, chat: Pair) -> None:
    pieces = ['{"city":', '"Oslo","wa', 'rm":true}']
    stage.upstream.play(
        Answer(
            body=sse(
                *(
                    {
                        **chunk(
                            {"role": "assistant", "content": piece}
                            if piece == pieces[0]
                            else {"content": piece}
                        ),
                        "object": "chat.completion.chunk",
                        "id": "c",
                        "created": 1,
                    }
                    for piece in pieces
                ),
                {**chunk(finish="stop"), "object": "chat.completion.chunk", "id": "c", "created": 1},
            )
        )
    )
    request: dict[str, Any] = {"messages": HI, "response_format": Weather}
    found = []
    for client, model in ((chat.straight, "m"), (chat.hub, "oai/m")):
        with client.chat.completions.stream(model=model, **request) as stream:
            messages = [event.to_dict(warnings=False) for event in stream]
            found.append((messages, stream.get_final_completion()))
    assert found[0] == found[1]
    assert found[1][1].choices[0].message.parsed == Weather(city="Oslo", warm=True)


def test_embeddings_pass_as_they_are(stage: Stage, chat: Pair) -> None:
    body = {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1.25]}],
        "model": "e-1",
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }
    stage.upstream.play(document(body))
    request: dict[str, Any] = {"input": ["Hi"], "encoding_format": "float", "dimensions": 2}
    straight = chat.straight.embeddings.create(model="e", **request)
    sent = stage.upstream.requests[-1]
    report = chat.hub.embeddings.create(model="oai/e", **request)
    assert report.to_dict() == straight.to_dict() == body
    assert stage.upstream.requests[-1].line == sent.line == "POST /v1/embeddings HTTP/1.1"
    assert stage.upstream.body == msgspec.json.decode(sent.body)


def test_models_are_listed_and_found(chat: Pair) -> None:
    listed = [model.id for model in chat.hub.models.list()]
    assert {"oai/m", "short", "falling"} <= set(listed)
    found = chat.hub.models.retrieve("oai/m")
    assert (found.id, found.object, found.owned_by) == ("oai/m", "model", "oai")
    with pytest.raises(openai.NotFoundError, match="nobody"):
        chat.hub.models.retrieve("nobody/m")


def test_a_key_sees_only_the_models_that_it_may_ask(stage: Stage) -> None:
    key = stage.new_key(models=["short"])
    with openai.OpenAI(base_url=f"{stage.url}/v1", api_key=key, max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["short"]


def test_request_ids_and_costs_are_in_the_headers(stage: Stage, chat: Pair) -> None:
    stage.upstream.play(document(WHOLE))
    raw = chat.hub.chat.completions.with_raw_response.create(model="oai/m", messages=HI)
    assert raw.parse()._request_id == raw.headers["x-dragoman-request-id"]
    assert raw.headers["x-dragoman-model"] == "oai/m"
    assert float(raw.headers["x-dragoman-cost"]) == pytest.approx((9 + 2 * 5) / 1e6)


def test_a_stream_ends_with_done_and_its_cost(stage: Stage) -> None:
    stage.upstream.play(Answer(body=OPENAI["openai_text"]))
    request = {"model": "oai/m", "messages": HI, "stream": True}
    headers = {"authorization": f"Bearer {stage.key}"}
    with httpx2.Client(base_url=stage.url, headers=headers, trust_env=False, timeout=60) as http:
        response = http.post("/v1/chat/completions", json=request)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert re.search(r"\ndata: \[DONE\]\n\n: x-dragoman-cost 0\.\d+\n\n$", response.text)
