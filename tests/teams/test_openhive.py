"""A folder in OpenHive's layout is imported, and its teams run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from dragoman.config import parse_config
from dragoman.errors import BadRequest, ConfigError, Conflict
from dragoman.teams.openhive import import_layout, providers_section
from dragoman.teams.openhive_tool_names import NAMES, translate_pattern
from dragoman.teams.skill_files import parse_skill
from tests.serving import serving, text_of, write_script
from tests.teams.test_team_prompts import played

LAYOUT = Path(__file__).parent / "openhive"
SECRETS = ("not-a-key-but-must-not-travel", "not-a-token-but-must-not-travel")


def test_a_layout_becomes_teams_and_a_report_of_what_is_left_out(tmp_path: Path) -> None:
    report = import_layout(LAYOUT, tmp_path)
    assert report.teams == ["main", "ops-team"]
    assert yaml.safe_load((tmp_path / "main/team.yaml").read_text()) == {
        "description": "Talks to people and delegates",
        "accepts": ["questions", "requests"],
        "model": "anthropic/claude-sonnet-4-5",
        "allowed_tools": [
            *("teams.delegate", "teams.ask", "teams.status"),
            *("teams.list", "teams.history", "triggers.list", "main.*"),
        ],
        "max_steps": 30,
    }
    ops = yaml.safe_load((tmp_path / "ops-team/team.yaml").read_text())
    assert (ops["parent"], ops["model"], ops["concurrency"]) == ("main", "openai/gpt-5-mini", 2)
    assert ops["browser"] == {"allowed_domains": ["status.example.com"], "timeout": 15.0}
    assert ops["rates"] == {"status-page": "30/minute"}
    assert ops["allowed_tools"][:5] == ["files.read", "files.write", "files.grep", "shell.run", "web.fetch"]
    assert ops["allowed_tools"][-2:] == ["github.list_issues", "ops-team.deploy_service"]
    copied = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.md")}
    assert copied == {
        *("rules/system/identity.md", "rules/org/publishing.md", "main/rules/org/language.md"),
        *("main/rules/team/delegation.md", "main/subagents/summariser.md"),
        *("ops-team/rules/team/servers.md", "ops-team/skills/deploy.md"),
    }
    assert report.notes == [
        "the profile default has a key in providers.yaml: set ANTHROPIC_API_KEY instead",
        "ops-team: allowed_tools: nothing here is named 'frobnicate'; it is left out",
        "ops-team: credentials are not copied; put them into its vault: deploy_token",
        "ops-team: plugins in TypeScript are not run here: deploy_service.ts",
    ]


def test_no_key_or_credential_travels(tmp_path: Path) -> None:
    report = import_layout(LAYOUT, tmp_path)
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    spoken = written + msgspec.json.encode(report).decode() + providers_section(report.profiles)
    assert not any(secret in spoken for secret in SECRETS)


async def test_an_imported_team_runs_under_its_rules(tmp_path: Path) -> None:
    report = import_layout(LAYOUT, tmp_path / "teams")
    config = parse_config(yaml.safe_load(providers_section(report.profiles)))
    assert set(config.aliases) == {"default", "cheap"}
    steps: list[dict[str, Any]] = [
        {"tools": [{"name": "main_summariser", "input": {"prompt": "A long text."}}]},
        {"text": "Three sentences."},
        {"text": "Here it is."},
    ]
    script = write_script(tmp_path / "model", steps, play="once")
    providers = {"anthropic": {"type": "scripted", "script": str(script)}}
    async with serving(
        tmp_path, providers=providers, model="anthropic/any", teams=str(tmp_path / "teams")
    ) as served:
        frames = await served.chat("Summarise it", agent="main")
        outputs = [each["output"] for each in frames if each["type"] == "tool-output-available"]
        assert outputs[-1] == "Three sentences."
        assert text_of(frames) == "Here it is."
        requests = played(served.hub, "anthropic")
        assert [("in three sentences" in (each.instructions or "")) for each in requests] == [
            False,
            True,
            False,
        ]
        assert all("Never publish" in (each.instructions or "") for each in requests)
        assert all("You are part of an organisation" in (each.instructions or "") for each in requests)


def test_one_team_alone_and_a_folder_of_teams_are_imported_too(tmp_path: Path) -> None:
    alone = import_layout(LAYOUT / ".run/teams/ops-team", tmp_path / "one")
    assert alone.teams == ["ops-team"]
    assert "ops-team: its parent 'main' is not imported, so it has none" in alone.notes
    assert "ops-team: there is no profile 'cheap'; it has the hub's model" in alone.notes
    assert import_layout(LAYOUT / ".run/teams", tmp_path / "both").teams == ["main", "ops-team"]
    with pytest.raises(Conflict, match="already"):
        import_layout(LAYOUT, tmp_path / "one")
    assert not (tmp_path / "one/main").exists()


def test_what_cannot_be_read_is_told_without_its_text(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no team"):
        import_layout(tmp_path, tmp_path / "teams")
    shutil.copytree(LAYOUT, tmp_path / "broken")
    (tmp_path / "broken/data/providers.yaml").write_text("a: [secret-text\nb")
    with pytest.raises(ConfigError, match=r"providers.yaml:\d+: the file is not valid YAML$") as caught:
        import_layout(tmp_path / "broken", tmp_path / "teams")
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "teams").exists()


def test_a_hostile_folder_brings_nothing_from_elsewhere_and_writes_nothing_by_halves(tmp_path: Path) -> None:
    secret, layout = tmp_path / "secret", tmp_path / "layout"
    secret.mkdir()
    for name in ("own.md", "config.yaml"):
        (secret / name).write_text("description: of another folder")
    shutil.copytree(LAYOUT, layout)
    team = layout / ".run/teams/main"
    (team / "skills").symlink_to(secret)
    (team / "team-rules/link.md").symlink_to(secret / "own.md")
    (team / "team-rules/folder.md").mkdir()
    os.mkfifo(team / "team-rules/pipe.md")
    with (team / "team-rules/large.md").open("wb") as file:
        file.truncate(5_000_000)
    report = import_layout(layout, tmp_path / "teams")
    left_out = {note.split()[0].rpartition("/")[2] for note in report.notes if "left out" in note}
    assert left_out >= {"skills", "link.md", "folder.md", "pipe.md", "large.md"}
    assert "another folder" not in "".join(path.read_text() for path in (tmp_path / "teams").rglob("*.*"))

    (team.parent / "twin").mkdir()
    (team.parent / "twin/config.yaml").write_text("name: ' MAIN '")
    with pytest.raises(BadRequest, match="another team is named 'main' too"):
        import_layout(layout, tmp_path / "more")
    (team.parent / "twin/config.yaml").unlink()
    (team.parent / "twin/config.yaml").symlink_to(secret / "config.yaml")
    with pytest.raises(ConfigError, match="is a link"):
        import_layout(layout, tmp_path / "more")
    assert not (tmp_path / "more").exists()


def test_odd_numbers_and_aliases_without_end_are_told(tmp_path: Path) -> None:
    levels = "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(9))
    team = tmp_path / "odd"
    team.mkdir()
    config = team / "config.yaml"
    rates = "rate_limit_buckets: {a: {rps: .inf}, b: {rps: .nan}, c: {rps: 2}}"
    config.write_text(f"name: odd\nbrowser: {{timeout_ms: soon}}\n{rates}\n")
    report = import_layout(team, tmp_path / "teams")
    assert "odd: browser.timeout_ms is not a number of milliseconds" in report.notes
    assert yaml.safe_load((tmp_path / "teams/odd/team.yaml").read_text())["rates"] == {"c": "120/minute"}
    config.write_text(f"a0: &a0 [x]\n{levels}accepts: *a9\n")
    with pytest.raises(ConfigError, match="aliases make more than"):
        import_layout(team, tmp_path / "more")
    with pytest.raises(ConfigError, match="aliases make more than"):
        parse_skill(f"---\na0: &a0 [x]\n{levels}name: *a9\n---\nText.", name="tidy", source="SKILL.md")


@pytest.mark.parametrize(
    ("pattern", "ids"),
    [
        ("*", ["*"]),
        ("bash", ["shell.run"]),
        ("vault_*", ["vault.set", "vault.get", "vault.list", "vault.delete"]),
        ("query_team*", ["teams.ask"]),
        ("mcp__github__*", ["github.*"]),
        ("team.tool", ["team.tool"]),
        ("nothing", []),
    ],
)
def test_a_pattern_of_openhive_becomes_those_that_mean_the_same(pattern: str, ids: list[str]) -> None:
    assert list(translate_pattern(pattern)) == ids


def test_the_table_of_names_has_every_tool_that_openhive_documents() -> None:
    assert len([id for id in NAMES.values() if id.startswith("teams.")]) == 12
    assert len([id for id in NAMES.values() if id.startswith("triggers.")]) == 6
    assert len([id for id in NAMES.values() if id.startswith("browser.")]) == 8
    assert len([id for id in NAMES.values() if id.startswith("vault.")]) == 4
