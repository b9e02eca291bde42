"""Files that the hub writes for agents: below `generated/` only, whole, and read at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.config import read_section
from dragoman.errors import BadRequest, ConfigError, Conflict, TooLarge
from dragoman.teams.generated_files import MAX_GENERATED, GeneratedFiles
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.spec import TeamFile


def open_teams(root: Path) -> TeamRegistry:
    (root / "main").mkdir(parents=True, exist_ok=True)
    (root / "main/team.yaml").write_text("description: The root")
    teams = TeamRegistry(root, lambda path: read_section(path, TeamFile, environ={}))
    teams.load()
    return teams


def test_a_generated_team_is_there_at_once_and_goes_with_its_folder(tmp_path: Path) -> None:
    teams = open_teams(tmp_path)
    files = GeneratedFiles(teams)
    folder = files.create_team("writers", content="parent: main\naccepts: [texts]")
    assert folder == teams.get("writers").folder == tmp_path / "generated/writers"
    assert teams.get("writers").accepts == ("texts",)
    with pytest.raises(Conflict, match="already"):
        files.create_team("writers", content="")
    files.remove_team("writers")
    assert teams.find("writers") is None
    with pytest.raises(Conflict, match="written by people"):
        files.remove_team("main")


def test_a_team_has_nothing_of_one_that_was_not_complete_when_a_hub_was_killed(tmp_path: Path) -> None:
    teams = open_teams(tmp_path)
    rule = tmp_path / "generated/writers/rules/team/instructions.md"
    rule.parent.mkdir(parents=True)
    rule.write_text("Rules that belong to another request.")
    work = tmp_path / "generated/writers/workspace/chapter.md"  # of a team whose team.yaml somebody deleted
    work.parent.mkdir()
    work.write_text("Once upon a time")
    GeneratedFiles(teams).create_team("writers", content="parent: main")
    assert teams.sources("writers").team_rules == ()
    assert work.read_text() == "Once upon a time"


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [("other", "parent: nobody", BadRequest), ("other", "stepz: 1", BadRequest), ("../x", "", ConfigError)],
)
def test_a_team_that_would_be_wrong_is_not_written(
    tmp_path: Path, name: str, content: str, error: type[Exception]
) -> None:
    teams = open_teams(tmp_path)
    with pytest.raises(error):
        GeneratedFiles(teams).create_team(name, content=content)
    assert teams.problems == ()
    assert list(tmp_path.rglob("*")) == [tmp_path / "main", tmp_path / "main/team.yaml"] or not any(
        (tmp_path / "generated").iterdir()
    )


@pytest.mark.parametrize(
    "path",
    ["", "../team.yaml", "/etc/passwd", "a/../../team.yaml", ".hidden", "a/b/c/d/e", "a\0b", "lines\n"],
)
def test_no_path_leads_out_of_generated(tmp_path: Path, path: str) -> None:
    with pytest.raises(BadRequest):
        GeneratedFiles(open_teams(tmp_path)).write("main", path, content="x")


def test_a_link_in_generated_leads_nowhere_else(tmp_path: Path) -> None:
    teams = open_teams(tmp_path / "teams")
    (tmp_path / "outside").mkdir()
    (tmp_path / "teams/main/generated").mkdir()
    (tmp_path / "teams/main/generated/out").symlink_to(tmp_path / "outside")
    with pytest.raises(BadRequest, match="link"):
        GeneratedFiles(teams).write("main", "out/x.md", content="x")
    assert not any((tmp_path / "outside").iterdir())


def test_a_file_is_written_whole_within_its_limit_and_removed(tmp_path: Path) -> None:
    teams = open_teams(tmp_path)
    files = GeneratedFiles(teams)
    written = files.write("main", "skills/tidy/SKILL.md", content="é")
    assert written.read_text() == "é"
    with pytest.raises(TooLarge):
        files.write("main", "skills/tidy/SKILL.md", content="é" * MAX_GENERATED)
    assert written.read_text() == "é"
    assert [each.name for each in written.parent.iterdir()] == ["SKILL.md"]
    files.remove("main", "skills/tidy")
    assert not written.parent.exists()
