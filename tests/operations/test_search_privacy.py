"""What a search shows does not depend on operations that the caller cannot see."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.identity import Identity
from dragoman.operations import Calls, Context, Operation, Registry
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.search.bm25_index import RARE_LIMIT
from dragoman.operations.search.embedder import HashingEmbedder
from dragoman.operations.search.name_index import MAX_PREFIX_MATCHES
from dragoman.operations.search.search import OperationSearch
from dragoman.operations.search.semantic_index import SemanticIndex
from tests.operations.test_search_golden import Asked, Offered, read

WORDS = ("send", "mail", "list", "file", "order", "price", "stock", "user", "delete", "report")
ids = st.from_regex(r"[ab]{1,2}\.[a-b0-1][a-b0-1_]{0,3}", fullmatch=True)
texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
owners = st.sampled_from([None, "ann", "bob"])


def made(id: str, description: str = "", owner: str | None = None) -> Operation:
    async def nothing(*_: Any) -> None: ...

    namespace, _, name = id.partition(".")
    return Operation(
        namespace=namespace,
        name=name,
        description=description,
        input_schema={},
        parse=lambda value: value,
        run=nothing,
        owner=owner,
        private=owner is not None,
    )


def without(operations: Mapping[str, Operation], owner: str) -> list[Operation]:
    return [each for each in operations.values() if each.is_visible_to(owner)]


shelves = st.lists(st.tuples(ids, texts, owners), max_size=25).map(
    lambda rows: {id: made(id, text, owner) for id, text, owner in rows}
)


@pytest.mark.promise("search-tells-nothing-of-hidden-operations")
@given(shelves, texts, st.sampled_from([None, "a", "b"]))
def test_a_search_is_that_of_a_hub_without_other_owners_private_operations(
    shelf: dict[str, Operation], q: str, namespace: str | None
) -> None:
    whole, part = OperationSearch(Registry(*shelf.values())), None
    for owner in ("ann", "eve"):
        part = OperationSearch(Registry(*without(shelf, owner)))
        for text in (q, *shelf, "a", "aa.b"):
            sees = operator.methodcaller("is_visible_to", owner)
            found = whole.search(text, namespace=namespace, owner=owner, allow=sees)
            assert found == part.search(text, namespace=namespace, allow=lambda _: True)


async def test_the_same_with_vectors() -> None:
    random = Random(7)
    shelf = {
        f"n{n % 5}.op{n}": made(
            f"n{n % 5}.op{n}", " ".join(random.choices(WORDS, k=5)), random.choice([None, "ann", "bob"])
        )
        for n in range(120)
    }
    whole = await semantic(shelf.values())
    part = await semantic(without(shelf, "ann"))
    for word in WORDS:
        q = f"{word} the {random.choice(WORDS)}"
        assert [each.id for each in whole.rank(q, 50, owner="ann")] == [each.id for each in part.rank(q, 50)]


async def semantic(operations: Any) -> OperationSearch:
    """A search with vectors of all operations."""
    index = SemanticIndex(HashingEmbedder(64))
    search = OperationSearch(Registry(*operations), semantic_index=index)
    running = asyncio.create_task(index.run())
    await index.idle.wait()
    running.cancel()
    return search


def test_hidden_operations_take_no_place_of_names_and_no_share_of_frequent_words() -> None:
    hidden = [made(f"far.send{n}", "send mail", "bob") for n in range(MAX_PREFIX_MATCHES + RARE_LIMIT)]
    seen = [made("near.sender", "mail a letter"), made("near.other", "a price"), made("near.mail", "letters")]
    whole, part = OperationSearch(Registry(*hidden, *seen)), OperationSearch(Registry(*seen))
    for q in ("send", "sen", "send mail", "a letter", "mail"):
        assert whole.search(q, owner="ann", allow=lambda each: each.is_visible_to("ann")) == part.search(q)
    for operation in hidden:
        whole.remove(operation)
    assert whole.search("send", owner="ann") == part.search("send")
    assert whole._private_masks == {}


def test_an_operation_that_the_policy_denies_cuts_no_match_off() -> None:
    allowed = made("near.order", "list the stock")
    denied = made("near.send_mail_report", "send the mail report of the stock")
    search = OperationSearch(Registry(allowed, denied))
    q = "send the mail report of the stock"
    assert [each.id for each in search.rank(q, 5, allow=lambda each: each is allowed)] == [allowed.id]


async def test_hub_search_counts_only_what_its_caller_may_see() -> None:
    seen = [made("near.mail", "send mail to users"), made("near.stock", "stock of an order")]
    hidden = [made(f"far.op{n}", "stock order mail users price", "bob") for n in range(50)]
    answers = []
    for operations in (seen, [*seen, *hidden]):
        registry = Registry(*operations)
        async with Calls(registry, MemoryLedger()) as calls:
            meta = MetaTools(registry, calls)
            context = Context(identity=Identity(owner="ann"))
            answers.append(
                [
                    (await meta.run("hub.search", {"q": q}, context=context)).result
                    for q in ("stock", "mail users", "stock mail price", "far.op1", "nothing")
                ]
            )
    assert answers[0] == answers[1]


def test_operations_that_the_policy_denies_hardly_change_what_is_found_first() -> None:
    operations = [each.made() for each in read("operations.jsonl", Offered)]
    queries = [each.query for each in read("queries.jsonl", Asked)]
    denied = {each.id for each in Random(1).sample(operations, len(operations) // 2)}
    whole = OperationSearch(Registry(*operations))
    part = OperationSearch(Registry(*(each for each in operations if each.id not in denied)))
    same = [whole.rank(q, 1, allow=lambda each: each.id not in denied) == part.rank(q, 1) for q in queries]
    assert sum(same) >= 0.95 * len(queries)
