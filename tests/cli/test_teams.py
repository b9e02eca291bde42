"""`dragoman teams` makes, checks, shows and removes folders of teams, without a hub."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from tests.cli.conftest import Run

LAYOUT = Path(__file__).parents[1] / "teams/openhive"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "teams"


def test_a_team_is_made_checked_listed_shown_and_removed(run: Run, folder: Path) -> None:
    assert run("teams", "list").code == 1
    assert run("teams", "init", "main", "--description", 'The "root": all').code == 0
    assert run("teams", "init", "docs", "--parent", "main").code == 0
    assert run("teams", "init", "docs").code == 1
    assert run("teams", "init", "x", "--parent", "nobody").code == 1
    assert run("teams", "check").out.strip().endswith("2 teams are valid")
    lines = run("teams", "list").out.splitlines()
    assert [line.split()[0] for line in lines] == ["TEAM", "main", "docs"]
    assert lines[2].startswith("  docs")
    shown = msgspec.json.decode(run("teams", "show", "main", "--json").out)
    assert (shown["description"], shown["members"]) == ('The "root": all', ["docs"])
    assert "may delegate to main" in run("teams", "show", "docs").out
    assert run("teams", "remove", "main", "--yes").code == 1
    assert run("teams", "remove", "docs", "--yes").code == 0
    assert not (folder / "docs").exists()


def test_skills_are_listed_and_those_that_cannot_be_used_are_told(run: Run, folder: Path) -> None:
    run("teams", "init", "main")
    (folder / "main/team.yaml").write_text("allowed_tools: [skills.load]")
    (folder / "main/skills/good.md").write_text("# Good\n\nDo it.\n\n## Required Tools\n- math.calculate\n")
    (folder / "main/skills/Bad name.md").write_text("# Bad\n\nDo it.")
    (folder / "main/subagents/a.md").write_text("---\ndescription: x\nskills: [none]\n---\nx")
    result = run("teams", "check")
    assert (result.code, result.out.strip().endswith(": 1 team is valid, with 1 skill")) == (0, True)
    for problem in (
        "main/skills/Bad name.md: 'bad name' is not a valid name",
        "main/skills/good.md: allowed_tools of main does not allow math.calculate",
        "main/subagents/a.md: skills: there is no skill 'none'",
    ):
        assert f"WARNING: {problem}" in result.err
        assert problem in run("teams", "show", "main").err
    assert "skills          good" in run("teams", "show", "main").out
    assert msgspec.json.decode(run("teams", "check", "--json").out)["skills"] == {"main": ["good"]}


def test_check_tells_file_and_line_of_every_problem(run: Run, folder: Path) -> None:
    run("teams", "init", "main")
    (folder / "main/team.yaml").write_text("description: x\nmax_steps: 0\nallowd_tools: []\n")
    result = run("teams", "check")
    assert result.code == 1
    assert "main/team.yaml:2: max_steps" in result.err
    assert "main/team.yaml:3: allowd_tools" in result.err
    assert "did you mean 'allowed_tools'" in result.err


def test_prompt_shows_each_file_with_its_hash_and_tokens_and_tells_conflicts(run: Run, folder: Path) -> None:
    run("teams", "init", "main")
    run("teams", "init", "docs", "--parent", "main")
    (folder / "main/rules/org/style.md").write_text("Be brief.")
    (folder / "docs/rules/team/style.md").write_text("Be long.")
    result = run("teams", "prompt", "docs")
    assert result.out.index("Be brief.") < result.out.index("Be long.")
    assert "the rule 'style' is in main/rules/org/style.md and in docs/rules/team/style.md" in result.err
    prompt = msgspec.json.decode(run("teams", "prompt", "docs", "--json").out)
    rule = next(each for each in prompt["sections"] if each["source"] == "main/rules/org/style.md")
    assert rule["hash"] == hashlib.sha256(b"Be brief.").hexdigest()
    assert rule["tokens"] > 0
    assert prompt["conflicts"] == [
        {"name": "style", "first": "main/rules/org/style.md", "second": "docs/rules/team/style.md"}
    ]
    assert "Be brief." not in run("teams", "prompt", "docs", "--sections").out


def test_the_command_imports_and_says_what_is_to_be_done(run: Run, folder: Path) -> None:
    result = run("teams", "import", str(LAYOUT))
    assert result.code == 0
    assert "imported main, ops-team" in result.out
    assert "api_key_env: ANTHROPIC_API_KEY" in result.out
    assert "credentials are not copied" in result.err
    assert run("teams", "check").code == 0
    assert run("teams", "import", str(LAYOUT)).code == 1
    assert sorted(path.name for path in folder.iterdir()) == ["main", "ops-team", "rules"]
