"""A provider's call with too many arguments ends the answer; finding out whether it is complete is linear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.json_decoding import decode_json
from dragoman.wire import tool_calls
from dragoman.wire.openai.decoder import OpenAIDecoder
from dragoman.wire.openai.tap import OpenAITap
from dragoman.wire.tool_calls import MAX_ARGUMENTS
from tests.gateway.metered_hub import SSE_HEAD, Site, desk
from tests.providers.servers import chunk, ok
from tests.waiting import until
from tests.wire import anthropic_streams, ollama_streams, openai_streams

PIECES = ['{"a":"', *['\\n\\"' * 10_000] * (MAX_ARGUMENTS // 40_000), '"}']


def openai_call(*pieces: str) -> bytes:
    """A stream with one call."""
    head = {"index": 0, "id": "c1", "type": "function", "function": {"name": "write", "arguments": ""}}
    deltas: list[Any] = [head, *({"index": 0, "function": {"arguments": piece}} for piece in pieces)]
    chunks = [openai_streams.chunk({"tool_calls": [delta]}) for delta in deltas]
    return openai_streams.sse(*chunks, openai_streams.chunk(finish="tool_calls"))


def anthropic_call(*pieces: str) -> bytes:
    """The same."""
    return anthropic_streams.sse(
        anthropic_streams.start(),
        *anthropic_streams.call(0, "c1", "write", *pieces),
        anthropic_streams.stop("tool_use"),
        {"type": "message_stop"},
    )


def ollama_call(*pieces: str) -> bytes:
    """The same."""
    call = ollama_streams.call("write", decode_json("".join(pieces)))
    message = ollama_streams.line(tool_calls=[call])
    return ollama_streams.ndjson(message, ollama_streams.last())


STREAMS = {"openai": openai_call, "anthropic": anthropic_call, "ollama": ollama_call}


class OpenStream:
    """Sends a stream without its end, and counts the clients that close the connection meanwhile."""

    def __init__(self, body: bytes) -> None:
        self.closed = 0
        self._body = body

    async def reply(self, peer: Any, _: Any) -> None:
        """Reply to one request."""
        await peer.send(SSE_HEAD + chunk(self._body))
        await peer.gone()
        self.closed += 1


@pytest.mark.parametrize("family", STREAMS)
async def test_a_call_above_the_limit_fails_the_answer_and_closes_the_connection(
    tmp_path: Path, family: str
) -> None:
    stream = OpenStream(STREAMS[family](*PIECES))
    site = Site(stream.reply, type=family)
    expected = (
        f"the arguments of the provider's call of the tool 'write' have more than {MAX_ARGUMENTS} characters"
    )
    config: dict[str, Any] = {"up": site, "model": "up/m"}
    async with desk(tmp_path, **config) as at:
        answers = []
        if family != "openai":
            answers += [(await at.chat()).text, (await at.chat(stream=True)).text]
        if family != "anthropic":
            answers += [(await at.message()).text, (await at.message(stream=True)).text]
        for answer in answers:
            assert expected in answer, answer[:500]
        frames = await at.run("Hi")
        (text,) = [frame["errorText"] for frame in frames if frame["type"] == "error"]
        assert expected in text
        rows = await at.rows(len(answers) + 1)
        assert {(row.status, row.error) for row in rows} == {("failed", "api_error")}
        assert all(row.cost for row in rows)
        await until(lambda: stream.closed == len(rows))


@pytest.mark.parametrize("family", ["openai", "anthropic"])
async def test_a_relay_within_a_family_passes_a_long_call_on(tmp_path: Path, family: str) -> None:
    body = STREAMS[family](*PIECES)
    site = Site(SSE_HEAD + chunk(body) + b"0\r\n\r\n", type=family)
    async with desk(tmp_path, up=site) as at:
        ask = at.chat if family == "openai" else at.message
        response = await ask(stream=True)
        assert response.content.count(b'\\\\n\\\\\\"') == MAX_ARGUMENTS // 4


async def test_the_limit_of_arguments_is_configurable(tmp_path: Path) -> None:
    body = openai_call('{"a":"', "x" * 3_000, '"}')
    site = Site(SSE_HEAD + chunk(body) + b"0\r\n\r\n")
    for most, status in ((4_000, 200), (3_000, 502)):
        async with desk(tmp_path / str(most), up=site, limits={"arguments": most}) as at:
            answer = await at.message()
            assert answer.status_code == status, answer.text
            if status == 502:
                assert "have more than 3000 characters" in answer.text
                assert "`limits.arguments` sets the limit" in answer.text


def test_a_call_at_the_limit_is_decoded() -> None:
    padding = MAX_ARGUMENTS - len('{"a":""}')
    for extra in (0, 1):
        decoder = OpenAIDecoder()
        events = decoder.feed(openai_call('{"a":"', "x" * (padding + extra), '"}'))
        assert (decoder.failure is None, events[-1].type == "finish-step") == (not extra, not extra)


@pytest.mark.parametrize("fragment", ["{}", ' {"a":1}', '\n"}', "{[]}", "}{", '{"}'])
@pytest.mark.parametrize("begin", ['{"a":"', '{"a":[', "{}x", "}"])
def test_fragments_that_look_complete_are_decoded_in_linear_time(
    monkeypatch: pytest.MonkeyPatch, begin: str, fragment: str
) -> None:
    decoded = 0

    def count(text: Any, *options: Any) -> Any:
        nonlocal decoded
        decoded += len(text)
        return decode_json(text, *options)

    monkeypatch.setattr(tool_calls, "decode_json", count)
    stream = openai_call(begin, *[fragment] * 500)
    for reader in (OpenAIDecoder(), OpenAITap()):
        decoded = 0
        for start in range(0, len(stream), 1000):
            reader.feed(stream[start : start + 1000])
        assert decoded <= 4 * len(begin + fragment * 500), type(reader)


def openai_document(arguments: str) -> Any:
    """A document with one call."""
    call = {"id": "c1", "type": "function", "function": {"name": "write", "arguments": arguments}}
    message = {"role": "assistant", "content": "Now.", "tool_calls": [call]}
    usage = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": usage}
    return {**head, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


def anthropic_document(arguments: str) -> Any:
    """The same."""
    call = {"type": "tool_use", "id": "c1", "name": "write", "input": decode_json(arguments)}
    usage = {"input_tokens": 1000, "output_tokens": 500}
    head = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use"}
    return {**head, "content": [{"type": "text", "text": "Now."}, call], "usage": usage}


def ollama_document(arguments: str) -> Any:
    """The same."""
    message = {
        "role": "assistant",
        "content": "Now.",
        "tool_calls": [ollama_streams.call("write", decode_json(arguments))],
    }
    counts = {"prompt_eval_count": 1000, "eval_count": 500}
    return {"model": "m", "message": message, "done": True, "done_reason": "stop", **counts}


DOCUMENTS = {"openai": openai_document, "anthropic": anthropic_document, "ollama": ollama_document}


@pytest.mark.parametrize("family", DOCUMENTS)
async def test_a_document_with_a_call_above_the_limit_is_told_and_charged(
    tmp_path: Path, family: str
) -> None:
    document = DOCUMENTS[family]('{"a":"%s"}' % ("x" * MAX_ARGUMENTS))
    async with desk(
        tmp_path,
        up=Site(ok(msgspec.json.encode(document), "content-type: application/json"), type=family),
        model="up/m",
    ) as at:
        ask = at.message if family == "openai" else at.chat
        answer = await ask()
        assert (answer.status_code, "have more than" in answer.text) == (502, True)
        frames = await at.run("Hi")
        (text,) = [frame["errorText"] for frame in frames if frame["type"] == "error"]
        assert "have more than" in text
        assert "Now." in [frame["delta"] for frame in frames if frame["type"] == "text-delta"]
        for row in await at.rows(2):
            assert (row.status, row.tokens.input_tokens, row.tokens.output_tokens) == ("failed", 1000, 500)
            assert row.cost == pytest.approx(0.002)
