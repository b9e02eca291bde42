"""Tables of the command line in a terminal of 80 columns: nothing that identifies a row is cut."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dragoman.cli
from dragoman.cli.terminal import FREE_TEXT, fit_widths, print_table

WIDTH = 80
SOURCE = Path(dragoman.cli.__file__).parent


def headings_in(source: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The headings of every table that a file prints."""
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Tuple) and len(node.elts) > 1 and all(map(is_heading, node.elts)):
                words = tuple(ast.literal_eval(each) for each in node.elts)
                yield f"{path.relative_to(source)}: {' '.join(words)}", words


def is_heading(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isupper()


TABLES = dict(headings_in(SOURCE))


def test_the_tables_of_all_commands_are_found() -> None:
    files = {Path(name.partition(":")[0]).name for name in TABLES}
    commands = ("keys", "approvals", "calls", "sessions", "spokes", "mcp_servers", "ops")
    assert {f"{name}.py" for name in commands} <= files


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("length", [4, 12, 30])
def test_what_identifies_a_row_is_whole_at_80_columns(
    table: str, length: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    headings = TABLES[table]
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    row = [
        "text " * 30 if heading in FREE_TEXT else f"{number}".ljust(length, "x")
        for number, heading in enumerate(headings)
    ]
    print_table(headings, [row])
    _, line = capsys.readouterr().out.splitlines()
    identifying = [cell for heading, cell in zip(headings, row, strict=True) if heading not in FREE_TEXT]
    assert [cell for cell in line.split() if cell[0].isdigit()] == identifying
    least = sum(
        max(8, len(heading)) if heading in FREE_TEXT else max(length, len(heading)) for heading in headings
    )
    if least + 2 * (len(headings) - 1) <= WIDTH:
        assert len(line) <= WIDTH


def test_the_widest_text_is_cut_first_and_a_wide_terminal_cuts_nothing() -> None:
    headings, widths = ("ID", "TITLE", "INPUT"), [10, 20, 70]
    assert fit_widths(headings, widths, limit=80) == [10, 20, 46]
    assert fit_widths(headings, widths, limit=104) == widths
    assert fit_widths(headings, widths, limit=10) == [10, 8, 8]
