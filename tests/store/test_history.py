"""Full-text search of messages, by owner."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dragoman.errors import NotFound
from dragoman.events import Data
from dragoman.messages import (
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolPart,
    encode_part,
)
from dragoman.operations.message_search import MemoryMessageSearch, MessageSearchResult, SnippetPiece
from dragoman.store.store import Store
from tests.store.places import Place
from tests.store.samples import FINISHED, assistant, converse, run, session, text, user

GARBAGE = [
    '"',
    '""""',
    "NEAR(a b)",
    "a NEAR/2 b",
    "* ^ : - + ( ) { }",
    "scope : o1",
    "text:hotel OR *",
    "\0",
    "hotel\0river",
    "🜁",
    "🜁 hotel",
    "word " * 2_000,
    "x" * 10_000,
    "\ud800",
    "%_!",
    "'; DROP TABLE passages; --",
    "AND OR NOT",
    " ",
]


async def say(store: Store, *parts: Part, id: str = "m", at: str = "s", owner: str = "ann") -> None:
    """A message with these parts, in a session of its owner."""
    begun = run(f"r-{at}-{id}", session_id=at, message_id=id)
    message = Message(id, "user", parts)
    await store.runs.create(begun, session=session(at, owner=owner), assistant=message)
    await store.runs.finish(begun.id, FINISHED)


async def look(store: Store, query: str, *, owner: str = "ann", **more: Any) -> list[tuple[str, str]]:
    """Session and message of what is found."""
    found = await store.history.search(query, owner=owner, **more)
    return [(passage.session_id, passage.message_id) for passage in found.passages]


def marked(found: MessageSearchResult) -> list[str]:
    """The snippets, with brackets around the hits."""
    return [
        "".join(f"[{piece.text}]" if piece.hit else piece.text for piece in passage.snippet)
        for passage in found.passages
    ]


async def test_words_are_found_with_what_stands_around_them(store: Store) -> None:
    await say(store, TextPart("We stay at the hotel\nby the river, in Lisbon."))
    found = await store.history.search("RIVER hotel", owner="ann")
    assert found.matched == "all"
    (passage,) = found.passages
    assert (passage.session_id, passage.title, passage.message_id) == ("s", None, "m")
    assert (passage.role, passage.created_at) == ("user", 1_000.0)
    assert passage.snippet[:4] == (
        SnippetPiece("We stay at the "),
        SnippetPiece("hotel", hit=True),
        SnippetPiece(" by the "),
        SnippetPiece("river", hit=True),
    )


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Der Müller mahlt", "muller"),
        ("Der Muller mahlt", "MÜLLER"),
        ("Der Müller mahlt", "mu\u0308ller"),
        ("die Rechnungsnummer 4711", "rechnung"),
        ("die Rechnungsnummer 4711", "471"),
        ("call hub_call again", "hub_call"),
        ("mail ann@example.org now", "ann@example.org"),
        ("Größe und Straße", "straße"),
        ("これは日本語のテキストです", "日本語"),
        ("what a 🜁 sign", "🜁"),
        ("costs 100% more", "%"),
        ("a\0b null", "null"),
    ],
)
async def test_words_are_found_whatever_their_case_accents_ends_and_letters(
    store: Store, text: str, query: str
) -> None:
    await say(store, TextPart("something else entirely"), id="other")
    await say(store, TextPart(text))
    assert await look(store, query) == [("s", "m")]


async def test_a_short_word_is_only_itself(store: Store) -> None:
    await say(store, TextPart("as it was"), id="1")
    await say(store, TextPart("a asset"), id="2")
    assert await look(store, "as") == [("s", "1")]


async def test_the_word_itself_comes_before_longer_ones_and_what_says_it_often_first(store: Store) -> None:
    await say(store, TextPart("artistic " + "words " * 9), id="longer")
    await say(store, TextPart("art " + "words " * 9), id="itself")
    await say(store, TextPart("art art art " + "words " * 7), id="often")
    assert [id for _, id in await look(store, "art")] == ["often", "itself", "longer"]


async def test_where_nothing_holds_all_words_what_holds_some_is_found(store: Store) -> None:
    await say(store, TextPart("the password is swordfish"))
    await say(store, TextPart("nothing of it"), id="n")
    found = await store.history.search("which password did Bob choose?", owner="ann")
    assert (found.matched, [each.message_id for each in found.passages]) == ("some", ["m"])


async def test_calls_and_files_are_found_and_what_nobody_reads_is_not(store: Store) -> None:
    blob = "QUJD" * 200
    call = ToolPart(
        "tool-hub_call",
        "c",
        "output-available",
        input={"calls": [{"tool": "web.fetch", "input": {"url": "https://a.example/zebra"}}]},
        output=[{"success": True, "result": {"text": "first\nsecond \u00fcbung", "image": blob}}],
    )
    failed = ToolPart("tool-look", "d", "output-error", input={}, error_text="no such koala")
    await say(store, call, id="call")
    await say(store, failed, id="failed")
    await say(
        store, FilePart(media_type="application/pdf", url="data:,", filename="Angebot-Pinguin.pdf"), id="file"
    )
    await say(store, ReasoningPart(text="secretly thinking of gnus"), id="thought")
    for word in ("zebra", "fetch", "second", "ubung"):
        assert await look(store, word) == [("s", "call")], word
    assert await look(store, "koala") == [("s", "failed")]
    assert await look(store, "pinguin angebot") == [("s", "file")]
    assert await look(store, "gnus") == []
    assert await look(store, blob[:60]) == []


async def test_a_long_result_is_found_by_its_beginning(store: Store) -> None:
    call = ToolPart("tool-look", "c", "output-available", input={}, output="begin " + "x " * 40_000 + "finis")
    await say(store, call)
    assert (await look(store, "begin"), await look(store, "finis")) == ([("s", "m")], [])


async def test_a_search_does_not_find_the_searches_before_it(store: Store) -> None:
    calls = [
        {"tool": "history.search", "input": {"query": "zebra"}},
        {"tool": "math.add", "input": {"a": 77}},
    ]
    batch = ToolPart(
        "tool-hub_call",
        "c",
        "output-available",
        input={"calls": calls},
        output=[{"success": True, "result": {"found": ["a zebra"]}}, {"success": True, "result": 777}],
    )
    await say(store, batch, id="batch")
    await say(
        store, ToolPart("tool-history_search", "d", "output-available", input={"query": "zebra"}), id="own"
    )
    assert await look(store, "zebra") == []
    assert await look(store, "777") == [("s", "batch")]


async def test_each_message_is_found_once_by_its_best_part(store: Store) -> None:
    await say(
        store, *(TextPart(f"hotel number {number}") for number in range(9)), TextPart("hotel hotel hotel")
    )
    await say(store, TextPart("a hotel"), id="n")
    assert sorted(await look(store, "hotel")) == [("s", "m"), ("s", "n")]
    assert await look(store, "hotel", limit=1) == [("s", "m")]


@pytest.mark.promise("a-key-sees-its-own-sessions")
async def test_nobody_finds_what_was_said_in_sessions_of_others(store: Store) -> None:
    await say(store, TextPart("hotel 🜁 % word x AND a b scope o1"), at="bobs", owner="bob")
    for query in ("hotel", "hotel nowhere", "🜁", "%", *GARBAGE):
        assert await look(store, query) == [], query
        assert await look(store, query, session_id="bobs") == [], query
        assert await look(store, query, session_id="bobs", truncated_only=True) == [], query
    with pytest.raises(NotFound):
        await store.history.read("bobs", "m", owner="ann")
    assert (await store.history.read("bobs", "m", owner="bob")).text.startswith("hotel")


async def test_one_session_of_many_can_be_searched(store: Store) -> None:
    for at in ("s1", "s2"):
        await say(store, TextPart("hotel"), at=at)
    assert sorted(await look(store, "hotel")) == [("s1", "m"), ("s2", "m")]
    assert await look(store, "hotel", session_id="s2") == [("s2", "m")]
    assert await look(store, "hotel", session_id="s3") == []


async def test_whatever_is_asked_is_only_words(store: Store) -> None:
    await say(store, TextPart("hotel by the river"))
    for query in GARBAGE:
        found = await store.history.search(query, owner="ann")
        expected = [("s", "m")] if query in ("hotel\0river", "🜁 hotel") else []
        assert [(each.session_id, each.message_id) for each in found.passages] == expected, query


async def test_the_index_follows_what_is_written_changed_and_deleted(store: Store, place: Place) -> None:
    await store.runs.create(run(), session=session(), user=user("u", "zero"), assistant=assistant())

    async def put(*changed: tuple[int, Part], count: int | None = None) -> None:
        raw = [(position, encode_part(part)) for position, part in changed]
        await store.write(store.messages.write_parts_job("s", "a", changed=raw, count=count))

    await put((0, TextPart("one grow", state="streaming")))
    assert await look(store, "grow") == []
    await put((0, TextPart("one grown", state="done")), (1, TextPart("two")), (2, TextPart("three")))
    assert await look(store, "grown") == [("s", "a")]
    await put((1, TextPart("deux")), (2, ReasoningPart(text="hm")))
    assert [await look(store, word) for word in ("two", "three", "deux")] == [[], [], [("s", "a")]]
    await put(count=1)
    assert [await look(store, word) for word in ("deux", "grown")] == [[], [("s", "a")]]
    place.check_index()
    await store.runs.finish("r", FINISHED)
    again = run("r2", message_id="b")
    await store.runs.create(again, drop_from="a", assistant=assistant("b", "other"))
    assert [await look(store, word) for word in ("grown", "zero", "other")] == [
        [("s", "a")],
        [("s", "u")],
        [("s", "b")],
    ]
    await store.runs.finish("r2", FINISHED)
    await store.session_deletion.delete("s")
    assert await look(store, "zero") == []
    place.check_index()


async def test_what_is_written_twice_is_indexed_once(store: Store, place: Place) -> None:
    await store.runs.create(run(), session=session(), assistant=assistant())
    for _ in range(3):
        await store.write(store.messages.write_parts_job("s", "a", changed=[(0, text("again"))]))
    assert await look(store, "again") == [("s", "a")]
    place.check_index()


async def test_a_snippet_is_short_and_on_one_line_whatever_the_text(store: Store) -> None:
    await say(store, TextPart("日" * 5_000 + "\x02" + "本" * 5_000))
    await say(store, TextPart(("y" * 200 + " ") * 50 + "needle\n\n\t" + ("z" * 200 + " ") * 50), id="n")
    for query in ("日", "needle"):
        (snippet,) = marked(await store.history.search(query, owner="ann"))
        assert len(snippet) < 700
        assert "\n" not in snippet


def cut(to: str) -> DataPart:
    data = {"kind": "truncate", "dropped": 2, "from": "u0", "to": to}
    event = Data("data-context", data)
    return DataPart(event.type, event.data)


async def unseen(store: Store, query: str) -> Sequence[str]:
    found = await store.history.search(query, owner="ann", session_id="s", truncated_only=True)
    return sorted(passage.message_id for passage in found.passages)


async def test_a_model_finds_what_it_is_not_shown_any_more(store: Store) -> None:
    await converse(store, "hotel one?", "hotel two?", "hotel three?", "which hotel?")
    assert await unseen(store, "hotel") == ["u0", "u1", "u2"]  # nothing dropped yet: all before the question
    await store.write(store.messages.write_parts_job("s", "a1", changed=[(1, encode_part(cut("a0")))]))
    assert await unseen(store, "hotel") == ["u0"]
    await store.write(store.messages.write_parts_job("s", "a3", changed=[(1, encode_part(cut("gone")))]))
    assert await unseen(store, "hotel") == ["u0"]  # that one was made of messages that are not there any more
    await store.write(store.messages.write_parts_job("s", "a3", changed=[(1, encode_part(cut("a3")))]))
    assert await unseen(store, "hotel") == ["u0", "u1", "u2"]  # into the answer: its question is still shown


async def test_a_message_is_read_in_words(store: Store) -> None:
    call = ToolPart("tool-look", "c", "output-available", input={"at": "x"}, output=[1, {"y": "z"}])
    await say(store, TextPart("First."), ReasoningPart(text="hm"), call, TextPart("Last."))
    message = await store.history.read("s", "m", owner="ann")
    assert (message.role, message.text) == ("user", "First.\n\nlook\nat: x\n1\ny: z\n\nLast.")
    with pytest.raises(NotFound, match="'n'"):
        await store.history.read("s", "n", owner="ann")


async def test_the_history_in_memory_tells_the_same_of_a_text(store: Store) -> None:
    await converse(store, "where is the hotel?", "why?")
    memory = MemoryMessageSearch(await store.messages.list("s"), owner="ann")
    for query, owner in (("hotel", "ann"), ("hotel", "bob"), ("why", "ann"), ("nothing", "ann")):
        stored = await store.history.search(query, owner=owner, session_id="s", truncated_only=True)
        in_memory = await memory.search(query, owner=owner, session_id="s", truncated_only=True)
        assert marked(in_memory) == marked(stored), query
    assert (await memory.read("s", "u0", owner="ann")).text == "where is the hotel?"
    with pytest.raises(NotFound):
        await memory.read("s", "u0", owner="bob")


async def test_searches_beside_writes_find_what_was_acknowledged(store: Store) -> None:
    async def talk(number: int) -> None:
        await say(store, TextPart(f"needle{number}"), at=f"s{number}")
        assert await look(store, f"needle{number}") == [(f"s{number}", "m")]

    await asyncio.gather(*(talk(number) for number in range(100, 150)))
    assert len(await look(store, "needle", limit=50)) == 50
