"""TeamSpec: a team as its folder describes it. `team.yaml` is a TeamFile."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dragoman.errors import ConfigError
from dragoman.operations.registry import HUB_NAMESPACES

TEAM_FILE = "team.yaml"
GENERATED = "generated"
DEFAULT_MAX_STEPS = 50
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
RESERVED_NAMES = HUB_NAMESPACES | {"default", "rules", GENERATED, "skills", "plugins"}
"""Names that no team may have: the hub's namespaces and agent, and folders beside the teams."""

PositiveCount = Annotated[int, Meta(ge=1)]
PositiveSeconds = Annotated[float, Meta(gt=0)]
Dollars = Annotated[float, Meta(ge=0)]
Text = Annotated[str, Meta(min_length=1)]


class TeamSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A section of `team.yaml`. An unknown field is an error."""


class TeamBudget(TeamSection, frozen=True):
    """What one task of the team may take, with all below it: US dollars, calls, seconds. None: no limit."""

    usd: Dollars | None = None
    calls: PositiveCount | None = None
    seconds: PositiveSeconds | None = None


class TeamBrowser(TeamSection, frozen=True):
    """What the team's browser may open: domains, with `*.` for all below one. Empty: nothing."""

    allowed_domains: tuple[Text, ...] = ()
    timeout: PositiveSeconds = 30.0


class TeamMemory(TeamSection, frozen=True):
    """How much of the team's memory a run is shown, in tokens, and whether search goes by meaning too."""

    tokens: PositiveCount = 2_000
    semantic: bool = False


class TeamShell(TeamSection, frozen=True):
    """The sandbox of `shell.run`: network, seconds and bytes of memory of one command.

    With `git`, commands may write `.git` in the workspace, whose hooks run as whoever uses git there.
    """

    network: bool = False
    git: bool = False
    timeout: PositiveSeconds = 120.0
    memory: PositiveCount = 1_000_000_000


class TeamFile(TeamSection, frozen=True):
    """What `team.yaml` says.

    `allowed_tools` are patterns of operation ids; the team sees no operation that none of them matches.
    `needs_skill` are patterns of those of them that are callable only in a run that has loaded a skill that
    requires them. `members` are the teams that it may delegate to beside its parent and children. `folders`
    are further folders, by name, for its file operations. `triggers` give it tasks, by name. `topics`
    are conversations of its own, each with the words of a task that belongs to it. With `wake`, the
    result of a task makes the team continue.
    """

    parent: Text | None = None
    description: str = ""
    accepts: tuple[Text, ...] = ()
    model: Text | None = None
    allowed_tools: tuple[Text, ...] = ()
    needs_skill: tuple[Text, ...] = ()
    max_steps: PositiveCount = DEFAULT_MAX_STEPS
    concurrency: PositiveCount = 5
    budget: TeamBudget = TeamBudget()
    members: tuple[Text, ...] = ()
    browser: TeamBrowser = TeamBrowser()
    memory: TeamMemory = TeamMemory()
    shell: TeamShell = TeamShell()
    folders: dict[str, Text] = {}
    rates: dict[str, Text] = {}
    triggers: dict[str, dict[str, Any]] = {}
    topics: dict[str, Annotated[tuple[Text, ...], Meta(min_length=1)]] = {}
    wake: bool = False
    when_busy: Literal["refuse", "queue", "steer", "interrupt"] = "queue"


class TeamSpec(TeamFile, frozen=True, kw_only=True):
    """A team: what its file says, where its folder is, and where it stands among the others.

    `ancestors` are the names above it, the root first. `members` are whom it may delegate to: its parent,
    its children, and those that its file names.
    """

    name: str
    folder: Path
    ancestors: tuple[str, ...] = ()

    @property
    def workspace(self) -> Path:
        """The folder that the team's operations work in. It exists once a run of the team has begun."""
        return self.folder / "workspace"


def check_team_name(name: str) -> None:
    """Raise ConfigError for a name that a team cannot have."""
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigError(f"{name!r} is not a valid name of a team: use 1 to 63 of a-z, 0-9, - and _")
    if name in RESERVED_NAMES:
        raise ConfigError(f"a team cannot be named {name!r}: the hub uses that name itself")
