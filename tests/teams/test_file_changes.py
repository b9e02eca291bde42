"""What triggers of files see of a workspace: no tree that a command leaves there stops them, or leads out."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.teams.triggers import file_changes
from dragoman.teams.triggers.file_changes import scan
from tests.tools.odd_trees import odd_tree


def test_no_tree_stops_the_look_for_changes_or_leads_it_out_of_the_workspace(tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    folder.mkdir()
    with odd_tree(folder):
        found = scan(folder, "*")
    levels = [path for path in found if path.startswith("deep/")]
    assert sorted(set(found) - set(levels)) == ["new\nline.txt", "sparse.txt"]
    assert [path.count("/") for path in sorted(levels, key=len)] == [100, 200]
    assert found["sparse.txt"][1] == 2**42


def test_a_folder_that_is_gone_or_has_become_a_link_has_no_files(tmp_path: Path) -> None:
    assert scan(tmp_path / "nowhere", "*") == {}


def test_a_look_ends_after_so_many_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_changes, "MAX_ENTRIES", 10)
    for number in range(20):
        (tmp_path / f"{number:02}").touch()
    assert len(scan(tmp_path, "*")) == 10
