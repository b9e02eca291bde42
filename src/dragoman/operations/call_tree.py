"""The tree of calls: a run, its model calls, what they called, and what that called, as nodes to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from dragoman.events import Usage
from dragoman.operations.operation import Effect
from dragoman.operations.outcome import CallFailure, CallStatus

NodeKind = Literal["run", "model", "call"]
SourceLookup = Callable[[str], str | None]

MAX_DEPTH = 100
MAX_SHOWN_LENGTH = 240


class CallRow(msgspec.Struct, frozen=True, kw_only=True):
    """A call as the store tells it for a tree: `input` and `result` are JSON text, perhaps cut off."""

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
    """A model call that has ended; `call_id` is the call that it was made in, if that is an agent's."""

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
    """One node and all below it. Times are unix seconds, durations seconds, costs US dollars.

    What is under way has no `ended_at` and no `duration`. `input` and `result` are JSON text, cut short.
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
    """A run as the root of a tree."""

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
    """Calls by their parents, to be made into nodes."""

    def __init__(
        self,
        rows: Iterable[CallRow],
        *,
        model_calls: Iterable[ModelCallRow] = (),
        source: SourceLookup = lambda _: None,
    ) -> None:
        self._source = source
        self._model_calls: dict[str, list[ModelCallRow]] = {}
        for answer in model_calls:
            if answer.call_id is not None:
                self._model_calls.setdefault(answer.call_id, []).append(answer)
        self._rows = {line.id: line for line in rows}
        self._children: dict[str | None, list[CallRow]] = {}
        for line in sorted(self._rows.values(), key=row_order):
            parent = line.parent_id if line.parent_id in self._rows else None
            self._children.setdefault(parent, []).append(line)
        self._built_count = 0

    @property
    def omitted_count(self) -> int:
        """How many calls are in no node that was made so far: they are too deep."""
        return len(self._rows) - self._built_count

    def subtree(self, id: str) -> CallTreeNode | None:
        """The call of this id with all below it."""
        line = self._rows.get(id)
        return None if line is None else self._build_node(line)

    def roots(self) -> list[tuple[CallRow, CallTreeNode]]:
        """The calls without a parent here."""
        return [(line, self._build_node(line)) for line in self._children.get(None, ())]

    def _build_node(self, row: CallRow, depth: int = MAX_DEPTH) -> CallTreeNode:
        self._built_count += 1
        below = self._children.get(row.id, ()) if depth else ()
        children = [(child, self._build_node(child, depth - 1)) for child in below]
        answers = self._model_calls.get(row.id)
        return call_node(
            row,
            source=self._source(row.operation),
            children=tuple(
                group_by_step(answers, children, parent=row) if answers else [n for _, n in children]
            ),
        )


def build_run_tree(
    run: RunRow, model_calls: Sequence[ModelCallRow], *, builder: CallTreeBuilder
) -> CallTreeNode:
    """The tree of a run: its model calls by step, and below each the calls that it asked for.

    A model call that is under way, or of which nothing is known, is there all the same, without figures.
    """
    own = [answer for answer in model_calls if answer.call_id is None]
    children = group_by_step(own, builder.roots(), parent=run)
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
    """Model calls by step, below each the calls that it asked for, in the order in which they began."""
    asked: dict[int | None, list[CallTreeNode]] = {}
    for line, node in calls:
        asked.setdefault(line.step or None, []).append(node)  # 0: approved before, run ahead of the first
    told = {
        step: list(group)
        for step, group in groupby(sorted(model_calls, key=model_call_order), key=lambda each: each.step)
    }
    steps = sorted({step for step in (*asked, *told) if step is not None})
    children: list[CallTreeNode] = []
    for step in steps:
        below = tuple(asked.get(step, ()))
        known = [model_call_node(each) for each in told.get(step, ())] or [
            unknown_model_call(parent, step, children=below)
        ]
        children += [*known[:-1], msgspec.structs.replace(known[-1], children=below)]
    children += [model_call_node(each) for each in told.get(None, ())]
    children += asked.get(None, ())
    return sorted(children, key=lambda node: node.started_at)


def is_open(node: CallTreeNode) -> bool:
    """Whether the node or something below it is under way, or waits."""
    return node.status in ("running", "pending") or any(map(is_open, node.children))


def is_running(node: CallTreeNode) -> bool:
    """Whether the node or something below it is under way."""
    return node.status == "running" or any(map(is_running, node.children))


def unknown_model_call(
    parent: RunRow | CallRow, step: int, *, children: Sequence[CallTreeNode]
) -> CallTreeNode:
    """A model call that is known by what it asked for only."""
    began = min(node.started_at for node in children)
    name = parent.name if isinstance(parent, RunRow) else parent.operation
    return CallTreeNode(id=f"{parent.id}:{step}", kind="model", name=name, status="done", started_at=began)


def running_model_call(run: RunRow, earlier: Sequence[CallTreeNode], *, step: int) -> CallTreeNode:
    """The model call that must be under way, for nothing else is."""
    began = max([run.started_at, *(latest_end(node) for node in earlier)])
    return CallTreeNode(
        id=f"{run.id}:{step}", kind="model", name=run.name, status="running", started_at=began
    )


def latest_end(node: CallTreeNode) -> float:
    """When the node and all directly below it had ended."""
    return max([node.started_at, node.ended_at or 0.0, *(each.ended_at or 0.0 for each in node.children)])


def run_node(run: RunRow, children: tuple[CallTreeNode, ...]) -> CallTreeNode:
    models = [node for node in children if node.kind == "model"]
    costs = [node.cost for node in models if node.cost is not None]
    counted = [node.usage for node in models if node.usage is not None]
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
        usage=run.usage or (sum(counted[1:], counted[0]) if counted else None),
        children=children,
    )


def model_call_node(model_call: ModelCallRow) -> CallTreeNode:
    ended = None if model_call.duration is None else model_call.started_at + model_call.duration
    return CallTreeNode(
        id=model_call.id,
        kind="model",
        name=model_call.name,
        status=model_call.status,
        started_at=model_call.started_at,
        ended_at=ended,
        duration=model_call.duration,
        first_byte=model_call.first_byte,
        error={"code": model_call.error} if model_call.error else None,
        cost=model_call.cost,
        usage=model_call.usage,
    )


def call_node(
    row: CallRow, *, source: str | None = None, children: tuple[CallTreeNode, ...] = ()
) -> CallTreeNode:
    """The node of one call."""
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
    """What went wrong, without the schema, which is long and the same each time."""
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
