"""docs/parity.md: each row names its tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.rewriting import modules_of

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
HERE = Path(__file__).parent
TESTS_AT = HERE.parent
MARK = "@pytest" + ".mark.parity"  # in two, or this file would have it
TESTS = re.compile(r"`(test_\w+)`")


def rows() -> list[list[str]]:
    """The cells of every row, without the heads of the tables."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row != ["there", "here", "tests"]]


def written() -> list[str]:
    """The tests of this folder, but for those of this file, and those that are marked elsewhere."""
    here = [path for path in HERE.glob("test_*.py") if path != Path(__file__)]
    marked = [name for path in modules_of(TESTS_AT) for name in names_in(path, MARK)]
    return [name for path in here for name in names_in(path)] + marked


def names_in(path: Path, mark: str = "") -> list[str]:
    """The names of a file's tests, or of those with this mark only."""
    text = path.read_text("utf-8")
    if mark not in text:
        return []
    found = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [
        node.name
        for node in found
        if node.name.startswith("test_")
        and (not mark or mark in {f"@{ast.unparse(each)}" for each in node.decorator_list})
    ]


def test_each_row_says_what_is_there_what_is_here_and_which_tests_do_it() -> None:
    assert len(rows()) >= 50
    assert [row for row in rows() if len(row) != 3 or not TESTS.findall(row[-1])] == []


def test_the_rows_name_all_tests_and_no_others() -> None:
    named = {name for row in rows() for name in TESTS.findall(row[-1])}
    assert named == set(written())
    assert len(written()) == len(set(written()))
