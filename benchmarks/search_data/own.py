"""Ranks tools with Dragoman's own search, as the peers' program does.

`own.py words|wordllama|minilm WORK ANSWER`
"""

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.operations import Operation, Registry
from dragoman.operations.search.embedder import Embedder
from dragoman.operations.search.minilm import MiniLmEmbedder
from dragoman.operations.search.search import OperationSearch
from dragoman.operations.search.semantic_index import SemanticIndex
from dragoman.operations.search.wordllama import WordLlamaEmbedder

TOP = 10
EMBEDDERS: Mapping[str, Callable[[], Embedder]] = {"wordllama": WordLlamaEmbedder, "minilm": MiniLmEmbedder}


async def nothing(*_: Any) -> None:
    """What the operations do here."""


def made(tool: Mapping[str, Any]) -> Operation:
    """A tool as an operation."""
    return Operation(
        namespace=tool["namespace"],
        name=tool["name"],
        description=tool["description"],
        input_schema=tool["schema"],
        parse=lambda arguments: arguments,
        run=nothing,
    )


def resident() -> float:
    """Memory of this process, MiB."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


async def build(operations: Sequence[Operation], *, how: str) -> OperationSearch:
    """A search over the operations, with vectors for all of them if asked."""
    vectors = SemanticIndex(EMBEDDERS[how]()) if how in EMBEDDERS else None
    search = OperationSearch(Registry(), semantic_index=vectors)
    for each in operations:
        search.add(each)
    if vectors:
        task = asyncio.create_task(vectors.run())
        await vectors.idle.wait()
        task.cancel()
    return search


def main() -> None:
    """Build, ask, write down."""
    how, work, answer = sys.argv[1:]
    arguments = json.loads(Path(work).read_text())
    operations = [made(each) for each in arguments["tools"]]
    before, started = resident(), time.process_time()
    search = asyncio.run(build(operations, how=how))
    built, grown = time.process_time() - started, resident() - before
    places = {each.id: place for place, each in enumerate(operations)}
    ranked, taken = [], []
    for query in arguments["queries"]:
        started = time.process_time()
        search.search(query)  # what is timed: the whole answer, as a model gets it
        taken.append(1000 * (time.process_time() - started))
        ranked.append([places[each.id] for each in search.rank(query, TOP)])
    figures = {"built": built, "grown": grown, "ranked": ranked, "taken": taken}
    Path(answer).write_text(json.dumps({**figures, **change(search, operations)}))


def change(search: OperationSearch, operations: Sequence[Operation]) -> Mapping[str, float]:
    """Microseconds that it takes to remove an operation and to add it again."""
    some = operations[:500]
    started = time.process_time()
    for each in some:
        search.remove(each)
    removed = time.process_time()
    for each in some:
        search.add(each)
    added = time.process_time()
    return {"remove": 1e6 * (removed - started) / len(some), "add": 1e6 * (added - removed) / len(some)}


if __name__ == "__main__":
    main()
