"""The call tree as shown: runs, model calls and what they called."""

from __future__ import annotations

from typing import Any

from dragoman.events import Usage
from dragoman.operations.call_tree import (
    MAX_DEPTH,
    MAX_SHOWN_LENGTH,
    CallRow,
    CallTreeBuilder,
    CallTreeNode,
    ModelCallRow,
    RunRow,
    build_run_tree,
    is_running,
)
from dragoman.operations.outcome import CallFailure

RUN = RunRow(id="run", name="sim/any", status="done", started_at=0.0, ended_at=10.0)


def line(id: str, parent: str | None = None, **fields: Any) -> CallRow:
    defaults: dict[str, Any] = {"operation": f"op.{id}", "effect": "read", "owner": "ann", "status": "done"}
    defaults |= {"started_at": 1.0, "ended_at": 2.0, "input_hash": "h"}
    return CallRow(id=id, parent_id=parent, **{**defaults, **fields})


def answer(step: int, at: float, **fields: Any) -> ModelCallRow:
    defaults: dict[str, Any] = {"id": f"use{at:g}", "name": "sim/any", "status": "done", "duration": 1.0}
    return ModelCallRow(step=step, started_at=at, **{**defaults, **fields})


def shape(node: CallTreeNode) -> Any:
    """Names, and what is below them."""
    return {node.name: [shape(child) for child in node.children]} if node.children else node.name


def test_a_run_has_its_model_calls_by_step_and_these_the_calls_that_they_asked_for() -> None:
    lines = [
        line("b", step=1, started_at=3.0),
        line("leaf", "b", step=1, started_at=3.5),
        line("a", step=1, started_at=2.5),
        line("late", step=2, started_at=6.0),
        line("own", started_at=9.0),
        line("approved", step=0, started_at=0.5),
    ]
    tree = build_run_tree(RUN, [answer(2, 5.0), answer(1, 1.0)], builder=CallTreeBuilder(lines))
    assert shape(tree) == {
        "sim/any": [
            "op.approved",
            {"sim/any": ["op.a", {"op.b": ["op.leaf"]}]},
            {"sim/any": ["op.late"]},
            "op.own",
        ]
    }
    assert [node.kind for node in tree.children] == ["call", "model", "model", "call"]


def test_what_was_asked_of_a_fallback_is_below_the_model_that_answered() -> None:
    failed = answer(1, 1.0, status="failed", error="overloaded", name="main/x")
    tree = build_run_tree(
        RUN,
        [answer(1, 2.0, name="other/x"), failed],
        builder=CallTreeBuilder([line("a", step=1, started_at=3.0)]),
    )
    assert shape(tree) == {"sim/any": ["main/x", {"other/x": ["op.a"]}]}
    assert tree.children[0].error == {"code": "overloaded"}


def test_a_run_costs_what_its_model_calls_cost_and_unknown_is_not_nothing() -> None:
    tokens = Usage(10, 2, 12)
    model_calls = [answer(1, 1.0, cost=0.5, usage=tokens), answer(2, 2.0, cost=0.25, usage=tokens)]
    tree = build_run_tree(RUN, model_calls, builder=CallTreeBuilder([]))
    assert (tree.cost, tree.usage, tree.duration) == (0.75, Usage(20, 4, 24), 10.0)
    assert build_run_tree(RUN, [answer(1, 1.0)], builder=CallTreeBuilder([])).cost is None


def test_while_nothing_else_is_under_way_in_a_run_a_model_is_answering() -> None:
    running = RunRow(id="run", name="m", status="running", started_at=0.0)
    first = build_run_tree(running, [], builder=CallTreeBuilder([]))
    assert [(node.kind, node.status, node.started_at) for node in first.children] == [
        ("model", "running", 0.0)
    ]
    done = build_run_tree(
        running, [answer(1, 1.0)], builder=CallTreeBuilder([line("a", step=1, started_at=3.0, ended_at=4.0)])
    )
    assert [(node.status, node.started_at) for node in done.children] == [("done", 1.0), ("running", 4.0)]
    busy = build_run_tree(
        running, [], builder=CallTreeBuilder([line("a", step=1, status="running", ended_at=None)])
    )
    assert [node.status for node in busy.children] == ["done"]
    assert busy.children[0].children[0].duration is None
    assert is_running(busy)
    waiting = build_run_tree(
        RUN,
        [],
        builder=CallTreeBuilder([line("a", step=1, status="pending", ended_at=None, approval_id="apr")]),
    )
    assert not is_running(waiting)
    assert waiting.children[0].children[0].approval_id == "apr"


def test_a_node_is_short_and_has_no_schema_in_its_error() -> None:
    failure = CallFailure(code="invalid_input", message="no", input_schema={"type": "object"})
    grove = CallTreeBuilder(
        [line("a", input="x" * 9_999, error=failure, status="failed")], source=lambda name, _: f"of {name}"
    )
    node = grove.subtree("a")
    assert node is not None
    assert (node.source, node.error) == ("of op.a", {"code": "invalid_input", "message": "no"})
    assert node.input is not None
    assert len(node.input) == MAX_SHOWN_LENGTH


def test_what_is_too_deep_is_counted() -> None:
    chain = [line("0"), *(line(str(n), str(n - 1), started_at=float(n)) for n in range(1, MAX_DEPTH + 5))]
    grove = CallTreeBuilder(chain)
    assert grove.subtree("0") is not None
    assert grove.omitted_count == 4
    assert grove.subtree("nobody") is None
