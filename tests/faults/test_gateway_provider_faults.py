"""Providers that fail: a typed error in the endpoint's format, and nothing invented."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import httpx2
import msgspec
import openai
import pytest

from dragoman.server.app import Hub
from tests.faults.gateway_faults import DOCUMENTS, EARLY, LATE, UNFINISHED, Fault, Faulty, talk
from tests.faults.gateway_upstream import (
    DEADLINE,
    MAIN,
    SPEECHES,
    TEXT,
    WAYS,
    House,
    Speech,
    Way,
    ask,
    complete,
    house,
    opened,
    provider,
)
from tests.providers.servers import ok

IMPATIENT: Mapping[str, Mapping[str, float]] = {  # only with what never comes: all else may come late
    "waits": {"first_byte_timeout": 0.25},
    "reads": {"idle_timeout": 0.25},
}
ASKED = {
    "says nothing": "waits",
    "says only a head": "reads",
    "hangs": "reads",
    "hangs in mid-document": "reads",
}
SILENT = ["timeout"]
BROKEN = ("network", "api_error")  # cut or garbage: both is right, and it depends on where it is noticed
CATEGORIES: Mapping[str, Collection[str]] = {
    "says nothing": SILENT,
    "says only a head": SILENT,
    "hangs": SILENT,
    "hangs in mid-document": SILENT,
    "sends a page": ["api_error"],
    "sends a page as a failure": ["api_error"],
    "fails": ["api_error"],
    "fails with 200": ["api_error"],
    "compresses in an unknown coding": ["api_error"],
    "sends garbage": ["api_error"],
    "sends an error": ["api_error"],
    "sends an error and goes on": ["api_error"],
    "sends an error and hangs": ["api_error"],
    "sends half a frame": BROKEN,
    "sends half a document": BROKEN,
    "sends JSON that is not an answer": BROKEN,
    "sends JSON that is not an object": BROKEN,
}
STATUSES = {"timeout": 504, "network": 502, "api_error": 502}
WORDS: Mapping[str, str] = {
    "resets": "closed the connection",
    "hangs": "stopped sending in the middle of its response",
    "says nothing": "did not start to respond in time",
    "says only a head": "stopped sending",
    "speaks no HTTP": "sent something that is not HTTP",
    "sends headers without end": "sent more than 65536 bytes without any body data",
    "sends a page": "answered with a web page, not with a model's answer: 'Bad Gateway'",
    "sends a page as a failure": "Bad Gateway",
    "fails": "it burns",
    "fails with 200": "it burns",
    "sends nothing": "is empty",
    "sends an error": "it burns",
    "compresses in an unknown coding": "with the content encoding 'lzma'",
    "sends garbage": "sent invalid JSON",
}
INVENTED = (
    b"data: [DONE]",
    b"event: message_stop",
    b"event: message_delta",
    b'"finish_reason":"',
    b'"total_tokens"',
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Told(NamedTuple):
    """What a client was told, and the usage row's status, error and finish."""

    response: httpx2.Response
    row: tuple[str, str | None, str | None]


async def observe(folder: Path, way: Way, faults: Mapping[str, Fault], *, stream: bool) -> Mapping[str, Told]:
    """Ask for each fault, all at once. Only where the provider is silent, the hub's patience is short."""
    models = {name: f"{ASKED.get(name, 'up')}/{name}" for name in faults}
    async with house(folder, way.family, Faulty(faults).script, others=IMPATIENT) as it:
        asking = [it.post(way, stream=stream, model=model) for model in models.values()]
        responses = dict(zip(faults, await asyncio.gather(*asking), strict=True))
        rows = {row.model_asked: row for row in await it.rows(len(faults))}
        assert len(rows) == len(faults)
        await all_closed(it.hub)
    found = {name: rows[model] for name, model in models.items()}
    return {
        name: Told(responses[name], (row.status, row.error, row.finish_reason)) for name, row in found.items()
    }


async def all_closed(hub: Hub) -> None:
    """Nothing is under way at a provider, and no connection is left that has no use any more."""
    assert hub.gateway.active == 0
    for transport in hub._setup.providers.transports:
        async with asyncio.timeout(DEADLINE):
            await transport.wait_idle()
        assert all(connection.is_closing() or not connection._parser for connection in transport._connections)


def error_in(door: str, body: bytes) -> Mapping[str, Any]:
    """The error in a body, which has the shape that the door's clients know."""
    document: dict[str, Any] = msgspec.json.decode(body)
    error: dict[str, Any] = document["error"]
    if door == "openai":
        assert set(document) == {"error"}
        assert set(error) == {"message", "type", "param", "code"}
    else:
        assert (document["type"], set(document)) == ("error", {"type", "error", "request_id"})
        assert set(error) == {"type", "message"}
    return error


def raises(door: str, response: httpx2.Response) -> str:
    """What the door's official client raises for a response; it fails the test when it does not."""
    kind = response.headers["content-type"]
    answer = httpx2.MockTransport(
        lambda _: httpx2.Response(
            response.status_code, content=response.content, headers={"content-type": kind}
        )
    )
    plain: Any = {"api_key": "k", "max_retries": 0, "base_url": "http://hub.test"}
    reply: Any = ask(stream=kind == "text/event-stream")
    with httpx2.Client(transport=answer) as http:
        if door == "openai":
            with pytest.raises(openai.APIError) as raised:
                list(openai.OpenAI(**plain, http_client=http).chat.completions.create(**reply))
            return raised.value.message
        with pytest.raises(anthropic.APIError) as failed:
            list(anthropic.Anthropic(**plain, http_client=http).messages.create(**reply))
        return failed.value.message


def check_early(way: Way, name: str, found: Told) -> None:
    """An HTTP status and an error body: nothing was said yet."""
    status, error, finish = found.row
    response = found.response
    assert (status, finish) == ("failed", None)
    assert error in CATEGORIES.get(name, ["network"]), error
    assert response.status_code == (500 if name == "fails" else STATUSES[error or ""])
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-should-retry"] in ("true", "false")
    assert WORDS.get(name, "") in error_in(way.door, response.content)["message"]
    assert WORDS.get(name, "") in raises(way.door, response)


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_stream_that_does_not_begin_is_an_error_with_a_status(tmp_path: Path, way: Way) -> None:
    for name, found in (await observe(tmp_path, way, EARLY, stream=True)).items():
        check_early(way, name, found)


@pytest.mark.parametrize("way", MAIN, ids=str)
async def test_a_whole_answer_that_fails_is_an_error_with_a_status(tmp_path: Path, way: Way) -> None:
    faults = {**DOCUMENTS, **({} if way.family == "openai" else UNFINISHED)}
    for name, found in (await observe(tmp_path, way, faults, stream=False)).items():
        check_early(way, name, found)


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_stream_that_breaks_ends_with_the_endpoints_own_error_and_nothing_is_invented(
    tmp_path: Path, way: Way
) -> None:
    faults = {**LATE, **OWN.get(way.family, {})}
    for name, (response, row) in (await observe(tmp_path, way, faults, stream=True)).items():
        assert (response.status_code, row[0], row[2]) == (200, "failed", None), name
        assert row[1] in CATEGORIES.get(name, ["network"]), name
        frames = response.content.rstrip(b"\n").split(b"\n\n")
        assert TEXT.encode() in b"".join(frames[:-1])
        assert not any(word in response.content for word in INVENTED), name
        event, _, data = frames[-1].partition(b"data: ")
        assert event == (b"" if way.door == "openai" else b"event: error\n")
        assert WORDS.get(name, "") in error_in(way.door, data)["message"]
        assert WORDS.get(name, "") in raises(way.door, response)


OWN: Mapping[str, Mapping[str, Fault]] = {
    "anthropic": {
        "says message_stop without a reason": lambda speech: [
            complete(talk(speech) + speech.finish + speech.ending)
        ]
    },
}


def plain(speech: Speech) -> bytes:
    """A stream that says that it is a text."""
    return ok(speech.stream, "content-type: text/plain")


ODD: Mapping[str, Fault] = {
    "a stream that says that it is a text": lambda speech: [plain(speech)],
    "a stream": lambda speech: [ok(speech.stream, "content-type: text/event-stream")],
    "a stream with line ends of its own": lambda speech: [ok(speech.stream.replace(b"\n", b"\r\n"))],
    "a document": lambda speech: [ok(speech.whole, "content-type: application/json")],
    "a document that says that it is a stream": lambda speech: [
        ok(b"\n " + speech.whole, "content-type: text/event-stream")
    ],
}


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_an_answer_in_another_form_than_was_asked_for_is_reported_as_it_was_asked_for(
    tmp_path: Path, way: Way
) -> None:
    for name, (response, row) in (await observe(tmp_path, way, ODD, stream=True)).items():
        assert (response.status_code, row) == (200, ("finished", None, row[2])), name
        assert response.headers["content-type"] == "text/event-stream"
        assert response.content.count(b'"hello"') == 1
        end = b"[DONE]" if way.door == "openai" else b'{"type":"message_stop"}'
        assert response.content.count(end) == 1, name
    for name, (response, row) in (await observe(tmp_path, way, ODD, stream=False)).items():
        assert (response.status_code, row) == (200, ("finished", None, row[2])), name
        assert response.headers["content-type"] == "application/json"
        assert TEXT in response.text
        assert msgspec.json.decode(response.content)["usage"], name


async def test_several_answers_in_another_form_than_was_asked_for_are_a_clear_error(tmp_path: Path) -> None:
    way = Way("openai", "openai")
    async with house(tmp_path, way.family, Faulty(ODD).script) as it:
        response = await it.post(way, stream=True, model="up/a document", n=2)
        assert response.status_code == 502
        message = error_in("openai", response.content)["message"]
        assert message == "the provider answered with a document, not with a stream"


async def test_a_provider_that_refuses_connections_is_an_error_with_a_status(tmp_path: Path) -> None:
    config = {"providers": {family: provider(family, "http://127.0.0.1:9") for family in SPEECHES}}
    async with (
        opened(tmp_path, config) as (hub, url),
        httpx2.AsyncClient(base_url=url, timeout=DEADLINE, trust_env=False) as http,
    ):
        for way in WAYS:
            for stream in (True, False):
                body = ask(stream=stream, model=f"{way.family}/m")
                response = await http.post(way.path, json=body)
                assert response.status_code == 502
                assert "127.0.0.1:9" in error_in(way.door, response.content)["message"]
        await all_closed(hub)


LONG = 10_000_000


@pytest.mark.parametrize("way", MAIN, ids=str)
async def test_a_line_of_10_mb_passes_and_one_over_the_limit_is_an_error(tmp_path: Path, way: Way) -> None:
    """The limit of one frame is 32 MiB."""

    def line(speech: Speech, length: int) -> bytes:
        return speech.text.replace(TEXT.encode(), b"x" * length)

    faults: Mapping[str, Fault] = {
        "long": lambda speech: [complete(speech.stream.replace(speech.text, line(speech, LONG)))],
        "too long": lambda speech: [complete(talk(speech) + line(speech, 4 * LONG))],
    }
    found = await observe(tmp_path, way, faults, stream=True)
    assert found["long"].row[0] == "finished"
    pieces = re.findall(rb"x{1000,}", found["long"].response.content)  # a translated one is read in pieces
    assert sum(map(len, pieces)) == LONG
    broken, row = found["too long"]
    assert (row[0], row[1]) == ("failed", "api_error")
    assert b"x" * 1000 not in broken.content
    assert "longer than" in raises(way.door, broken)


@pytest.mark.parametrize("way", MAIN, ids=str)
async def test_the_official_clients_raise_when_a_stream_breaks(tmp_path: Path, way: Way) -> None:
    async with house(tmp_path, way.family, Faulty(LATE).script) as it:
        read: list[str] = []
        with pytest.raises((openai.APIError, anthropic.APIError), match="closed the connection"):
            await read_with_sdk(it, way, read)
        assert "".join(read) == TEXT
        await all_closed(it.hub)


async def read_with_sdk(it: House, way: Way, read: list[str]) -> None:
    """Read a stream that is reset."""
    reply: Any = ask(stream=True, model="up/resets")
    plain: Any = {"api_key": "k", "max_retries": 0, "http_client": it.http}
    if way.door == "openai":
        chat = openai.AsyncOpenAI(base_url=f"{it.url}/v1", **plain).chat
        async for chunk in await chat.completions.create(**reply):
            read += [choice.delta.content or "" for choice in chunk.choices]
        return
    messages = anthropic.AsyncAnthropic(base_url=it.url, **plain).messages
    async for event in await messages.create(**reply):
        if event.type == "content_block_delta":
            read.append(event.delta.text)
