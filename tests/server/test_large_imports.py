"""Files of many megabytes are imported in pieces: the hub's memory and event loop do not feel their size."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.wire.session_export import importer
from tests.effort import rounds
from tests.loop_lag import MOST, TRIES
from tests.server.asgi_client import AsgiClient
from tests.serving import serving

MEGABYTES = rounds(quick=6, thorough=200)
TEXT = 'Wörter \\ " {[ \n' * 1_500
HEAD = b'{"format":"dragoman-session","version":1,"title":"long"}\n'


def message(number: int) -> bytes:
    parts = [{"type": "text", "text": TEXT}]
    return msgspec.json.encode({"id": f"m{number}", "role": "user", "parts": parts})


def json_lines() -> Iterator[bytes]:
    """One session."""
    yield HEAD
    for number in range(MEGABYTES * 1_000_000 // len(message(0))):
        yield message(number) + b"\n"


def conversations() -> Iterator[bytes]:
    """Several of ChatGPT, as it exports them."""
    size = 40 * len(TEXT)
    yield b"["
    for number in range(MEGABYTES * 1_000_000 // size):
        nodes: dict[str, Any] = {"n-1": {"message": None, "parent": None}}
        for at in range(40):
            question = {"id": f"m{at}", "author": {"role": "user"}, "content": {"parts": [TEXT]}}
            nodes[f"n{at}"] = {"parent": f"n{at - 1}", "message": question}
        conversation = {"title": f"No. {number}", "current_node": "n39", "mapping": nodes}
        yield (b", " if number else b"") + msgspec.json.encode(conversation)
    yield b"]\n"


def opencode(size: int = MEGABYTES * 1_000_000) -> Iterator[bytes]:
    """One conversation of OpenCode, as it exports it; what it is stands behind its messages."""
    yield b'{"x\\"messages": [1, "messages"], "messages" : [\n'
    for number in range(size // len(TEXT)):
        parts = [{"type": "text", "text": TEXT}]
        each = {"info": {"id": f"m{number}", "role": "user"}, "parts": parts}
        yield (b", " if number else b"") + msgspec.json.encode(each)
    yield b'], "info": {"title": "No. 1", "messages": [{}]}}\n'


FILES: dict[str, Callable[[], Iterator[bytes]]] = {
    "lines": json_lines,
    "conversations": conversations,
    "opencode": opencode,
}


@pytest.mark.promise("imports")
@pytest.mark.parametrize("name", FILES)
async def test_the_memory_of_the_hub_does_not_grow_with_a_file(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "MAX_VALUE", 2_000_000)  # above it, one conversation is read in pieces

    async def content() -> AsyncIterator[bytes]:
        for piece in FILES[name]():
            yield piece

    async with serving(tmp_path) as hub:
        await hub.http.post("/api/sessions/import", content=HEAD + message(0))  # what is loaded once
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            answer = await hub.http.post("/api/sessions/import?", content=content(), timeout=600)
            grown = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
        assert answer.status_code == 201, answer.text
        sessions = answer.json().get("sessions", [answer.json()])
        first = await hub.messages(sessions[0]["id"])
        assert len(first) == sessions[0]["messages"]
        assert first[-1]["parts"][0]["text"] == TEXT
        assert grown < 9_000_000


@pytest.mark.parametrize("name", ["lines", "conversations"])  # one conversation is read as lines are
async def test_an_import_does_not_hold_the_event_loop(tmp_path: Path, name: str) -> None:
    file = b"".join(FILES[name]())
    lags = list[float]()
    async with serving(tmp_path) as hub:
        client = AsgiClient(hub.hub.app)
        for number in range(TRIES):
            status, answer = await client.post(
                "/api/sessions/import", file.replace(b"o. ", b"o. %d" % number)
            )
            assert status in (201, 409), answer[:300]
            lags.append(client.lag)
            if client.lag <= MOST:
                break
    assert min(lags) <= MOST


async def test_a_long_conversation_is_read_as_a_short_one_is_or_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "opencode": b"".join(opencode(5 * len(TEXT))),
        "own": msgspec.json.encode(
            {"messages": [msgspec.json.decode(message(number)) for number in range(3)], "title": "Own"}
        ),
    }
    for at, whole in enumerate(files.values()):
        async with serving(tmp_path / str(at)) as hub:
            read = []
            for limit, id in ((100 * len(whole), "short"), (len(TEXT) * 2, "long")):
                monkeypatch.setattr(importer, "MAX_VALUE", limit)
                answer = await hub.http.post(f"/api/sessions/import?id={id}", content=whole)
                assert answer.status_code == 201, answer.text
                session = (await hub.http.get(f"/api/sessions/{id}")).json()
                read.append((session["title"], await hub.messages(id)))
            assert read[0] == read[1]
            assert len(read[0][1]) > 2
            refused = {
                whole[:-3]: "cut off",
                whole.replace(b'"role"', b'"rule"'): "messages[0]",
                whole.replace(b'"m2"', b'"m1"'): "two messages",
                whole.replace(b'"messages":[{"id"', b'"messages":[[{"id"').replace(
                    b"[\n{", b"[\n7,{"
                ): "messages",
                b'{"title": "' + b"x" * 3 * len(TEXT) + b'", "messages": []}': "beside its messages",
                b'{"mapping": {}, "x": "' + b"x" * len(TEXT) * 2 + b'"}': "",
            }
            for file, text in refused.items():
                answer = await hub.http.post("/api/sessions/import", content=file)
                assert answer.status_code in (400, 413), answer.text
                assert text in answer.text
            listed = (await hub.http.get("/api/sessions")).json()["sessions"]
            assert {each["id"] for each in listed} == {"short", "long"}, "nothing is left of what was refused"


def branching(title: str) -> bytes:
    """A conversation of ChatGPT of which little is text, with two branches, and its nodes in no order."""
    nodes: dict[str, Any] = {'root"{\\': {"id": 'root"{\\', "message": None, "parent": None}}
    parents = {"a": 'root"{\\', "b": "a", "c": "b", "other": "a", "d": "c"}
    for at, (id, parent) in enumerate(parents.items()):
        question = {
            "id": f"m-{id}",
            "author": {"role": "assistant" if at % 2 else "user"},
            "content": {"content_type": "text", "parts": [f"{id}: Wörter ]}} \\ {TEXT[:50]}", {"x": [1]}]},
            "metadata": {"results": [{"blob": TEXT}, {"messages": [{}], "mapping": {"y": {}}}]},
        }
        nodes[id] = {"id": id, "message": question, "parent": parent, "children": []}
    mixed = dict(sorted(nodes.items(), key=lambda item: item[0][::-1], reverse=True))
    return msgspec.json.encode({"title": title, "mapping": mixed, "current_node": "d"})


async def test_a_long_conversation_of_chatgpt_is_read_as_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = branching("One"), branching("Two")
    files = [one, b"[ " + one + b" ,\n" + two + b"]"]
    found: list[Any] = []
    for number, limit in enumerate((100 * len(one), len(TEXT) * 2)):
        monkeypatch.setattr(importer, "MAX_VALUE", limit)
        async with serving(tmp_path / str(number)) as hub:
            single, several = [
                (await hub.http.post("/api/sessions/import", content=file)).json() for file in files
            ]
            found.append((single["id"], several["existing"], [each["id"] for each in several["sessions"]]))
            for id in (single["id"], several["sessions"][0]["id"]):
                session = (await hub.http.get(f"/api/sessions/{id}")).json()
                found.append((session["title"], await hub.messages(id)))
            short = [each["parts"][0]["text"][:1] for each in found[-1][1]]
            assert short == ["a", "b", "c", "d"]
            if number == 0:
                continue
            refused = {
                one[:-3]: "cut off",
                files[1][:-30]: "cut off",
                one.replace(b'"c":{"id"', b'"c":[],"e":{"id"'): "JSON array of objects",
                one.replace(b'"c":{"id"', b'"c" "e":{"id"'): "JSON array of objects",
                one.replace(b'"c":{"id"', b'"\\ud8":{"id"'): "key of a message",
                one.replace(b'"parts":["c', b'"parts":["' + b"c" * limit): "more than",
                b"[" + msgspec.json.encode({"messages": [], "title": "x" * 3 * limit}) + b"]": "more than",
            }
            for file, text in refused.items():
                answer = await hub.http.post("/api/sessions/import", content=file)
                assert answer.status_code in (400, 413), (text, answer.text)
                assert text in answer.text
            monkeypatch.setattr(importer, "MAX_NODES", 5)
            answer = await hub.http.post("/api/sessions/import", content=branching("Three"))
            assert (answer.status_code, "5 messages" in answer.text) == (413, True)
    assert found[:3] == found[3:]
