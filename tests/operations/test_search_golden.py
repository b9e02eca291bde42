"""Search quality on a golden set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from dragoman.operations import Operation, Registry
from dragoman.operations.search.search import OperationSearch

GOLDEN = Path(__file__).parent / "golden"
FIRST, RECALL = 0.9, 0.92  # what is reached today, less what one query is worth


class Asked(msgspec.Struct, frozen=True):
    """A query and the operations that answer it."""

    query: str
    gold: tuple[str, ...]


class Offered(msgspec.Struct, frozen=True):
    """An operation of the set."""

    id: str
    description: str
    parameters: Mapping[str, str]

    def made(self) -> Operation:
        async def nothing(*_: Any) -> None: ...

        namespace, _, name = self.id.partition(".")
        schema = {
            "type": "object",
            "properties": {key: {"description": text} for key, text in self.parameters.items()},
        }
        return Operation.from_schema(
            nothing, schema, namespace=namespace, name=name, description=self.description
        )


def read(name: str, type: Any) -> list[Any]:
    return [msgspec.json.decode(line, type=type) for line in (GOLDEN / name).read_bytes().splitlines()]


def test_search_finds_what_is_wanted_as_often_as_ever() -> None:
    operations, requests = read("operations.jsonl", Offered), read("queries.jsonl", Asked)
    search = OperationSearch(Registry(*(each.made() for each in operations)))
    found = {each: [hit.tool for hit in search.search(each.query).tools] for each in requests}
    missed = {
        each.query: tools[:3] for each, tools in found.items() if not tools or tools[0] not in each.gold
    }
    assert len(missed) <= (1 - FIRST) * len(requests), missed
    recalls = [len({*each.gold} & {*tools[:5]}) / len(each.gold) for each, tools in found.items()]
    assert mean(recalls) >= RECALL, {each.query: tools for each, tools in found.items()}
