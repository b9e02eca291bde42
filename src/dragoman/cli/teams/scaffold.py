"""Creates the folders of teams, and reads them without a hub."""

from __future__ import annotations

import os
from pathlib import Path

from dragoman.errors import Conflict, NotFound
from dragoman.server.app.teams import read_team_file
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.spec import TEAM_FILE, check_team_name

TEMPLATE = """\
# What the team is and may do; docs/teams.md lists every field.
{parent}description: {description}
# Patterns of operations. What none of them matches is not there for the team.
allowed_tools:
  - time.now
max_steps: 50
"""
RULE = "Rules of this team, for its model. They are advice: what it may call is in team.yaml.\n"
FOLDERS = ("rules/org", "rules/team", "subagents", "skills", "workspace")


def read_teams(root: Path) -> TeamRegistry:
    """Return the teams of a folder. NotFound without one, ConfigError with every problem."""
    if not root.is_dir():
        raise NotFound(f"there is no folder {root}", hint="`dragoman teams init NAME` makes it")
    registry = TeamRegistry(root, lambda path: read_team_file(path, os.environ))
    registry.load()
    return registry


def make_team(root: Path, name: str, *, parent: str | None, description: str) -> Path:
    """Create the folder of a team and return it.

    Raises ConfigError for a bad name or teams with errors, Conflict if the folder exists, and NotFound for
    an unknown parent; no folder is created then.
    """
    check_team_name(name)
    folder = root / name
    if folder.exists():
        raise Conflict(f"{folder} already exists")
    if parent is not None:
        read_teams(root).get(parent)
    for each in FOLDERS:
        (folder / each).mkdir(parents=True)
    line = f"parent: {parent}\n" if parent else ""
    text = TEMPLATE.format(parent=line, description=quote_yaml(description or f"The team {name}"))
    (folder / "rules/team/team.md").write_text(RULE, encoding="utf-8")
    (folder / TEAM_FILE).write_text(text, encoding="utf-8")
    return folder


def quote_yaml(text: str) -> str:
    """Return a text as YAML in double quotes."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{quoted}"'
