"""What a call that waits for an approval would change: its arguments, as differences where they are edits."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from dragoman.cli.access.question_prompt import question_lines, spell_invisible
from dragoman.cli.terminal import join_styled, make_console
from dragoman.tools.files.text_edits import unified_diff

Json: TypeAlias = Mapping[str, Any]
MAX_ONE_LINE = 72  # characters of arguments that fit on the line of the operation
TEXT_NAMES = ("text", "content")  # of the argument that is the whole new file
STYLES = {"+": "green", "-": "red", "@": "cyan"}
INDENT = "    "
TAB, TAB_SHOWN = "\t", "⇥   "


def print_items(items: Sequence[Json], *, id: str, limit: int | None = None) -> None:
    """Print what an approval would let run, at most `limit` lines; a last line says how to see the rest."""
    out = make_console(sys.stdout)
    lines = [line for item in items for line in item_lines(item)]
    for line in lines[:limit]:
        out.print(join_styled(line))
    if limit is not None and len(lines) > limit:
        rest = f"  … {len(lines) - limit} more lines: `dragoman approvals show {id}` shows all"
        out.print(join_styled((rest, "bold yellow")))


def item_lines(item: Json) -> Iterator[tuple[str, str]]:
    """Yield the lines that describe one call, each with its style."""
    agent = f", for the agent {spell_invisible(item['agent'])}" if item["agent"] else ""
    reason = f": {spell_invisible(item['reason'])}" if item["reason"] else ""
    operation = f"  {spell_invisible(item['operation'])}"
    if item["question"] is not None:
        yield f"{operation}{agent}{reason}", ""
        yield from ((f"{INDENT}{line}", "") for line in question_lines(item["question"]))
        return
    short = spell_invisible(msgspec.json.encode(item["input"]).decode())
    previous = item.get("previous")
    if not previous and len(short) <= MAX_ONE_LINE:
        yield f"{operation} {short}{agent}{reason}", ""
        return
    yield f"{operation}{agent}{reason}", ""
    yield from argument_lines(item["input"], None if previous is None else previous["input"])


def argument_lines(input: Any, previous: Any) -> Iterator[tuple[str, str]]:
    """Yield arguments: edits and whole files as differences, the rest as JSON."""
    drawn, rest = file_changes(input, previous)
    if rest != {} or not drawn:
        if previous is not None and not drawn:
            yield f"{INDENT}compared with the call that was approved last:", "dim"
            same = f"{INDENT}the same arguments"
            yield from diff_lines(pretty(previous), pretty(input), name="arguments") or ((same, ""),)
        yield from ((f"{INDENT}{spell_invisible(line)}", "") for line in pretty(rest).splitlines())
    yield from drawn


def file_changes(input: Any, previous: Any) -> tuple[list[tuple[str, str]], Any]:
    """Return the lines of a difference, and the arguments that it does not show.

    An edit of a file names `path` and `edits` of `old` and `new`; a write `path` and its whole text, which is
    compared with what the previous call wrote to the same path.
    """
    if not isinstance(input, dict) or not isinstance(input.get("path"), str):
        return [], input
    path = spell_invisible(input["path"])
    if is_edits(input.get("edits")):
        lines = [line for edit in input["edits"] for line in edit_lines(edit, path)]
        return lines, {name: value for name, value in input.items() if name not in ("path", "edits")}
    name = next((name for name in TEXT_NAMES if isinstance(input.get(name), str)), None)
    if name is None:
        return [], input
    before = ""
    if isinstance(previous, dict) and previous.get("path") == input["path"]:
        before = previous[name] if isinstance(previous.get(name), str) else ""
    note = "what was approved last, and the new text" if before else "the whole new text"
    lines = [(f"{INDENT}{path}: {note}", "dim"), *diff_lines(before, input[name], name=path)]
    return lines, {each: value for each, value in input.items() if each not in ("path", name)}


def is_edits(value: Any) -> bool:
    """Return whether a value is a list of replacements, as `files.edit` takes them."""
    return isinstance(value, list) and all(
        isinstance(each, dict) and isinstance(each.get("old"), str) and isinstance(each.get("new"), str)
        for each in value
    )


def edit_lines(edit: Json, path: str) -> Iterator[tuple[str, str]]:
    """Yield one replacement as a difference, after its other fields."""
    rest = {name: value for name, value in edit.items() if name not in ("old", "new") and value}
    if rest:
        yield f"{INDENT}{spell_invisible(msgspec.json.encode(rest).decode())}", "yellow"
    yield from diff_lines(edit["old"], edit["new"], name=path)


def diff_lines(old: str, new: str, *, name: str) -> list[tuple[str, str]]:
    """Return a difference of two texts, line by line with its style, invisible characters spelled out."""
    lines = unified_diff(old, new, path=name, limit=None).split("\n")[:-1]
    return [
        (f"{INDENT}{spell_invisible(line.replace(TAB, TAB_SHOWN))}", STYLES.get(line[:1], ""))
        for line in lines
    ]


def pretty(value: Any) -> str:
    """Format a value as JSON on several lines."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
