"""Answers of providers that are odd but complete, counts that cannot be, and refusals of the hub's key."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.events import MAX_TOKENS
from dragoman.usage_limits import Limits
from tests.gateway.metered_hub import HI, Site, desk
from tests.gateway.sdk_clients import Failed, Pair, completion, final, heard, message, snapshot
from tests.gateway.test_anthropic_sdk import WHOLE as MESSAGE
from tests.gateway.test_budgets import standing
from tests.gateway.test_openai_sdk import WHOLE as COMPLETION
from tests.gateway.upstream import Answer, Stage, document
from tests.providers.servers import ok
from tests.wire import responses_streams as res
from tests.wire.anthropic_streams import sse as anthropic_sse
from tests.wire.anthropic_streams import start, stop, text
from tests.wire.openai_streams import chunk
from tests.wire.openai_streams import sse as chat_sse

MARK = b"\xef\xbb\xbf"
UNSTOPPED = anthropic_sse(start(), *text(0, "Hi there"), stop("end_turn"))


@pytest.mark.parametrize("ending", [b"", b"data: [DONE]\n\n"])
def test_a_message_that_lacks_only_its_stop_event_is_complete(
    stage: Stage, chat: Pair, messages: Pair, ending: bytes
) -> None:
    stage.upstream.play(Answer(body=UNSTOPPED + ending))
    assert final(messages.hub, "ant/m").content[0].text == "Hi there"
    assert message(messages.hub, "ant/m").stop_reason == "end_turn"
    assert snapshot(chat.hub, "ant/m").choices[0].message.content == "Hi there"


def test_a_message_without_a_stop_reason_is_cut(stage: Stage, messages: Pair) -> None:
    stage.upstream.play(Answer(body=anthropic_sse(start(), *text(0, "Hi there"))))
    assert isinstance(heard(final, messages.hub, "ant/m"), Failed)


def test_a_byte_order_mark_takes_nothing_from_a_document(stage: Stage, chat: Pair, messages: Pair) -> None:
    whole = {**COMPLETION, "choices": COMPLETION["choices"][:1]}  # type: ignore[index]
    stage.upstream.play(document(MARK + msgspec.json.encode(whole)))
    assert completion(chat.hub, "oai/m").to_dict() == whole
    assert snapshot(chat.hub, "oai/m").choices[0].message.content == '{"city":"Oslo","warm":false}'
    assert message(messages.hub, "oai/m").content
    stage.upstream.play(document(MARK + msgspec.json.encode(MESSAGE)))
    assert message(messages.hub, "ant/m").id == MESSAGE["id"]
    assert final(messages.hub, "ant/m").content
    assert completion(chat.hub, "ant/m").choices


@pytest.mark.parametrize("before", [b"\n\n\n\n", b"\r\n: waiting\n\n"])
def test_a_stream_that_begins_with_line_breaks_is_read_where_a_document_was_wanted(
    stage: Stage, chat: Pair, messages: Pair, before: bytes
) -> None:
    """Doubleword keeps a connection alive with them."""
    stage.upstream.play(Answer(body=before + chat_sse(chunk({"content": "Hi"}), chunk(finish="stop"))))
    assert completion(chat.hub, "oai/m").choices[0].message.content == "Hi"
    assert message(messages.hub, "oai/m").content[0].text == "Hi"


REFUSALS: dict[str, Any] = {
    "oai/m": {"error": {"message": "Incorrect API key", "type": "invalid_request_error", "code": "bad_key"}},
    "ant/m": {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}},
    "oll/m": {"error": "unauthorized"},
}


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("model", REFUSALS)
def test_a_refusal_of_the_hubs_key_names_the_provider(
    stage: Stage, chat: Pair, messages: Pair, model: str, status: int
) -> None:
    stage.upstream.play(document(REFUSALS[model], status))
    for read, client in ((completion, chat), (snapshot, chat), (message, messages), (final, messages)):
        failure = heard(read, client.hub, model)
        assert isinstance(failure, Failed)
        assert f"provider {model[:3]} refused the hub's key" in failure.message


@pytest.mark.parametrize("count", [2**53, 2**63 - 1, 2**63, 2**64, 10**30, 1e300, str(2**70)])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_count_that_cannot_be_is_clamped_and_the_reservation_is_charged(
    tmp_path: Path, count: Any, *, stream: bool
) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": count}
    counted = json.dumps(usage).encode()
    head = b'"id":"c","created":1,"model":"m"'
    if stream:
        chunks = b'{%s,"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"},' % head
        frame = b"data: " + chunks + b'"finish_reason":"stop"}],"usage":%s}\n\ndata: [DONE]\n\n' % counted
    else:
        choice = b'{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}'
        frame = b'{%s,"object":"chat.completion","choices":[%s],"usage":%s}' % (head, choice, counted)
    async with desk(tmp_path, keys=True, up=Site(ok(frame))) as at:
        key = await at.key(limits=Limits(usd_total=5.0))
        response = await at.chat(key=key, stream=stream, max_tokens=1000, messages=HI)
        assert response.status_code == 200
        row = await at.row()
        assert row.tokens.output_tokens == MAX_TOKENS
        assert row.cost is None
        spent, reserved = await standing(at)
        assert reserved == 0
        assert 1000 * 2000 < spent <= 1000 * 2000 + 100 * 1000  # 1000 tokens of the answer and a short prompt


EMPTY_BODIES = [b"", b"\n", b"{}"]
EMPTY_STREAMS = [b"null", b"[]", b": ping\n\n", b"data: [DONE]\n\n"]  # not as lines of JSON


async def test_an_empty_200_is_the_same_error_at_every_endpoint(tmp_path: Path) -> None:
    sites = {family: Site(type=family) for family in ("openai", "anthropic", "ollama")}
    config: dict[str, Any] = {**sites, "model": "openai/m"}
    async with desk(tmp_path, **config) as at:
        for family, site in sites.items():
            streams = [] if family == "ollama" else EMPTY_STREAMS
            for number, body in enumerate([*EMPTY_BODIES, *streams]):
                for kind in ("application/json", "text/event-stream", "application/x-ndjson", None):
                    site.replies(ok(body, *([f"content-type: {kind}"] if kind else [])))
                    for ask in (at.chat, at.message):
                        for stream in (False, True):
                            response = await ask(f"{family}/m", stream=stream)
                            error = response.json()["error"]
                            assert response.status_code == 502, (family, body, kind, stream)
                            assert "the provider's answer is empty" in error["message"]
                frames = await at.run("Hi", session=f"{family}{number}", model=f"{family}/m")
                (text,) = [frame["errorText"] for frame in frames if frame["type"] == "error"]
                assert "the provider's answer is empty" in text
        rows = await at.rows()
        assert {(row.status, row.error, row.tokens.total_tokens) for row in rows} == {
            ("failed", "network", None)
        }


COMPRESSIONS: dict[str, Any] = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.mark.parametrize("coding", COMPRESSIONS)
async def test_compressed_answers_and_errors_reach_every_endpoint_decoded(
    tmp_path: Path, coding: str
) -> None:
    def coded(body: bytes, status: int = 200) -> bytes:
        packed: bytes = COMPRESSIONS[coding](body)
        head = (
            f"HTTP/1.1 {status} Coded\r\ncontent-encoding: {coding}\r\ncontent-length: {len(packed)}\r\n\r\n"
        )
        return head.encode() + packed

    stream = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
    site = Site()
    async with desk(tmp_path, up=site) as at:
        for ask in (at.chat, at.message):
            site.replies(coded(msgspec.json.encode(COMPLETION)))
            response = await ask()
            assert (response.status_code, "Oslo" in response.text) == (200, True)
            assert "content-encoding" not in response.headers
            site.replies(coded(stream + b"data: [DONE]\n\n"))
            response = await ask(stream=True)
            assert (response.status_code, '"hi"' in response.text) == (200, True)
            for read in (False, True):
                site.replies(coded(b'{"error":{"message":"it burns"}}', 400))
                response = await ask(stream=read)
                assert (response.status_code, "it burns" in response.text) == (400, True)


TEXT = res.message("Hi")
ANSWERS: Mapping[str, tuple[str, bytes, bytes]] = {  # where it is relayed, as a document and as a stream
    "openai": (
        "chat/completions",
        msgspec.json.encode(COMPLETION),
        chat_sse(chunk({"content": "Hi"}), chunk(finish="stop")),
    ),
    "anthropic": ("messages", msgspec.json.encode(MESSAGE), UNSTOPPED),
    "responses": (
        "responses",
        msgspec.json.encode(res.ending(TEXT)["response"]),
        res.sse(*res.opening(), *res.text_events(0, TEXT, "Hi"), res.ending(TEXT)),
    ),
}
TEXTS = re.compile(rb'"(model|finish_reason|stop_reason)": ?"[^"]*"')


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("family", ANSWERS)
async def test_half_an_emoji_in_the_texts_of_an_answer_costs_no_usage_record(
    tmp_path: Path, family: str, *, stream: bool
) -> None:
    """One that cannot be written would take those with it that are written at the same time."""
    path, *forms = ANSWERS[family]
    odd = TEXTS.sub(rb'"\1":"\\ud83d"', forms[stream])
    body: dict[str, Any] = {"model": "odd/m", "stream": stream}
    body |= {"input": "Hi", "store": False} if path == "responses" else {"messages": HI, "max_tokens": 100}
    good = Site(ok(ANSWERS["openai"][1]))
    async with desk(tmp_path, odd=Site(ok(odd), type=family), good=good) as at:
        for response in await asyncio.gather(at.http.post(f"/v1/{path}", json=body), at.chat("good/m")):
            assert response.status_code == 200, response.text
        rows = {row.provider: (row.status, row.model_served) for row in await at.rows(2)}
        assert rows["odd"] == ("finished", "\N{REPLACEMENT CHARACTER}")
        assert rows["good"][0] == "finished"
