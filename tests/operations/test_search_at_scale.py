"""Search at scale: hostile texts, visibility, independence of insertion order."""

from __future__ import annotations

import asyncio
import time
from random import Random
from statistics import median
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.operations import Operation, Registry
from dragoman.operations.search.bm25_index import (
    QUERY_SCALE,
    RARE_LIMIT,
    InvertedIndex,
    term_impacts,
    term_weights,
)
from dragoman.operations.search.search import (
    MAX_RANKED,
    MAX_RESULT_BYTES,
    MIN_RELATIVE_SCORE,
    OperationFilter,
    OperationSearch,
    query_weights,
)
from dragoman.operations.search.tokenizer import normalise_name, stem
from tests.effort import rounds


def made(id: str, description: str = "", **parameters: str) -> Operation:
    async def nothing(*_: Any) -> None: ...

    namespace, _, name = id.partition(".")
    schema = {
        "properties": {each: {"type": "string", "description": text} for each, text in parameters.items()}
    }
    return Operation(
        namespace=namespace,
        name=name,
        description=description,
        input_schema=schema,
        parse=lambda value: value,
        run=nothing,
    )


def names(search: OperationSearch, q: str, **options: Any) -> list[str]:
    return [each.id for each in search.rank(q, 10_000, **options)]


letters = st.characters(codec="utf-8")
ids = st.from_regex(r"[a-cA-C0-1]{1,2}\.[a-cA-C0-1][a-cA-C0-1_./-]{0,4}", fullmatch=True)
shelves = st.dictionaries(ids, st.text(letters, max_size=40), max_size=25).map(
    lambda present: [
        made(id, text) for id, text in {id.lower(): (id, text) for id, text in present.items()}.values()
    ]
)


@given(shelves, st.text(letters, max_size=30), st.randoms())
def test_the_order_of_arrival_does_not_matter(present: list[Operation], q: str, random: Any) -> None:
    shuffled = random.sample(present, len(present))
    one, other = OperationSearch(Registry(*present)), OperationSearch(Registry(*shuffled))
    for text in (q, *(each.description for each in present)):
        assert one.search(text) == other.search(text)


@given(shelves, shelves, st.text(letters, max_size=30))
def test_what_came_and_went_leaves_no_trace(
    present: list[Operation], guests: list[Operation], q: str
) -> None:
    registry = Registry(*present)
    search, anew = OperationSearch(registry), OperationSearch(Registry(*present))
    present_ids = {each.id.lower() for each in present}
    for guest in (guests := [each for each in guests if each.id.lower() not in present_ids]):
        registry.add(guest)
    for guest in guests:
        registry.remove(guest.id)
    for text in (q, *(each.description for each in (*present, *guests))):
        assert search.search(text) == anew.search(text)
    assert search._index._postings.keys() == anew._index._postings.keys()


@pytest.mark.promise("exact-name-is-first")
@given(shelves)
def test_an_operation_stands_first_for_its_id_and_among_its_likes_for_its_name(
    present: list[Operation],
) -> None:
    search = OperationSearch(Registry(*present))
    for each in present:
        assert names(search, each.id)[0] == each.id
        assert names(search, each.id.swapcase())[0] == each.id
        same = {
            other.id
            for other in present
            if normalise_name(each.name) in (normalise_name(other.name), normalise_name(other.id))
            or other.id.lower() == each.name.lower()
        }
        assert set(names(search, each.name)[: len(same)]) == same


def others_than(namespace: str) -> OperationFilter:
    return lambda each: each.namespace != namespace


@pytest.mark.promise("hidden-operations-stay-hidden")
@given(shelves, st.text(letters, max_size=30))
def test_a_namespace_gives_its_own_only_and_a_hidden_one_nothing(present: list[Operation], q: str) -> None:
    search = OperationSearch(Registry(*present))
    for namespace in {each.namespace for each in present}:
        inside = search.search(q, namespace=namespace)
        assert {hit.namespace for hit in inside.tools} <= {namespace}
        outside = search.search(q, allow=others_than(namespace))
        assert namespace not in {*outside.namespaces, *(hit.namespace for hit in outside.tools)}
        there = search.search(q, namespace=namespace, allow=lambda _: False)
        nowhere = search.search(q, namespace="no-such", allow=lambda _: False)
        assert there == nowhere


def test_a_term_that_most_operations_have_still_ranks_them() -> None:
    present = [
        made(f"n{index % 7}.get_{index}", "Get a record of the archive.") for index in range(4 * RARE_LIMIT)
    ]
    search = OperationSearch(
        Registry(*present, made("z.archive", "Get the whole archive.", record="which record to get"))
    )
    assert names(search, "archive record")[0] == "z.archive"
    assert len(names(search, "get record")) == len(present) + 1
    assert search.search("get record").more == MAX_RANKED - 8


def test_whom_a_caller_may_see_is_asked_for_what_fits_until_there_is_enough() -> None:
    present = [made(f"n{index % 7}.paint_{index}", "Paint a wall.") for index in range(3_000)]
    checked: list[str] = []

    def allow(operation: Operation) -> bool:
        checked.append(operation.id)
        return operation.namespace != "n3"

    answer = OperationSearch(Registry(*present, made("other.thing", "Something else."))).search(
        "paint wall", allow=allow
    )
    assert (len(answer.tools), answer.more) == (8, MAX_RANKED - 8)
    assert "n3" not in answer.namespaces
    assert len(checked) < MAX_RANKED * 2
    assert len(checked) == len(set(checked))


def test_what_is_allowed_is_found_however_much_better_the_hidden_fits() -> None:
    present = [made(f"secret.paint_{index}", "Paint wall.") for index in range(2_000)]
    seen = made("open.brush", "With this one may also paint, among other things, a long wall of stone.")
    search = OperationSearch(Registry(*present, seen))
    answer = search.search("paint wall", allow=lambda each: each.namespace == "open")
    assert [hit.tool for hit in answer.tools] == ["open.brush"]
    assert (answer.more, answer.namespaces) == (0, {"open": 1})


HONEST = made("bank.transfer", "Transfer money from one account to another.", amount="", account="")


@pytest.mark.parametrize(
    "hostile",
    [
        "transfer money account " * 60_000,
        "transfer " + " ".join(f"word{index}" for index in range(150_000)),
        "x" * 1_000_000,
        "transfer\u202e\u0000money\u200b " * 50_000,
        "転送" * 400_000,
    ],
    ids=["one sentence again and again", "all words there are", "one long word", "controls", "no spaces"],
)
def test_a_description_of_a_megabyte_neither_wins_nor_holds_anything_up(hostile: str) -> None:
    stuffed = made(
        "evil.move", hostile, **{f"transfer money {index}": hostile[:5_000] for index in range(300)}
    )
    started = time.process_time()
    search = OperationSearch(Registry(HONEST, stuffed))
    answer = search.search("transfer money account")
    assert time.process_time() - started < 1.0
    assert answer.tools[0].tool == "bank.transfer"
    assert len(msgspec.json.encode(answer.to_json())) < MAX_RESULT_BYTES + 500


async def test_texts_of_nothing_but_new_words_hold_nothing_up() -> None:
    random = Random(5)

    def text(length: int) -> str:
        return " ".join("".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(length))

    new_words = [made(f"evil.x{n}", text(250), **{text(15): text(250) for _ in range(64)}) for n in range(3)]
    search, turns = OperationSearch(Registry(*new_words)), 0
    stem.cache_clear()
    indexing = asyncio.create_task(search.prepare("money"))  # they are indexed when somebody searches
    while not indexing.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > len(new_words)  # of others, between one operation and the next
    assert stem.cache_info().misses < 800 * len(new_words)  # of more than 16,000 words in each
    assert search.search("money").tools == ()


def test_a_query_of_a_megabyte_holds_nothing_up() -> None:
    search = OperationSearch(Registry(HONEST))
    started = time.process_time()
    assert search.search("money " * 200_000).tools[0].tool == "bank.transfer"
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    ("description", "q"),
    [
        ("Cafe\u0301 finden", "caf\u00e9"),
        ("\uff33\uff45\uff4e\uff44 it", "send"),
        ("\u5317\u4eac\u306e\u5929\u6c17\u3092\u8abf\u3079\u308b", "\u5929\u6c17"),
        ("\ub0a0\uc528\ub97c \uc54c\ub824 \uc90d\ub2c8\ub2e4", "\ub0a0\uc528"),
    ],
)
def test_other_spellings_and_scripts_without_spaces_are_found(description: str, q: str) -> None:
    search = OperationSearch(
        Registry(made("a.one", description), made("b.two", "Something else altogether."))
    )
    assert names(search, q) == ["a.one"]


VERBS = ("get", "list", "create", "update", "delete", "search", "send", "convert")
NOUNS = ("user", "file", "message", "order", "issue", "event", "report", "invoice", "channel", "page")

SIZE = rounds(quick=4_000, thorough=20_000)


def test_a_large_index_is_searched_in_milliseconds() -> None:
    search = OperationSearch(Registry())
    for index in range(SIZE):
        verb, noun = VERBS[index % len(VERBS)], NOUNS[index // 8 % len(NOUNS)]
        text = f"{verb} the {noun} of an account by its id and say how it went."
        search.add(made(f"s{index // 20}.{verb}_{noun}", text, record=f"the {noun}", account="whose"))
    taken = []
    for q in ("get user", "list file of account", "send message channel", "update invoice by id", "account"):
        started = time.process_time()
        assert len(search.search(q).tools) == 8
        taken.append(time.process_time() - started)
    assert median(taken) < SIZE * 5e-6


@pytest.mark.parametrize("seed", range(3))
def test_the_order_is_that_of_scores_added_up_one_by_one(seed: int) -> None:
    random = Random(seed)
    words = [f"{letter}olo" for letter in "bcdfghjk"]
    present = [
        made(f"lab.x{number}", " ".join(random.choices(words, weights=range(1, 9), k=random.randint(1, 12))))
        for number in range(150)
    ]
    search, index = OperationSearch(Registry(*present)), InvertedIndex()
    for slot, operation in enumerate(present):
        index.add(slot, operation)
    q = " ".join(random.choices(words, k=6))

    scores = dict.fromkeys((operation.id for operation in present), 0)
    for term, weight in query_weights(q).items():
        gain = max(1, round(QUERY_SCALE * weight * index.inverse_document_frequency(term)))
        for operation in present:
            scores[operation.id] += gain * term_impacts(term_weights(operation)).get(term, 0)
    floor = max(1, round(MIN_RELATIVE_SCORE * max(scores.values())))
    wanted = sorted(
        (each for each in scores if scores[each] >= floor), key=lambda each: (-scores[each], each)
    )

    assert [operation.id for operation in search.rank(q, 150)] == wanted
