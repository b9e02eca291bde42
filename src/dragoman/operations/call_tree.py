"""Call trees for display: a run, its model calls, and the calls below them as nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from dragoman.events import Usage
from dragoman.operations.operation import Effect
from dragoman.operations.outcome import CallFailure, CallStatus

NodeKind = Literal["run", "model", "call", "task"]
SourceLookup = Callable[[str, str], str | None]
"""Returns the source of an operation by its id and the owner who sees the tree; None if unknown to them."""

MAX_DEPTH = 100
MAX_SHOWN_LENGTH = 240


class CallRow(msgspec.Struct, frozen=True, kw_only=True):
    """A call as the store returns it for a tree; `input` and `result` are JSON text, perhaps truncated."""

    id: str
    operation: str
    effect: Effect
    owner: str
    input_hash: str
    status: CallStatus
    started_at: float
    parent_id: str | None = None
    run_id: str | None = None
    session_id: str | None = None
    tool_call_id: str | None = None
    agent: str | None = None
    step: int | None = None
    input: str | None = None
    result: str | None = None
    ended_at: float | None = None
    error: CallFailure | None = None
    cost: float | None = None
    attempts: int | None = None
    notes: tuple[str, ...] = ()
    approval_id: str | None = None


class ModelCallRow(msgspec.Struct, frozen=True, kw_only=True):
    """A finished model call; `call_id` is the call that it belongs to, if an agent made it inside one."""

    id: str
    name: str
    status: CallStatus
    started_at: float
    step: int | None = None
    duration: float | None = None
    first_byte: float | None = None
    error: str | None = None
    cost: float | None = None
    usage: Usage | None = None
    call_id: str | None = None


class CallTreeNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One node with all nodes below it. Times are unix seconds, durations seconds, costs US dollars.

    A running node has no `ended_at` and no `duration`. `input` and `result` are JSON text, truncated.
    """

    id: str
    kind: NodeKind
    name: str
    status: CallStatus
    started_at: float
    ended_at: float | None = None
    duration: float | None = None
    first_byte: float | None = None
    effect: Effect | None = None
    source: str | None = None
    agent: str | None = None
    tool_call_id: str | None = None
    input_hash: str | None = None
    input: str | None = None
    result: str | None = None
    error: Mapping[str, Any] | None = None
    cost: float | None = None
    usage: Usage | None = None
    attempts: int | None = None
    notes: tuple[str, ...] = ()
    approval_id: str | None = None
    children: tuple[CallTreeNode, ...] = ()


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run, the root of a tree."""

    id: str
    name: str
    status: CallStatus
    started_at: float
    ended_at: float | None = None
    agent: str | None = None
    error: str | None = None
    cost: float | None = None
    usage: Usage | None = None


class CallTreeBuilder:
    """Builds nodes from calls."""

    def __init__(
        self,
        rows: Iterable[CallRow],
        *,
        model_calls: Iterable[ModelCallRow] = (),
        source: SourceLookup = lambda *_: None,
    ) -> None:
        self._source = source
        self._model_calls: dict[str, list[ModelCallRow]] = {}
        for model_call in model_calls:
            if model_call.call_id is not None:
                self._model_calls.setdefault(model_call.call_id, []).append(model_call)
        self._rows = {row.id: row for row in rows}
        self._children: dict[str | None, list[CallRow]] = {}
        for row in sorted(self._rows.values(), key=row_order):
            parent = row.parent_id if row.parent_id in self._rows else None
            self._children.setdefault(parent, []).append(row)
        self._built_count = 0

    @property
    def omitted_count(self) -> int:
        """The number of calls that are too deep for the nodes built so far."""
        return len(self._rows) - self._built_count

    def subtree(self, id: str) -> CallTreeNode | None:
        """Return the call of this id with everything below it."""
        row = self._rows.get(id)
        return None if row is None else self._build_node(row)

    def roots(self) -> list[tuple[CallRow, CallTreeNode]]:
        """Return the calls without a parent among the rows."""
        return [(row, self._build_node(row)) for row in self._children.get(None, ())]

    def _build_node(self, row: CallRow, depth: int = MAX_DEPTH) -> CallTreeNode:
        self._built_count += 1
        child_rows = self._children.get(row.id, ()) if depth else ()
        children = [(child, self._build_node(child, depth - 1)) for child in child_rows]
        model_calls = self._model_calls.get(row.id)
        return call_node(
            row,
            source=self._source(row.operation, row.owner),
            children=tuple(
                group_by_step(model_calls, children, parent=row) if model_calls else [n for _, n in children]
            ),
        )


def build_run_tree(
    run: RunRow, model_calls: Sequence[ModelCallRow], *, builder: CallTreeBuilder
) -> CallTreeNode:
    """Return the tree of a run: its model calls by step, and below each the calls it requested.

    A model call that is running, or has no record, is in the tree without figures.
    """
    own_calls = [model_call for model_call in model_calls if model_call.call_id is None]
    children = group_by_step(own_calls, builder.roots(), parent=run)
    steps = sum(node.kind == "model" for node in children)
    if run.status == "running" and not any(is_open(node) for node in children):
        children.append(running_model_call(run, children, step=steps + 1))
    return run_node(run, tuple(children))


def group_by_step(
    model_calls: Sequence[ModelCallRow],
    calls: Sequence[tuple[CallRow, CallTreeNode]],
    *,
    parent: RunRow | CallRow,
) -> list[CallTreeNode]:
    """Return model calls by step, below each the calls it requested, in the order of their start."""
    nodes_by_step: dict[int | None, list[CallTreeNode]] = {}
    for row, node in calls:
        # Step 0 has calls that were approved earlier and run before the first step.
        nodes_by_step.setdefault(row.step or None, []).append(node)
    calls_by_step = {
        step: list(group)
        for step, group in groupby(
            sorted(model_calls, key=model_call_order), key=lambda model_call: model_call.step
        )
    }
    steps = sorted({step for step in (*nodes_by_step, *calls_by_step) if step is not None})
    children: list[CallTreeNode] = []
    for step in steps:
        children_of_step = tuple(nodes_by_step.get(step, ()))
        model_nodes = [model_call_node(model_call) for model_call in calls_by_step.get(step, ())] or [
            unknown_model_call(parent, step, children=children_of_step)
        ]
        children += [*model_nodes[:-1], msgspec.structs.replace(model_nodes[-1], children=children_of_step)]
    children += [model_call_node(model_call) for model_call in calls_by_step.get(None, ())]
    children += nodes_by_step.get(None, ())
    return sorted(children, key=lambda node: node.started_at)


def with_tasks(tree: CallTreeNode, tasks: Mapping[str | None, Sequence[CallTreeNode]]) -> CallTreeNode:
    """Return a tree with tasks below the calls that started them; `tasks` are by the ids of these calls.

    Tasks of calls that are not in the tree are below its root.
    """
    ids = ids_in(tree)
    others = [node for id, nodes in tasks.items() if id not in ids for node in nodes]
    complete = insert_tasks(tree, tasks)
    return msgspec.structs.replace(complete, children=(*complete.children, *others)) if others else complete


def ids_in(tree: CallTreeNode) -> frozenset[str]:
    """Return the ids of all nodes of a tree."""
    return frozenset([tree.id]).union(*map(ids_in, tree.children))


def insert_tasks(node: CallTreeNode, tasks: Mapping[str | None, Sequence[CallTreeNode]]) -> CallTreeNode:
    """Return a node with tasks below the calls that started them."""
    children = tuple(insert_tasks(child, tasks) for child in node.children)
    return msgspec.structs.replace(node, children=(*children, *tasks.get(node.id, ())))


def is_open(node: CallTreeNode) -> bool:
    """Return whether the node or one below it is running or pending."""
    return node.status in ("running", "pending") or any(map(is_open, node.children))


def is_running(node: CallTreeNode) -> bool:
    """Return whether the node or one below it is running."""
    return node.status == "running" or any(map(is_running, node.children))


def unknown_model_call(
    parent: RunRow | CallRow, step: int, *, children: Sequence[CallTreeNode]
) -> CallTreeNode:
    """Return the node of a model call that is known only by the calls it requested."""
    started_at = min(node.started_at for node in children)
    name = parent.name if isinstance(parent, RunRow) else parent.operation
    return CallTreeNode(
        id=f"{parent.id}:{step}", kind="model", name=name, status="done", started_at=started_at
    )


def running_model_call(run: RunRow, earlier: Sequence[CallTreeNode], *, step: int) -> CallTreeNode:
    """Return the node of the model call that must be running, as nothing else is."""
    started_at = max([run.started_at, *(latest_end(node) for node in earlier)])
    return CallTreeNode(
        id=f"{run.id}:{step}", kind="model", name=run.name, status="running", started_at=started_at
    )


def latest_end(node: CallTreeNode) -> float:
    """Return the time of the latest end of the node and its direct children."""
    return max([node.started_at, node.ended_at or 0.0, *(child.ended_at or 0.0 for child in node.children)])


def run_node(run: RunRow, children: tuple[CallTreeNode, ...]) -> CallTreeNode:
    models = [node for node in children if node.kind == "model"]
    costs = [node.cost for node in models if node.cost is not None]
    usages = [node.usage for node in models if node.usage is not None]
    return CallTreeNode(
        id=run.id,
        kind="run",
        name=run.name,
        status=run.status,
        started_at=run.started_at,
        ended_at=run.ended_at,
        duration=elapsed(run.started_at, run.ended_at),
        agent=run.agent,
        error={"code": "failed", "message": run.error} if run.error else None,
        cost=run.cost if run.cost is not None else sum(costs) if costs else None,
        usage=run.usage or (sum(usages[1:], usages[0]) if usages else None),
        children=children,
    )


def model_call_node(model_call: ModelCallRow) -> CallTreeNode:
    ended_at = None if model_call.duration is None else model_call.started_at + model_call.duration
    return CallTreeNode(
        id=model_call.id,
        kind="model",
        name=model_call.name,
        status=model_call.status,
        started_at=model_call.started_at,
        ended_at=ended_at,
        duration=model_call.duration,
        first_byte=model_call.first_byte,
        error={"code": model_call.error} if model_call.error else None,
        cost=model_call.cost,
        usage=model_call.usage,
    )


def call_node(
    row: CallRow, *, source: str | None = None, children: tuple[CallTreeNode, ...] = ()
) -> CallTreeNode:
    """Return the node of one call."""
    return CallTreeNode(
        id=row.id,
        kind="call",
        name=row.operation,
        status=row.status,
        started_at=row.started_at,
        ended_at=row.ended_at,
        duration=elapsed(row.started_at, row.ended_at),
        effect=row.effect,
        source=source,
        agent=row.agent,
        tool_call_id=row.tool_call_id,
        input_hash=row.input_hash,
        input=shorten(row.input),
        result=shorten(row.result),
        error=failure_json(row.error),
        cost=row.cost,
        attempts=row.attempts,
        notes=row.notes,
        approval_id=row.approval_id,
        children=children,
    )


def failure_json(error: CallFailure | None) -> dict[str, Any] | None:
    """Return the failure as JSON, without the schema, which is long and the same each time."""
    if error is None:
        return None
    return msgspec.structs.replace(error, input_schema=None).to_json()


def shorten(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_SHOWN_LENGTH else f"{text[: MAX_SHOWN_LENGTH - 1]}…"


def elapsed(start: float, end: float | None) -> float | None:
    return None if end is None else max(0.0, end - start)


def row_order(row: CallRow) -> tuple[float, str]:
    return row.started_at, row.id


def model_call_order(model_call: ModelCallRow) -> tuple[int, float]:
    return -1 if model_call.step is None else model_call.step, model_call.started_at
