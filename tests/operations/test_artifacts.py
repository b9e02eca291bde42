"""Results too big for a model become artifacts, shown in part."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import NotFound
from dragoman.identity import Identity
from dragoman.operations import Calls, Context, Registry, operation
from dragoman.operations.artifact_overflow import ArtifactOverflow
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.results.artifact import MemoryArtifactStore

ANN = Identity(owner="ann")
PICTURE = {"content": [{"type": "image", "mimeType": "image/png", "data": "A" * 5000}]}


@operation("t", effect="read")
async def lines(count: int) -> str:
    """Many lines."""
    return "\n".join(f"line {number} ü" for number in range(count))


@operation("t", effect="read")
async def table(count: int) -> list[dict[str, int]]:
    """Many rows."""
    return [{"row": number} for number in range(count)]


@operation("t", effect="read")
async def picture() -> dict[str, Any]:
    """A picture."""
    return PICTURE


@operation("t", effect="read")
async def measure(context: Context) -> int:
    """The length of what another operation gives."""
    return len(await context.call("t.lines", {"count": 1000}))


@operation("artifacts", effect="read")
async def more() -> str:
    """What somebody else brings into the namespace of those that read results."""
    return "x" * 50_000


async def call(name: str, input: dict[str, Any], *, for_model: bool = True, largest: int = 100_000) -> Any:
    artifacts = MemoryArtifactStore()
    spill = ArtifactOverflow(artifacts, limit=1000, max_size=largest)
    async with Calls(Registry(lines, table, picture, measure, more), MemoryLedger(), overflow=spill) as calls:
        outcome = await calls.call(name, input, context=Context(identity=ANN, for_model=for_model))
    assert outcome.error is None
    return outcome.result, artifacts


async def test_a_model_gets_head_and_tail_of_a_big_text_and_can_read_the_rest() -> None:
    shown, artifacts = await call("t.lines", {"count": 1000})
    whole, _ = await call("t.lines", {"count": 1000}, for_model=False)
    assert whole.startswith(shown["head"])
    assert whole.endswith(shown["tail"])
    assert shown["size"] == len(whole.encode())
    assert (await artifacts.read(shown["artifact"], owner="ann")).decode() == whole
    assert "artifacts.read" in shown["hint"]
    with pytest.raises(NotFound):
        await artifacts.read(shown["artifact"], owner="bob")


async def test_a_big_table_is_kept_as_json() -> None:
    shown, artifacts = await call("t.table", {"count": 500})
    assert shown["mediaType"] == "application/json"
    assert (await artifacts.read(shown["artifact"], owner="ann", limit=18)) == b'[{"row":0},{"row":'


async def test_small_results_and_pictures_are_reported_whole() -> None:
    assert (await call("t.lines", {"count": 3}))[0] == "line 0 ü\nline 1 ü\nline 2 ü"
    assert (await call("t.picture", {}))[0] == PICTURE


async def test_what_is_too_big_to_be_kept_is_reported_in_part_and_says_so() -> None:
    shown, _ = await call("t.lines", {"count": 1000}, largest=2000)
    assert "artifact" not in shown
    assert "only results up to 2000 bytes are stored" in shown["hint"]


async def test_operations_get_each_others_results_whole() -> None:
    assert (await call("t.measure", {}))[0] == len("\n".join(f"line {n} ü" for n in range(1000)))


async def test_each_call_of_a_batch_is_reported_in_part_by_itself() -> None:
    registry = Registry(lines)
    spill = ArtifactOverflow(MemoryArtifactStore(), limit=1000)
    batch = {"calls": [{"tool": "t.lines", "input": {"count": count}} for count in (1, 1000)]}
    async with Calls(registry, MemoryLedger(), overflow=spill) as calls:
        outcome = await MetaTools(registry, calls).run("hub.call", batch, context=Context(for_model=True))
    small, big = outcome.result
    assert (small["result"], "artifact" in big["result"]) == ("line 0 ü", True)


async def test_only_the_readers_of_artifacts_give_more_than_the_limit() -> None:
    shown, _ = await call("artifacts.more", {})
    assert shown["size"] == 50_000
