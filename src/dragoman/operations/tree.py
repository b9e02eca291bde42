"""The tree of calls: a run, its model calls, what they called, and what that called, as nodes to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from dragoman.events import Usage
from dragoman.operations.operation import Effect
from dragoman.operations.outcome import CallFailure, Status

Kind = Literal["run", "model", "call"]
SourceOf = Callable[[str], str | None]

DEEPEST = 100
SHOWN = 240


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A call as the store tells it for a tree: `input` and `result` are JSON text, perhaps cut off."""

    id: str
    operation: str
    effect: Effect
    owner: str
    input_hash: str
    status: Status
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


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A model call that has ended; `call_id` is the call that it was made in, if that is an agent's."""

    id: str
    name: str
    status: Status
    started_at: float
    step: int | None = None
    duration: float | None = None
    first_byte: float | None = None
    error: str | None = None
    cost: float | None = None
    usage: Usage | None = None
    call_id: str | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One node and all below it. Times are unix seconds, durations seconds, costs US dollars.

    What is under way has no `ended_at` and no `duration`. `input` and `result` are JSON text, cut short.
    """

    id: str
    kind: Kind
    name: str
    status: Status
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
    children: tuple[Node, ...] = ()


class Crown(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the root of a tree."""

    id: str
    name: str
    status: Status
    started_at: float
    ended_at: float | None = None
    agent: str | None = None
    error: str | None = None
    cost: float | None = None
    usage: Usage | None = None


class Grove:
    """Calls by their parents, to be made into nodes."""

    def __init__(
        self, lines: Iterable[Line], *, answers: Iterable[Answer] = (), source: SourceOf = lambda _: None
    ) -> None:
        self._source = source
        self._answers: dict[str, list[Answer]] = {}
        for answer in answers:
            if answer.call_id is not None:
                self._answers.setdefault(answer.call_id, []).append(answer)
        self._lines = {line.id: line for line in lines}
        self._below: dict[str | None, list[Line]] = {}
        for line in sorted(self._lines.values(), key=in_order):
            parent = line.parent_id if line.parent_id in self._lines else None
            self._below.setdefault(parent, []).append(line)
        self._shown = 0

    @property
    def left_out(self) -> int:
        """How many calls are in no node that was made so far: they are too deep."""
        return len(self._lines) - self._shown

    def under(self, id: str) -> Node | None:
        """The call of this id with all below it."""
        line = self._lines.get(id)
        return None if line is None else self._node(line)

    def roots(self) -> list[tuple[Line, Node]]:
        """The calls without a parent here."""
        return [(line, self._node(line)) for line in self._below.get(None, ())]

    def _node(self, line: Line, depth: int = DEEPEST) -> Node:
        self._shown += 1
        below = self._below.get(line.id, ()) if depth else ()
        children = [(child, self._node(child, depth - 1)) for child in below]
        answers = self._answers.get(line.id)
        return to_node(
            line,
            source=self._source(line.operation),
            children=tuple(by_steps(answers, children, above=line) if answers else [n for _, n in children]),
        )


def grow(crown: Crown, answers: Sequence[Answer], *, grove: Grove) -> Node:
    """The tree of a run: its model calls by step, and below each the calls that it asked for.

    A model call that is under way, or of which nothing is known, is there all the same, without figures.
    """
    own = [answer for answer in answers if answer.call_id is None]
    children = by_steps(own, grove.roots(), above=crown)
    steps = sum(node.kind == "model" for node in children)
    if crown.status == "running" and not any(is_open(node) for node in children):
        children.append(thinking(crown, children, step=steps + 1))
    return to_root(crown, tuple(children))


def by_steps(
    answers: Sequence[Answer], calls: Sequence[tuple[Line, Node]], *, above: Crown | Line
) -> list[Node]:
    """Model calls by step, below each the calls that it asked for, in the order in which they began."""
    asked: dict[int | None, list[Node]] = {}
    for line, node in calls:
        asked.setdefault(line.step or None, []).append(node)  # 0: approved before, run ahead of the first
    told = {
        step: list(group) for step, group in groupby(sorted(answers, key=by_step), key=lambda each: each.step)
    }
    steps = sorted({step for step in (*asked, *told) if step is not None})
    children: list[Node] = []
    for step in steps:
        below = tuple(asked.get(step, ()))
        known = [to_model(each) for each in told.get(step, ())] or [unknown(above, step, below=below)]
        children += [*known[:-1], msgspec.structs.replace(known[-1], children=below)]
    children += [to_model(each) for each in told.get(None, ())]
    children += asked.get(None, ())
    return sorted(children, key=lambda node: node.started_at)


def is_open(node: Node) -> bool:
    """Whether the node or something below it is under way, or waits."""
    return node.status in ("running", "pending") or any(map(is_open, node.children))


def is_running(node: Node) -> bool:
    """Whether the node or something below it is under way."""
    return node.status == "running" or any(map(is_running, node.children))


def unknown(above: Crown | Line, step: int, *, below: Sequence[Node]) -> Node:
    """A model call that is known by what it asked for only."""
    began = min(node.started_at for node in below)
    name = above.name if isinstance(above, Crown) else above.operation
    return Node(id=f"{above.id}:{step}", kind="model", name=name, status="done", started_at=began)


def thinking(crown: Crown, before: Sequence[Node], *, step: int) -> Node:
    """The model call that must be under way, for nothing else is."""
    began = max([crown.started_at, *(last_of(node) for node in before)])
    return Node(id=f"{crown.id}:{step}", kind="model", name=crown.name, status="running", started_at=began)


def last_of(node: Node) -> float:
    """When the node and all directly below it had ended."""
    return max([node.started_at, node.ended_at or 0.0, *(each.ended_at or 0.0 for each in node.children)])


def to_root(crown: Crown, children: tuple[Node, ...]) -> Node:
    models = [node for node in children if node.kind == "model"]
    costs = [node.cost for node in models if node.cost is not None]
    counted = [node.usage for node in models if node.usage is not None]
    return Node(
        id=crown.id,
        kind="run",
        name=crown.name,
        status=crown.status,
        started_at=crown.started_at,
        ended_at=crown.ended_at,
        duration=span(crown.started_at, crown.ended_at),
        agent=crown.agent,
        error={"code": "failed", "message": crown.error} if crown.error else None,
        cost=crown.cost if crown.cost is not None else sum(costs) if costs else None,
        usage=crown.usage or (sum(counted[1:], counted[0]) if counted else None),
        children=children,
    )


def to_model(answer: Answer) -> Node:
    ended = None if answer.duration is None else answer.started_at + answer.duration
    return Node(
        id=answer.id,
        kind="model",
        name=answer.name,
        status=answer.status,
        started_at=answer.started_at,
        ended_at=ended,
        duration=answer.duration,
        first_byte=answer.first_byte,
        error={"code": answer.error} if answer.error else None,
        cost=answer.cost,
        usage=answer.usage,
    )


def to_node(line: Line, *, source: str | None = None, children: tuple[Node, ...] = ()) -> Node:
    """The node of one call."""
    return Node(
        id=line.id,
        kind="call",
        name=line.operation,
        status=line.status,
        started_at=line.started_at,
        ended_at=line.ended_at,
        duration=span(line.started_at, line.ended_at),
        effect=line.effect,
        source=source,
        agent=line.agent,
        tool_call_id=line.tool_call_id,
        input_hash=line.input_hash,
        input=short(line.input),
        result=short(line.result),
        error=failure(line.error),
        cost=line.cost,
        attempts=line.attempts,
        notes=line.notes,
        approval_id=line.approval_id,
        children=children,
    )


def failure(error: CallFailure | None) -> dict[str, Any] | None:
    """What went wrong, without the schema, which is long and the same each time."""
    if error is None:
        return None
    return msgspec.structs.replace(error, input_schema=None).to_json()


def short(text: str | None) -> str | None:
    return text if text is None or len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def span(start: float, end: float | None) -> float | None:
    return None if end is None else max(0.0, end - start)


def in_order(line: Line) -> tuple[float, str]:
    return line.started_at, line.id


def by_step(answer: Answer) -> tuple[int, float]:
    return -1 if answer.step is None else answer.step, answer.started_at
