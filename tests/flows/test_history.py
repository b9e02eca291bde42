"""Messages that a context policy dropped can be searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from dragoman.messages import Message, TextPart, ToolPart
from dragoman.providers.scripted import ScriptedProvider
from tests.faults.process import started, write_config
from tests.serving import Frames, Served, ask, frames_in, serving

SECRET = "The code of the vault is zebra-4711."
FILLER: dict[str, Any] = {"text": "word " * 400}
TURNS = 7
NOTE = "[Earlier messages of this conversation were left out to save room. {} finds them.]"


def agents(*pinned: str, policy: str = "truncate") -> dict[str, Any]:
    return {"default": {"operations": pinned, "context": {"policy": policy, "limit": 3000}}}


def batch(tool: str, **input: Any) -> dict[str, Any]:
    """A step in which the model calls an operation through hub_call."""
    return {"tools": [{"name": "hub_call", "input": {"calls": [{"tool": tool, "input": input}]}}]}


SEARCH = batch("history.search", query="vault code")


def call_output(frames: Frames) -> Any:
    """What the calls of an answer gave."""
    return next(frame["output"] for frame in frames if frame["type"] == "tool-output-available")


def first_words(hub: Served) -> list[str]:
    """What each request says first of what a user said."""
    provider = cast(ScriptedProvider, hub.hub.runs.agents.routing.providers["sim"])
    return [words(request.messages) for request in provider.requests]


def words(messages: Sequence[Message]) -> str:
    part = next(message for message in messages if message.role == "user").parts[0]
    assert isinstance(part, TextPart)
    return part.text


async def talk(hub: Served) -> Frames:
    """A conversation too long for its model, which begins with a secret; the last answer."""
    await hub.chat(SECRET)
    for number in range(TURNS - 1):
        await hub.chat(f"tell me {number}")
    return await hub.chat("What is the code of the vault?")


async def test_a_model_finds_and_reads_what_was_dropped(tmp_path: Path) -> None:
    steps = [
        *[FILLER] * TURNS,
        SEARCH,
        batch("history.read", message=f"u-{SECRET}"),
        {"text": "It is zebra-4711."},
    ]
    async with serving(tmp_path, steps, agents=agents()) as hub:
        frames = await talk(hub)
        searched, read = [f["output"][0] for f in frames if f["type"] == "tool-output-available"]
        [hit] = searched["result"]["found"]
        assert (hit["message"], hit["role"]) == (f"u-{SECRET}", "user")
        assert hit["text"] == "The **code** of the **vault** is zebra-4711."
        assert (read["result"]["text"], read["result"]["next_offset"]) == (SECRET, None)
        assert searched["result"]["matched"] == "all"
        noted = [text for text in first_words(hub) if text.startswith("[")]
        assert noted[-1] == NOTE.format("history.search")
        assert SECRET not in first_words(hub)[-1]


@pytest.mark.parametrize(
    ("pinned", "config", "note"),
    [
        (["history.search"], {}, NOTE.format("history_search")),
        ([], {}, NOTE.format("history.search")),
        (
            ["history.search"],
            {"policy": [{"deny": "history.*"}]},
            "[Earlier messages of this conversation were left out to save room.]",
        ),
    ],
)
async def test_the_notice_names_the_search_as_the_model_calls_it_if_it_may(
    tmp_path: Path, pinned: list[str], config: Mapping[str, Any], note: str
) -> None:
    async with serving(tmp_path, [FILLER], play="turns", agents=agents(*pinned), **config) as hub:
        await talk(hub)
        noted = [text for text in first_words(hub) if text.startswith("[")]
        assert noted
        assert set(noted) == {note}


async def test_a_summary_says_where_the_rest_is(tmp_path: Path) -> None:
    async with serving(tmp_path, [FILLER], play="turns", agents=agents(policy="summarise")) as hub:
        await talk(hub)
        noted = [text for text in first_words(hub) if text.startswith("[")]
        begin = (
            "[What was said and done earlier was left out to save room. history.search finds it. This is its"
        )
        assert noted
        assert all(text.startswith(begin) for text in noted)


async def test_a_call_of_no_session_is_told_so_and_one_of_another_finds_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, [FILLER, SEARCH, FILLER]) as hub:
        for name, input in (("search", {"query": "x"}), ("read", {"message": "x"})):
            called = await hub.http.post(f"/api/operations/history.{name}/call", json=input)
            assert called.json()["error"]["code"] == "bad_request"
            assert "not belong to a session" in called.json()["error"]["message"]
        await hub.chat(SECRET)
        [answer] = call_output(await hub.chat("And the code?", session="other"))
        assert answer["result"]["found"] == []


async def test_an_agent_that_works_for_another_one_does_not_look_into_its_conversation(
    tmp_path: Path,
) -> None:
    steps = [
        FILLER,
        batch("agents.finder", prompt="Find the code."),
        SEARCH,
        batch("history.read", message=f"u-{SECRET}"),
        {"text": "There is none."},
        {"text": "No."},
    ]
    config = {"default": {}, "finder": {"description": "Finds things.", "model": "sim/x"}}
    async with serving(tmp_path, steps, agents=config) as hub:
        await hub.chat(SECRET)
        frames = await hub.chat("Have the code found.")
        [answer] = [f["output"] for f in frames if f["type"] == "tool-output-available"][-1]
        assert answer["result"] == "There is none."
        provider = cast(ScriptedProvider, hub.hub.runs.agents.routing.providers["sim"])
        requests = [
            part.output for part in provider.requests[4].messages[-1].parts if isinstance(part, ToolPart)
        ]
        assert len(requests) == 2
        for [result] in requests:
            assert result["error"]["code"] == "bad_request"
            assert "A sub-agent has no history" in result["error"]["message"]


async def test_a_search_over_http_says_what_it_has_not_looked_at_yet(tmp_path: Path) -> None:
    async with serving(tmp_path, [FILLER, FILLER]) as hub:
        hub.hub.store.history.indexing_seconds = 0
        for session in ("one", "two"):
            await hub.chat(SECRET, session=session)
        answers = [(await hub.http.get("/api/search", params={"q": "vault"})).json()]
        while "indexing" in answers[-1]:
            answers.append((await hub.http.get("/api/search", params={"q": "vault"})).json())
        assert [len(answers[0]["found"]), len(answers[-1]["found"])] == [1, 2]
        assert answers[0]["indexing"]["left"] > 0
        assert sum(answers[0]["indexing"].values()) == 4


async def test_the_search_over_http_finds_what_the_owner_said_and_refuses_garbage(tmp_path: Path) -> None:
    async with serving(tmp_path, [FILLER, FILLER], keys=True) as hub:
        hits_by_owner = {}
        for owner in ("ann", "bob"):
            _, secret = await hub.hub.store.keys.create(owner)
            hits_by_owner[owner] = {"authorization": f"Bearer {secret}"}
            body = ask(f"{SECRET} Says {owner}.", session=f"of-{owner}", id=f"u-{owner}")
            await hub.post(body, headers=hits_by_owner[owner])

        async def search(owner: str, **params: Any) -> tuple[int, Any]:
            answer = await hub.http.get("/api/search", params=params, headers=hits_by_owner[owner])
            return answer.status_code, answer.json()

        for owner in hits_by_owner:
            status, found = await search(owner, q="vault says")
            assert (status, found["matched"]) == (200, "all")
            [place] = found["found"]
            assert (place["sessionId"], place["messageId"]) == (f"of-{owner}", f"u-{owner}")
            assert place["snippet"][1] == {"text": "vault", "hit": True}
        assert (await search("ann", q="vault", session="of-bob"))[0] == 404
        assert (await search("ann", q="vault", session="none"))[0] == 404
        assert len((await search("ann", q="vault", session="of-ann"))[1]["found"]) == 1
        for garbage in ('"', "NEAR(", "a NEAR b", "*", "\0", "🜁", "%", "scope : x", "\ufffd"):
            assert (await search("ann", q=garbage)) == (200, {"matched": "text", "found": []}), garbage
        for bad in (
            {},
            {"q": ""},
            {"q": " "},
            {"q": "x" * 10_000},
            {"q": "x", "limit": "0"},
            {"q": "x", "limit": "²"},
        ):
            status, error = await search("ann", **bad)
            assert (status, error["error"]["code"]) == (400, "bad_request"), bad
        assert (await hub.http.get("/api/search?q=vault")).status_code == 401


async def test_what_was_dropped_is_found_after_kill_9(tmp_path: Path) -> None:
    config = write_config(tmp_path, [FILLER], agents=agents())
    async with started(config, tmp_path / "hub") as hub:
        for text in (SECRET, *(f"tell me {number}" for number in range(TURNS))):
            await hub.http.post("/api/chat", json=ask(text))
        await hub.kill()
    config = write_config(tmp_path, [SEARCH, {"text": "Yes."}], agents=agents())
    async with started(config, tmp_path / "hub") as hub:
        answer = await hub.http.post("/api/chat", json=ask("What is the code of the vault?"))
        [searched] = call_output(frames_in(answer.text))
        assert [hit["message"] for hit in searched["result"]["found"]] == [f"u-{SECRET}"]
        found = (await hub.http.get("/api/search", params={"q": "zebra"})).json()["found"]
        assert [place["messageId"] for place in found] == [f"u-{SECRET}"]
