"""Renders a call tree for the terminal: names, bars on one time axis, figures and errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dragoman.cli.terminal import strip_controls, truncate

Json: TypeAlias = Mapping[str, Any]

DEFAULT_WIDTH = 160
BAR_WIDTH = 24
MIN_WIDTH_FOR_BARS = 80  # columns; a narrower terminal gets no bars
MAX_INPUT = 60
MAX_REMARK = 200
STATUS_SIGNS: Mapping[str, tuple[str, str]] = {
    "pending": ("?", "yellow"),
    "running": ("▶", "cyan"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "aborted": ("■", "magenta"),
    "denied": ("⊘", "red"),
    "uncertain": ("≈", "yellow"),
}


class TreeLine(NamedTuple):
    """A node, with the prefix of its own line and that of the lines below it."""

    node: Json
    prefix: str
    child_prefix: str


class TimeAxis(NamedTuple):
    """The time that a tree spans, as an axis for bars."""

    start: float
    end: float

    def bar(self, node: Json, now: float) -> str:
        """Return the node's bar on the axis, at least one character long."""
        length = max(self.end - self.start, 0.001)
        begin = min(BAR_WIDTH - 1, max(0, int(BAR_WIDTH * (node["startedAt"] - self.start) / length)))
        end = min(BAR_WIDTH, max(begin + 1, round(BAR_WIDTH * (end_time(node, now) - self.start) / length)))
        return f"{' ' * begin}{'━' * (end - begin)}"


def tree_console() -> Console:
    """Return a console on stdout for trees."""
    width = None if sys.stdout.isatty() else DEFAULT_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)


def render_tree(
    response: Json,
    now: float,
    *,
    width: int = DEFAULT_WIDTH,
    max_rows: int | None = None,
    mark: str | None = None,
) -> Table:
    """Render the response of `GET /api/calls/{id}/tree` at a moment; with `max_rows`, its last lines.

    The node with the id `mark` is marked, unless it is the root.
    """
    branches = list(flatten(TreeLine(response["tree"], "", "")))
    axis = TimeAxis(
        min(each.node["startedAt"] for each in branches), max(end_time(each.node, now) for each in branches)
    )
    mark = mark if mark != response["tree"]["id"] else None
    rows = [row for branch in branches for row in node_rows(branch, axis, now=now, mark=mark)]
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    if width >= MIN_WIDTH_FOR_BARS:
        table.add_column(no_wrap=True, width=BAR_WIDTH)
    for _ in range(3):
        table.add_column(no_wrap=True, justify="right")
    for row in [*path_row(response), *rows[-max_rows if max_rows else 0 :], *omitted_row(response)]:
        table.add_row(*(row if width >= MIN_WIDTH_FOR_BARS else (row[0], *row[2:])))
    return table


def path_row(response: Json) -> Iterator[tuple[Text, ...]]:
    """Yield a line with the ancestors of the tree."""
    names = " → ".join(strip_controls(step["name"]) for step in response["path"])
    if names:
        yield text_row(Text(f"{names} →", style="dim"))


def omitted_row(response: Json) -> Iterator[tuple[Text, ...]]:
    if response["leftOut"]:
        yield text_row(Text(f"… and {response['leftOut']:,} more", style="yellow"))


def node_rows(
    branch: TreeLine, axis: TimeAxis, *, now: float, mark: str | None = None
) -> Iterator[tuple[Text, ...]]:
    """Yield the line of a node, and its remarks."""
    node = branch.node
    sign, colour = STATUS_SIGNS[node["status"]]
    title = Text.assemble((branch.prefix, "dim"), (f"{sign} ", colour), node_title(node))
    if node.get("input"):
        title.append(f" {truncate(one_line(node['input']), MAX_INPUT)}", style="dim")
    if mark is not None and node["id"] == mark:
        title.append(" ◀", style="bold yellow")
    if node.get("attempts", 1) > 1:
        title.append(f" ×{node['attempts']}", style="yellow")
    yield (
        title,
        Text(axis.bar(node, now), style=colour if node["status"] != "done" else "blue"),
        Text(
            format_seconds(end_time(node, now) - node["startedAt"]), style="bold" if is_running(node) else ""
        ),
        Text(format_cost(node.get("cost")), style="dim"),
        Text(format_tokens(node.get("usage") or {}), style="dim"),
    )
    more = "│ " if node.get("children") else "  "
    for words, style in node_remarks(node):
        yield text_row(
            Text.assemble(
                (f"{branch.child_prefix}{more}", "dim"), (truncate(one_line(words), MAX_REMARK), style)
            )
        )


def node_title(node: Json) -> tuple[str, str]:
    """Return a node's name and its style."""
    name = strip_controls(node["name"])
    return (f"{node['kind']} {name}", "bold") if node["kind"] in ("run", "task") else (name, "")


def node_remarks(node: Json) -> Iterator[tuple[str, str]]:
    """Yield the remarks on a node: errors, waiting, uncertain effects."""
    error = node.get("error")
    if error:
        yield ": ".join(str(error[name]) for name in ("code", "message") if error.get(name)), "red"
    if node["status"] == "pending" and node["kind"] == "task":
        yield "it waits", "yellow"
    elif node["status"] == "pending":
        yield f"waits for an answer to approval {node.get('approvalId', '')}".rstrip(), "yellow"
    if node["status"] == "uncertain":
        yield "it is not known whether it took effect", "yellow"
    for words in node.get("notes", ()):
        yield words, "dim yellow"


def flatten(top: TreeLine) -> Iterator[TreeLine]:
    """Yield all nodes from top to bottom, as drawn."""
    yield top
    children = top.node.get("children", ())
    for number, child in enumerate(children, 1):
        is_last = number == len(children)
        stem, below = ("└─", "  ") if is_last else ("├─", "│ ")
        yield from flatten(TreeLine(child, top.child_prefix + stem, top.child_prefix + below))


def end_time(node: Json, now: float) -> float:
    """Return when the node ended, or now. An interrupted node without an end ends where it began."""
    if is_running(node):
        return max(now, float(node["startedAt"]))
    return float(node.get("endedAt") or node["startedAt"])


def is_running(node: Json) -> bool:
    return bool(node["status"] == "running")


def text_row(text: Text) -> tuple[Text, ...]:
    """Return a row that has text only."""
    return (text, *(Text() for _ in range(4)))


def one_line(text: str) -> str:
    return " ".join(strip_controls(text).split())


def format_seconds(span: float) -> str:
    if round(span, 3) < 1:
        return f"{1000 * span:.0f} ms"
    return f"{span:.1f} s" if span < 60 else f"{int(span // 60)}:{int(span % 60):02} min"


def format_cost(cost: float | None) -> str:
    if cost is None:
        return ""
    return "< $0.0001" if 0 < cost < 0.00005 else f"${cost:,.4f}"


def format_tokens(usage: Json) -> str:
    """Format input and output tokens."""
    counts = [usage.get(name) for name in ("inputTokens", "outputTokens")]
    if counts == [None, None]:
        return ""
    about = "~" if usage.get("estimated") else ""
    return about + "→".join("?" if count is None else f"{count:,}" for count in counts)
