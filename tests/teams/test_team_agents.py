"""Teams as agents of a hub: what they are told, what they may call, and when their files are read again."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import parse_config, read_section
from dragoman.errors import CallError, ConfigError, NotFound
from dragoman.operations.context import Context
from dragoman.server.app import Hub
from dragoman.teams.prompt import RuleConflict, build_prompt, find_conflicts
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.spec import TeamFile


def write_team(root: Path, name: str, text: str = "", **files: str) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "team.yaml").write_text(text)
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def config_of(root: Path, **fields: Any) -> Any:
    provider = {"type": "openai", "base_url": "http://127.0.0.1:9/v1"}
    return parse_config({"providers": {"s": provider}, "model": "s/m", "teams": str(root), **fields})


async def test_a_team_is_an_agent_of_its_name_with_its_rules_root_first(tmp_path: Path) -> None:
    root = tmp_path / "teams"
    write(root / "rules/org/all.md", "For everybody.")
    write_team(root, "main", "description: The root")
    write(root / "main/rules/org/a.md", "From main to all below.")
    write(root / "main/rules/team/b.md", "For main alone.")
    write_team(root, "docs", "parent: main\nmax_steps: 7")
    write(root / "docs/rules/team/c.md", "For docs.")
    async with Hub.open(config_of(root), tmp_path / "data", require_keys=False) as hub:
        agent = hub.runs.agents.resolve(agent="docs").agent
        text = agent.instructions or ""
        order = ["For everybody.", "From main to all below.", "For docs.", "workspace"]
        assert [text.index(each) for each in order] == sorted(text.index(each) for each in order)
        assert "For main alone." not in text
        assert (agent.max_steps, agent.model) == (7, "s/m")


async def test_a_changed_rule_is_read_before_the_next_run_and_a_broken_file_changes_nothing(
    tmp_path: Path,
) -> None:
    root = tmp_path / "teams"
    write_team(root, "main")
    write(root / "main/rules/team/b.md", "One.")
    async with Hub.open(config_of(root), tmp_path / "data", require_keys=False) as hub:
        assert "One." in (hub.runs.agents.resolve(agent="main").agent.instructions or "")
        write(root / "main/rules/team/b.md", "Two, longer.")
        assert "Two, longer." in (hub.runs.agents.resolve(agent="main").agent.instructions or "")
        write(root / "main/team.yaml", "max_stepz: 3")
        assert "Two, longer." in (hub.runs.agents.resolve(agent="main").agent.instructions or "")
        assert "max_steps" in hub._services.teams.registry.problems[0]
        write_team(root, "late", "parent: main")
        write(root / "main/team.yaml", "max_steps: 3")
        assert hub.runs.agents.resolve(agent="late").agent.name == "late"


async def test_a_team_sees_and_calls_only_what_it_may_and_its_subagents_too(tmp_path: Path) -> None:
    root = tmp_path / "teams"
    write_team(root, "main", "allowed_tools: [time.now, main.*]")
    write(root / "main/subagents/clock.md", "---\ndescription: Tells the time\n---\nYou tell the time.")
    async with Hub.open(config_of(root), tmp_path / "data", require_keys=False) as hub:
        meta = hub._services.meta
        shown = {each.id for each in meta.visible_operations(Context(agent="main"))}
        assert shown == {"time.now", "main.clock"}
        assert {each.id for each in meta.visible_operations(Context(agent="main/clock"))} == shown
        outcome = await hub._services.calls.call(
            "math.calculate", {"expression": "1+1"}, context=Context(agent="main")
        )
        with pytest.raises(CallError, match="not in allowed_tools"):
            outcome.unwrap()


async def test_the_sections_of_a_prompt_have_hashes_and_rules_of_one_name_are_told(tmp_path: Path) -> None:
    root = tmp_path / "teams"
    write(root / "rules/org/style.md", "Be brief.")
    write_team(root, "main")
    write(root / "main/rules/team/style.md", "Be long.")
    async with Hub.open(config_of(root), tmp_path / "data", require_keys=False) as hub:
        teams = hub._services.teams.registry
        prompt = build_prompt(teams, teams.get("main"))
        assert prompt.hashes["rules/org/style.md"] == hashlib.sha256(b"Be brief.").hexdigest()
        assert [section.kind for section in prompt.sections] == [
            "system",
            "org",
            "own-team",
            "workspace",
            "tools",
        ]
        clash = RuleConflict("style", "rules/org/style.md", "main/rules/team/style.md")
        assert find_conflicts(teams, teams.get("main")) == [clash]


async def test_a_team_name_that_is_wrong_lists_the_right_ones(tmp_path: Path) -> None:
    root = tmp_path / "teams"
    write_team(root, "main")
    write_team(root, "docs", "parent: main")
    async with Hub.open(config_of(root), tmp_path / "data", require_keys=False) as hub:
        teams = hub._services.teams.registry
        with pytest.raises(NotFound, match="docs, main; did you mean 'docs'"):
            teams.get("doc")
        assert [each.name for each in teams.members("docs")] == ["main"]
        assert [each.name for each in teams.children("main")] == ["docs"]
        assert [each.name for each in teams.ancestors("docs")] == ["main"]
        assert teams.calling_team(Context(agent="docs/x")).name == "docs"
        assert teams.calling_team(Context(agent="other"), "main").name == "main"
        with pytest.raises(CallError, match="no team calls it"):
            teams.calling_team(Context(agent="other"))
        with pytest.raises(CallError, match="cannot act for"):
            teams.calling_team(Context(agent="docs"), "main")


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"a": "parent: b"}, "there is no team 'b'"),
        ({"a": "parent: b", "b": "parent: a"}, "circle"),
        ({"a": "allowed_tools: ['!']"}, "not a valid pattern"),
        ({"a": "steps: 3"}, "there is no such field"),
        ({"files": ""}, "the hub uses that name"),
        ({"Big": ""}, "not a valid name"),
    ],
)
async def test_a_hub_does_not_start_with_a_wrong_team(
    tmp_path: Path, files: dict[str, str], problem: str
) -> None:
    for name, text in files.items():
        write_team(tmp_path / "teams", name, text)
    with pytest.raises(ConfigError, match=problem):
        async with Hub.open(config_of(tmp_path / "teams"), tmp_path / "data", require_keys=False):
            pass


async def test_only_a_changed_team_is_read_again_and_a_wrong_file_stays_told_while_others_change(
    tmp_path: Path,
) -> None:
    root, files_read = tmp_path / "teams", list[str]()

    def read(path: Path) -> TeamFile:
        files_read.append(path.parent.name)
        return read_section(path, TeamFile, environ={})

    for name in ("a", "b", "c"):
        write_team(root, name)
    teams = TeamRegistry(root, read)
    teams.load()
    assert teams.reload()
    assert files_read == ["a", "b", "c"]
    write(root / "b/rules/team/x.md", "New.")
    assert teams.reload()
    assert files_read[3:] == ["b"]
    write(root / "c/team.yaml", "nonsense: 1")
    assert not teams.reload("c")
    write(root / "a/team.yaml", "description: changed")
    assert not teams.reload("a")
    assert "nonsense" in teams.problems[0]
    assert teams.get("a").description == ""
    write(root / "c/team.yaml", "")
    assert teams.reload()
    assert teams.get("a").description == "changed"
