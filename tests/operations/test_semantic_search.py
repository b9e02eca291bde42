"""Semantic search: when it is used, and the message without its packages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from re import sub
from typing import Any

import pytest

from dragoman.errors import ConfigError
from dragoman.operations import Operation, Registry
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import Context
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.search.embedder import Embedder, HashingEmbedder, embedding_text, import_extra
from dragoman.operations.search.search import OperationSearch
from dragoman.operations.search.semantic_index import SemanticIndex, query_parts
from dragoman.operations.search.wordllama import WordLlamaEmbedder
from tests.waiting import LIMIT

pytestmark = pytest.mark.anyio


def made(id: str, description: str = "") -> Operation:
    async def nothing(*_: Any) -> None: ...

    namespace, _, name = id.partition(".")
    return Operation.from_schema(nothing, {}, namespace=namespace, name=name, description=description)


def test_a_package_that_is_missing_is_said_with_what_to_install() -> None:
    with pytest.raises(ConfigError, match="'no_such_package'") as caught:
        import_extra("no_such_package")
    assert caught.value.hint == "Install dragoman[semantic], or set search.embeddings to none."


def test_texts_with_the_same_words_have_the_same_vector() -> None:
    one, other, third = HashingEmbedder().embed(["paint a wall", "wall, painted", "send mail"])
    assert one == other != third
    assert sum(each * each for each in one) == pytest.approx(1.0)
    assert HashingEmbedder(8).embed([""]) == [[0.0] * 8]


def test_an_operation_is_described_by_name_place_text_and_parameters() -> None:
    async def nothing(*_: Any) -> None: ...

    schema: dict[str, Any] = {"properties": {"colour": {}}}
    painted = Operation.from_schema(
        nothing, schema, namespace="home", name="paint_wall", description="With a brush."
    )
    assert embedding_text(painted) == "paint wall home: With a brush. (colour)"


class Synonyms:
    """Knows two words for a thing, no numbers; has a gate, notes what it is asked, may fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.waits = threading.Event()
        self.embedded: list[str] = []
        self.failures = 0
        self._words = HashingEmbedder(256)

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        if threading.current_thread() is not threading.main_thread():
            self.waits.set()
            self.gate.wait(LIMIT)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no model today")
        self.embedded.extend(texts)
        return self._words.embed([sub(r"\d", "", text.replace("automobile", "car")) for text in texts])


@asynccontextmanager
async def searching(
    embedder: Embedder, *operations: Operation
) -> AsyncIterator[tuple[Registry, OperationSearch, Any]]:
    """A search with meanings that keeps up."""
    registry, meanings = Registry(*operations), SemanticIndex(embedder, retry_seconds=0.01)
    search = OperationSearch(registry, semantic_index=meanings)
    task = asyncio.create_task(meanings.run())
    try:
        yield registry, search, meanings
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settled(meanings: Any) -> None:
    async with asyncio.timeout(LIMIT):
        await meanings.idle.wait()


GARAGE = (made("garage.rent", "Rent a car."), made("town.walk", "Walk the town."))


def names(search: OperationSearch, q: str) -> list[str]:
    return [each.id for each in search.rank(q, 10)]


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("rent a car", []),
        ("Rent a car. Then walk the town!", ["Rent a car.", "Then walk the town!"]),
        (
            "rent a car and   walk the town, also book a room",
            ["rent a car", "walk the town,", "also book a room"],
        ),
        ("rent a car, please", []),  # the rest is too short to say anything
        ("a b c. " * 100, ["a b c."] * 8),
    ],
)
def test_a_query_has_the_parts_that_it_is_written_in(query: str, parts: Sequence[str]) -> None:
    assert list(query_parts(query)) == parts


class Vectors:
    """Knows a vector for each text: by the word that it has."""

    def __init__(self, **vectors: Sequence[float]) -> None:
        self._vectors = vectors

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return [next(vector for word, vector in self._vectors.items() if word in text) for text in texts]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("something whole", ["o.near", "o.far"]),
        ("something whole. one first part, one second part", ["o.far", "o.near"]),
    ],
)
async def test_what_is_like_a_part_of_a_query_counts_as_well_as_what_is_like_the_whole(
    query: str, found: list[str]
) -> None:
    embedder = Vectors(near=(0.8, 0.6), far=(0.4, 0.9), whole=(1.0, 0.0), first=(1.0, 0.0), second=(0.4, 0.9))
    async with searching(embedder, made("o.near", "Near."), made("o.far", "Far.")) as (_, search, meanings):
        await settled(meanings)
        assert names(search, query) == found


async def test_words_count_alone_until_all_operations_have_vectors() -> None:
    embedder = Synonyms()
    embedder.gate.clear()
    async with searching(embedder, *GARAGE) as (_, search, meanings):
        assert names(search, "automobile") == []
        embedder.gate.set()
        await settled(meanings)
        assert names(search, "automobile") == ["garage.rent"]
        assert names(search, "walk town")[0] == "town.walk"


async def test_a_model_that_takes_long_embeds_queries_beside_the_event_loop() -> None:
    embedder = Synonyms()
    async with searching(embedder, *GARAGE) as (registry, search, meanings):
        await settled(meanings)
        embedder.gate.clear()
        embedder.waits.clear()
        async with asyncio.timeout(LIMIT), Calls(registry, MemoryLedger()) as calls:
            tools = MetaTools(registry, calls, search=search)
            found = asyncio.create_task(tools.run("hub.search", {"q": "automobile"}, context=Context()))
            assert await asyncio.to_thread(embedder.waits.wait, LIMIT)  # the loop runs on meanwhile
            embedder.gate.set()
            outcome = await found
        assert [each["tool"] for each in outcome.result["tools"]] == ["garage.rent"]


async def test_an_operation_that_comes_later_is_found_by_words_at_once_and_by_meaning_soon() -> None:
    embedder = Synonyms()
    async with searching(embedder, *GARAGE) as (registry, search, meanings):
        await settled(meanings)
        embedder.gate.clear()
        registry.add(made("dealer.buy", "Buy a car."))
        assert set(names(search, "car")) == {"garage.rent", "dealer.buy"}
        embedder.gate.set()
        await settled(meanings)
        assert set(names(search, "automobile")) == {"garage.rent", "dealer.buy"}
        registry.remove("dealer.buy")
        assert names(search, "automobile") == ["garage.rent"]


async def test_an_operation_that_comes_back_is_not_embedded_again() -> None:
    embedder = Synonyms()
    async with searching(embedder, *GARAGE) as (registry, search, meanings):
        await settled(meanings)
        seen = len(embedder.embedded)
        registry.add(registry.remove("garage.rent"))
        assert names(search, "automobile") == ["garage.rent"]
        assert embedder.embedded[seen:] == ["automobile"]
        names(search, "automobile")
        assert embedder.embedded[seen:] == ["automobile"]


async def test_an_embedder_that_fails_leaves_the_words_and_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    embedder = Synonyms()
    embedder.failures = 1
    async with searching(embedder, *GARAGE) as (_, search, meanings):
        assert names(search, "car") == ["garage.rent"]
        await settled(meanings)
        assert names(search, "automobile") == ["garage.rent"]
    assert "no model today" in caplog.text


async def test_a_query_that_cannot_be_embedded_is_searched_by_words(caplog: pytest.LogCaptureFixture) -> None:
    embedder = Synonyms()
    async with searching(embedder, *GARAGE) as (_, search, meanings):
        await settled(meanings)
        embedder.failures = 1
        assert names(search, "rent car") == ["garage.rent"]
        assert names(search, "automobile") == ["garage.rent"]
    assert "no model today" in caplog.text


async def test_half_an_emoji_in_a_query_or_a_description_stops_no_search() -> None:
    async with searching(WordLlamaEmbedder(), made("garage.rent", "Rent a car \ud83d."), *GARAGE[1:]) as (
        _,
        search,
        meanings,
    ):
        await settled(meanings)
        assert names(search, "car \ude97")[0] == "garage.rent"


async def test_hidden_operations_and_other_namespaces_stay_out_of_it() -> None:
    async with searching(Synonyms(), *GARAGE, made("dealer.buy", "Buy a car.")) as (_, search, meanings):
        await settled(meanings)
        allowed = search.search("automobile", allow=lambda each: each.namespace != "dealer")
        assert [hit.tool for hit in allowed.tools] == ["garage.rent"]
        assert allowed.namespaces == {"garage": 1}
        assert [hit.tool for hit in search.search("automobile", namespace="dealer").tools] == ["dealer.buy"]


async def test_equals_by_meaning_are_ordered_by_id() -> None:
    present = [made(f"n{index}.rent", "Rent a car.") for index in (3, 1, 2)]
    embedder = Synonyms()
    async with searching(embedder, *present, *GARAGE[1:]) as (_, search, meanings):
        await settled(meanings)
        assert names(search, "automobile rent")[:3] == ["n1.rent", "n2.rent", "n3.rent"]


def test_static_vectors_from_a_wheel_know_that_words_are_akin() -> None:
    car, automobile, soup, nothing = (
        list(each) for each in WordLlamaEmbedder().embed(["car", "automobile", "tomato soup", ""])
    )
    assert len(car) == 256

    def cosine(one: Sequence[float], other: Sequence[float]) -> float:
        return sum(a * b for a, b in zip(one, other, strict=True))

    assert cosine(car, automobile) > 0.4 > cosine(car, soup)
    assert not any(nothing)


async def test_many_that_fit_are_all_found_and_in_order() -> None:
    present = [made(f"n.rent_{index:04}", "Rent a car." + " Or two." * (index % 2)) for index in range(1_200)]
    async with searching(Synonyms(), *present) as (_, search, meanings):
        await settled(meanings)
        found = [each.id for each in search.rank("automobile", 5_000)]
        assert len(found) == len(present)
        best = [each.id for each in present if not int(each.name[-4:]) % 2]
        assert found[: len(best)] == best
