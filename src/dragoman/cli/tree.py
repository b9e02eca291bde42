"""A tree of calls in the terminal: lines, durations on one axis of time, figures, and what went wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dragoman.cli.terminal import cut, printable

Json: TypeAlias = Mapping[str, Any]

WIDE = 160
BAR = 24
NARROW = 80  # columns of a terminal that has no room for bars
SHOWN = 60
WORDS = 200
SIGNS: Mapping[str, tuple[str, str]] = {
    "pending": ("?", "yellow"),
    "running": ("▶", "cyan"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "aborted": ("■", "magenta"),
    "denied": ("⊘", "red"),
    "uncertain": ("≈", "yellow"),
}


class Branch(NamedTuple):
    """A node, with what is drawn before it and before what is below it."""

    node: Json
    stem: str
    below: str


class Axis(NamedTuple):
    """The time that a tree spans; bars are drawn on it."""

    start: float
    end: float

    def bar(self, node: Json, now: float) -> str:
        """The part of the axis that the node took, at least one character of it."""
        length = max(self.end - self.start, 0.001)
        begin = min(BAR - 1, max(0, int(BAR * (node["startedAt"] - self.start) / length)))
        end = min(BAR, max(begin + 1, round(BAR * (ended(node, now) - self.start) / length)))
        return f"{' ' * begin}{'━' * (end - begin)}"


def console() -> Console:
    """Stdout as trees are drawn on it."""
    width = None if sys.stdout.isatty() else WIDE
    return Console(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)


def draw(answer: Json, now: float, *, width: int = WIDE, most: int | None = None) -> Table:
    """The answer of `GET /api/calls/{id}/tree` as it is at a moment; of `most` lines the last ones."""
    branches = list(flatten(Branch(answer["tree"], "", "")))
    axis = Axis(
        min(each.node["startedAt"] for each in branches), max(ended(each.node, now) for each in branches)
    )
    rows = [row for branch in branches for row in lines(branch, axis, now=now)]
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    if width >= NARROW:
        table.add_column(no_wrap=True, width=BAR)
    for _ in range(3):
        table.add_column(no_wrap=True, justify="right")
    for row in [*above(answer), *rows[-most if most else 0 :], *rest(answer)]:
        table.add_row(*(row if width >= NARROW else (row[0], *row[2:])))
    return table


def above(answer: Json) -> Iterator[tuple[Text, ...]]:
    """What the tree is part of."""
    names = " → ".join(printable(step["name"]) for step in answer["path"])
    if names:
        yield full(Text(f"{names} →", style="dim"))


def rest(answer: Json) -> Iterator[tuple[Text, ...]]:
    if answer["leftOut"]:
        yield full(Text(f"… and {answer['leftOut']:,} more", style="yellow"))


def lines(branch: Branch, axis: Axis, *, now: float) -> Iterator[tuple[Text, ...]]:
    """The line of a node, and those about it."""
    node = branch.node
    sign, colour = SIGNS[node["status"]]
    title = Text.assemble((branch.stem, "dim"), (f"{sign} ", colour), title_of(node))
    if node.get("input"):
        title.append(f" {cut(one_line(node['input']), SHOWN)}", style="dim")
    if node.get("attempts", 1) > 1:
        title.append(f" ×{node['attempts']}", style="yellow")
    yield (
        title,
        Text(axis.bar(node, now), style=colour if node["status"] != "done" else "blue"),
        Text(seconds(ended(node, now) - node["startedAt"]), style="bold" if is_under_way(node) else ""),
        Text(dollars(node.get("cost")), style="dim"),
        Text(tokens(node.get("usage") or {}), style="dim"),
    )
    more = "│ " if node.get("children") else "  "
    for words, style in remarks(node):
        yield full(Text.assemble((f"{branch.below}{more}", "dim"), (cut(one_line(words), WORDS), style)))


def title_of(node: Json) -> tuple[str, str]:
    """A node's name, and how it looks."""
    name = printable(node["name"])
    return (f"run {name}", "bold") if node["kind"] == "run" else (name, "")


def remarks(node: Json) -> Iterator[tuple[str, str]]:
    """What is to be said of a node beside its figures."""
    error = node.get("error")
    if error:
        yield ": ".join(str(error[name]) for name in ("code", "message") if error.get(name)), "red"
    if node["status"] == "pending":
        yield f"waits for an answer to approval {node.get('approvalId', '')}".rstrip(), "yellow"
    if node["status"] == "uncertain":
        yield "it is not known whether it took effect", "yellow"
    for words in node.get("notes", ()):
        yield words, "dim yellow"


def flatten(top: Branch) -> Iterator[Branch]:
    """All nodes from above, as they are drawn."""
    yield top
    children = top.node.get("children", ())
    for number, child in enumerate(children, 1):
        is_last = number == len(children)
        stem, below = ("└─", "  ") if is_last else ("├─", "│ ")
        yield from flatten(Branch(child, top.below + stem, top.below + below))


def ended(node: Json, now: float) -> float:
    """When the node ended, or now. What was cut off without an end is taken as ended where it began."""
    if is_under_way(node):
        return max(now, float(node["startedAt"]))
    return float(node.get("endedAt") or node["startedAt"])


def is_under_way(node: Json) -> bool:
    return bool(node["status"] == "running")


def full(text: Text) -> tuple[Text, ...]:
    """A line without figures."""
    return (text, *(Text() for _ in range(4)))


def one_line(text: str) -> str:
    return " ".join(printable(text).split())


def seconds(span: float) -> str:
    if round(span, 3) < 1:
        return f"{1000 * span:.0f} ms"
    return f"{span:.1f} s" if span < 60 else f"{int(span // 60)}:{int(span % 60):02} min"


def dollars(cost: float | None) -> str:
    if cost is None:
        return ""
    return "< $0.0001" if 0 < cost < 0.00005 else f"${cost:,.4f}"


def tokens(usage: Json) -> str:
    """Tokens in and out."""
    counts = [usage.get(name) for name in ("inputTokens", "outputTokens")]
    if counts == [None, None]:
        return ""
    about = "~" if usage.get("estimated") else ""
    return about + "→".join("?" if count is None else f"{count:,}" for count in counts)
