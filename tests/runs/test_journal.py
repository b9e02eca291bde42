"""The journal of a run, which writes its message as it grows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dragoman import events as e
from dragoman.fold import Fold
from dragoman.messages import Message
from dragoman.runs.journal import MAX_PARTS, Journal, PlannedWrite
from dragoman.store.runs import RunRecord
from dragoman.store.sessions.run_ends import RunEnding
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store

BLOCKS = 10_000


def block(number: int) -> Sequence[e.Event]:
    id = f"b{number}"
    if number % 2:
        return e.TextStart(id), e.TextDelta(id, "x"), e.TextEnd(id)
    return e.ReasoningStart(id), e.ReasoningDelta(id, "x"), e.ReasoningEnd(id)


@pytest.mark.parametrize("at_once", [BLOCKS, MAX_PARTS])
async def test_an_answer_of_very_many_short_parts_is_written_a_few_at_a_time_in_linear_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    calls: Counter[str] = Counter()
    sizes: list[int] = []
    is_due, plan_part, make_plan = Journal._is_due_now, Journal._plan_part, Journal._make_plan

    def count_due(journal: Journal, index: int) -> bool:
        calls["due"] += 1
        return is_due(journal, index)

    def count_part(journal: Journal, plan: PlannedWrite, index: int) -> bool:
        calls["parts"] += 1
        return plan_part(journal, plan, index)

    def count_plan(journal: Journal, **named: Any) -> PlannedWrite:
        plan = make_plan(journal, **named)
        sizes.append(len(plan.indexes))
        return plan

    for name, method in {
        "_is_due_now": count_due,
        "_plan_part": count_part,
        "_make_plan": count_plan,
    }.items():
        monkeypatch.setattr(Journal, name, method)
    run = RunRecord(id="run_1", session_id="s", message_id="m", owner="o", started_at=1.0)
    async with await Store.open(tmp_path) as store:
        session = Session(id="s", owner="o", created_at=1.0, updated_at=1.0)
        await store.runs.create(run, assistant=Message("m", "assistant"), session=session)
        fold = Fold(Message("m", "assistant"))
        journal = Journal(store, fold, run=run, on_written=lambda _: None)
        fold.add([e.Start("m"), e.StartStep()])
        for start in range(0, BLOCKS, at_once):
            fold.add([event for number in range(start, start + at_once) for event in block(number)])
            journal.schedule()
            await journal.make_room()
            await asyncio.sleep(0)
        assert await journal.finish(RunEnding(status="finished", finished_at=2.0, finish_reason="stop"))
        message = await store.messages.get("s", "m")
    assert message == fold.message()
    assert max(sizes) <= 2 * MAX_PARTS + 1  # the last write has what may still be under way
    assert calls["parts"] <= BLOCKS + 2 * MAX_PARTS
    assert calls["due"] <= 3 * BLOCKS
