"""docs/parity-teams.md: each row has a state and tests that exist; nothing of OpenHive's tools is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.teams.openhive_tool_names import NAMES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/parity-teams.md"
STATES = ("as there", "other", "added", "left out")
TEST = re.compile(r"`([a-z_/]+\.py)(?:::(\w+))?`")


def rows() -> Iterator[list[str]]:
    """The cells of each row, without headings."""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] != "there" and not cells[0].startswith("---"):
            yield cells


ROWS = list(rows())


@pytest.mark.parametrize("row", ROWS, ids=[row[0] or row[1] for row in ROWS])
def test_a_row_has_a_state_and_tests_that_exist(row: list[str]) -> None:
    there, here, state, test = row
    assert there or here
    assert state.startswith(STATES), state
    found = TEST.findall(test)
    assert found or state.startswith("left out: ")
    for path, name in found:
        source = (ROOT / "tests" / path).read_text()
        assert not name or f"def {name}(" in source, f"{path} has no test {name}"


def test_the_table_has_every_tool_of_openhive() -> None:
    text = PAGE.read_text()
    missing = [name for name in NAMES if not name.startswith("browser_") and f"`{name}`" not in text]
    assert missing == []
