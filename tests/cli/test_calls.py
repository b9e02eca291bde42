"""`dragoman calls`."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from dragoman.cli.call_tree import format_seconds, render_tree
from dragoman.cli.calls import calls
from dragoman.operations.ledger import CallCompletion, CallRecord
from dragoman.operations.outcome import CallFailure
from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord
from tests.cli.program import LIMIT

Said = tuple[int, str]


def record(id: str, parent: str | None = None, *, at: float = 0.0, **more: Any) -> CallRecord:
    report: dict[str, Any] = {"operation": f"op.{id}", "effect": "read", "owner": "ann", "input_hash": "h"}
    report |= {"idempotency_key": "k", "run_id": "run", "step": 1, "input": {"of": f"\x1b[31m{id}"}}
    return CallRecord(id=id, parent_id=parent, started_at=1_000.0 + at, **{**report, **more})


async def fill(store: Store) -> None:
    usage = UsageRecord(
        id="u",
        owner="ann",
        status="finished",
        started_at=1_000.0,
        duration=1.0,
        run_id="run",
        step=1,
        cost=0.25,
        model_served="big",
    )
    await store.usage.add(usage)
    ends = {
        "a": CallCompletion(status="done", ended_at=1_003.0, result=1, notes=("`count` was text",)),
        "b": CallCompletion(
            status="failed", ended_at=1_003.0, error=CallFailure(code="call_failed", message="it broke")
        ),
        "c": CallCompletion(status="pending"),
    }
    for name, parent, at in (("a", None, 1.0), ("b", "a", 2.0), ("c", None, 4.0)):
        await store.calls.record_start(record(name, parent, at=at))
        await store.calls.record_end(name, ends[name])


def within(data: Path, work: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with await Store.open(data, exclusive=False) as store:
            await work(store)

    asyncio.run(main())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    within(tmp_path / "hub", fill)
    return tmp_path / "hub"


def run(*arguments: str | Path) -> Said:
    app = typer.Typer()
    app.add_typer(calls, name="calls")
    result = CliRunner().invoke(app, ["calls", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_tree_is_drawn_with_times_money_and_errors(data: Path) -> None:
    code, out = run("tree", "run", "--data", data)
    assert code == 0
    lines = [line.rstrip() for line in out.splitlines()]
    heads = [line.split("━")[0].rstrip() for line in lines]
    assert heads == [
        "✓ run big",
        "└─✓ big",
        '  ├─✓ op.a {"of":"\\u001b[31ma"}',
        "  │ │ `count` was text",
        '  │ └─✗ op.b {"of":"\\u001b[31mb"}',
        "  │     call_failed: it broke",
        '  └─? op.c {"of":"\\u001b[31mc"}',
        "      waits for an answer to approval",
    ]
    assert "\x1b" not in out
    assert lines[0].endswith("$0.2500")
    assert "2.0 s" in lines[2]
    starts = [lines[at].index("━") for at in (1, 2, 4, 6)]
    assert starts == sorted(set(starts))


def test_the_last_run_is_drawn_when_none_is_named(data: Path) -> None:
    assert run("tree", "--data", data)[1] == run("tree", "run", "--data", data)[1]
    code, out = run("tree", "b", "--data", data, "--below")
    assert (code, out.splitlines()[0].split(), out.splitlines()[1].split()[1]) == (
        0,
        ["big", "→", "op.a", "→"],
        "op.b",
    )


def test_a_call_in_the_middle_is_marked_in_the_tree_of_its_root(data: Path) -> None:
    code, out = run("tree", "b", "--data", data)
    lines = [line.split("━")[0].rstrip() for line in out.splitlines()]
    assert (code, lines[0]) == (0, "✓ run big")
    assert [line.strip() for line in lines if "◀" in line] == ['│ └─✗ op.b {"of":"\\u001b[31mb"} ◀']
    whole = json.loads(run("tree", "b", "--data", data, "--json")[1])
    assert (whole["tree"]["kind"], whole["path"]) == ("run", [])


def test_a_tree_goes_on_until_what_is_under_way_has_ended(data: Path) -> None:
    async def begin(store: Store) -> None:
        await store.calls.record_start(record("live", run_id=None, at=5.0))

    async def end(store: Store) -> None:
        await store.calls.record_end("live", CallCompletion(status="done", ended_at=1_006.0))

    within(data, begin)
    still = run("tree", "live", "--data", data, "--no-follow")
    assert still[1].startswith("▶ op.live")
    replies: list[Said] = []
    follower = threading.Thread(
        target=lambda: replies.append(run("tree", "live", "--data", data, "--follow"))
    )
    follower.start()
    follower.join(1.0)
    assert follower.is_alive()
    within(data, end)
    follower.join(LIMIT)
    assert replies[0][0] == 0
    assert replies[0][1].startswith("✓ op.live")


def test_calls_are_listed_and_shown(data: Path) -> None:
    lines = run("list", "--data", data)[1].splitlines()
    assert [line.split()[0] for line in lines] == ["ID", "c", "b", "a"]
    assert [
        line.split()[0] for line in run("list", "--status", "failed", "--data", data)[1].splitlines()
    ] == ["ID", "b"]
    shown = dict(line.split(maxsplit=1) for line in run("show", "b", "--data", data)[1].splitlines())
    assert shown["status"] == "failed"
    assert shown["error"] == '{"code":"call_failed","message":"it broke"}'
    assert run("show", "nobody", "--data", data)[0] == 1


def test_a_long_tree_keeps_to_its_screen_while_it_is_live() -> None:
    child = {"id": "x", "kind": "call", "name": "a.b", "status": "running", "startedAt": 1.0}
    node = {**child, "kind": "run", "children": [child] * 500}
    answer = {"tree": node, "path": [], "leftOut": 7}
    began = time.process_time()
    table = render_tree(answer, 3.0, width=60, max_rows=20)
    assert (table.row_count, len(table.columns)) == (21, 4)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("span", "text"), [(0.0123, "12 ms"), (0.9999, "1.0 s"), (3.14, "3.1 s"), (125, "2:05 min")]
)
def test_a_time_is_said_in_its_own_unit(span: float, text: str) -> None:
    assert format_seconds(span) == text
