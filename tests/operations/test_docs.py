"""The examples of docs/operations.md work."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.identity import LOCAL
from dragoman.operations import Calls, Context, Registry
from dragoman.operations.budget import Budget
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.loader import load_operations

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


@asynccontextmanager
async def examples(folder: Path) -> AsyncIterator[Calls]:
    """All Python of the page, served."""
    found = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(found) == 2
    for number, text in enumerate(found):
        (folder / f"example{number}.py").write_text(text, encoding="utf-8")
    operations = [each for number in range(2) for each in load_operations(folder / f"example{number}.py")]
    async with Calls(Registry(*operations), MemoryLedger()) as calls:
        yield calls


async def test_an_order_is_asked_about_and_calls_for_the_price(tmp_path: Path) -> None:
    async with examples(tmp_path) as calls:
        input = {"item": "tea", "count": 2}
        pending = await calls.call("shop.order", input, context=Context())
        assert (pending.status, pending.approval_id is not None) == ("pending", True)
        await calls.answer_approval(pending.approval_id or "", approved=True, by=LOCAL)
        assert (await calls.call("shop.order", input, context=Context())).result == {"paid": 7.0}


async def test_a_report_tells_how_far_it_is_and_what_it_costs(tmp_path: Path) -> None:
    heard: list[Any] = []
    budget = Budget(usd=1.0)
    async with examples(tmp_path) as calls:
        context = Context(budget=budget, idempotency_key="k1")
        made = await calls.call("reports.publish", {"pages": 2}, context=context, on_progress=heard.append)
    assert made.result == "2 pages, published under k1"
    assert heard == ["building", {"page": 1, "of": 2}, {"page": 2, "of": 2}]
    assert (budget.calls_made, budget.spent) == (2, 0.01)


@pytest.mark.parametrize("name", ["concurrency", "rate", "timeout", "retries"])
def test_what_bounds_an_operation_is_described(name: str) -> None:
    assert f"- `{name}`:" in PAGE
