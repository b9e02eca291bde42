"""`dragoman teams`: make, check, show and remove the folders of teams. No hub has to run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.terminal import examples, print_json, print_line, print_note, print_table
from dragoman.errors import Conflict

if TYPE_CHECKING:
    from dragoman.teams.prompt import RuleConflict
    from dragoman.teams.registry import TeamRegistry

TeamsFolder: TypeAlias = Annotated[
    Path | None, typer.Option("--teams", metavar="FOLDER", help="The folder of the teams.")
]
TeamName: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="The team.")]

teams = typer.Typer(no_args_is_help=True, help="Teams: folders of agents with rules, members and limits.")


@teams.callback()
def group() -> None:
    """Teams: folders of agents with rules, members and limits."""


@teams.command(
    "init",
    epilog=examples(
        ("dragoman teams init main", "make ./teams/main, and ./teams if it is not there"),
        ("dragoman teams init docs --parent main", "a team below it"),
    ),
)
def init(
    name: TeamName,
    *,
    parent: Annotated[str | None, typer.Option(metavar="NAME", help="The team above it.")] = None,
    description: Annotated[str, typer.Option(help="What it does, for people and other teams.")] = "",
    teams: TeamsFolder = None,
    config: ConfigFile = None,
) -> None:
    """Make the folder of a team: team.yaml, rules, sub-agents and a workspace."""
    from dragoman.cli.teams.scaffold import make_team  # late: YAML and schemas take 0.2 s

    folder = make_team(find_folder(teams, config), name, parent=parent, description=description)
    print_line(f"made {folder}")
    print_note("Say in team.yaml what it may call; `dragoman teams check` tells what is wrong.")


@teams.command("list", epilog=examples(("dragoman teams list", "the teams, as a tree")))
def list_teams(*, teams: TeamsFolder = None, config: ConfigFile = None, json: AsJson = False) -> None:
    """List the teams, each below its parent."""
    from dragoman.server.teams.teams import team_view  # late: as above

    registry = load_teams(teams, config)
    if json:
        print_json({"teams": [to_json(team_view(registry, registry.get(name))) for name in registry.names()]})
        return
    names = sorted(registry.names(), key=lambda name: (*registry.get(name).ancestors, name))
    rows = [
        (
            "  " * len(registry.get(name).ancestors) + name,
            registry.get(name).model or "-",
            str(len(registry.get(name).allowed_tools)),
            registry.get(name).description,
        )
        for name in names
    ]
    print_table(("TEAM", "MODEL", "PATTERNS", "DESCRIPTION"), rows)


@teams.command("show", epilog=examples(("dragoman teams show release", "what it may do, and its rules")))
def show(
    name: TeamName, *, teams: TeamsFolder = None, config: ConfigFile = None, json: AsJson = False
) -> None:
    """Show a team: what it may call, whom it may delegate to, its rules and sub-agents."""
    from dragoman.server.teams.teams import team_detail  # late: as above

    registry = load_teams(teams, config)
    team = registry.get(name)
    detail = to_json(team_detail(registry, team))
    if json:
        print_json({**detail, "folder": str(team.folder)})
        return
    for title, value in (
        ("folder", str(team.folder)),
        ("parent", team.parent or "-"),
        ("description", team.description or "-"),
        ("may call", ", ".join(team.allowed_tools) or "nothing"),
        ("may delegate to", ", ".join(team.members) or "nobody"),
        ("sub-agents", ", ".join(detail["subagents"]) or "none"),
        ("skills", ", ".join(registry.skills(name)) or "none"),
        ("steps", str(team.max_steps)),
        ("tasks at a time", str(team.concurrency)),
    ):
        print_line(f"{title:16}{value}")
    print_sections(registry, name)
    for problem in find_skill_problems(registry, name):
        print_note(f"WARNING: {problem}")


@teams.command(
    "prompt",
    epilog=examples(
        ("dragoman teams prompt release", "the whole text, as its model gets it"),
        ("dragoman teams prompt release --sections", "only which files, with hashes and tokens"),
    ),
)
def prompt(
    name: TeamName,
    *,
    sections: Annotated[bool, typer.Option("--sections", help="Without the text.")] = False,
    teams: TeamsFolder = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Print the instructions of a team: each section with its file, hash and estimated tokens."""
    from dragoman.server.teams.teams import team_detail  # late: as above
    from dragoman.teams.prompt import build_prompt  # late: as above

    registry = load_teams(teams, config)
    team = registry.get(name)
    text = build_prompt(registry, team).text
    if json:
        detail = to_json(team_detail(registry, team))
        shown = {key: detail[key] for key in ("sections", "conflicts")}
        print_json(shown if sections else {**shown, "text": text})
        return
    if not sections:
        print_line(text)
        print_line("")
    print_sections(registry, name)


@teams.command(
    "check", epilog=examples(("dragoman teams check", "every problem of every team, with file and line"))
)
def check(*, teams: TeamsFolder = None, config: ConfigFile = None, json: AsJson = False) -> None:
    """Check the folder of teams: every error with file and line, and rules that stand at two levels.

    The first error ends it with exit code 1. Conflicts between rules are warnings, and so are skills that
    cannot be used: their team works without them.
    """
    registry = load_teams(teams, config)
    found = {name: conflicts_of(registry, name) for name in registry.names()}
    problems = list(
        dict.fromkeys(each for name in registry.names() for each in find_skill_problems(registry, name))
    )
    if json:
        print_json(
            {
                "teams": list(registry.names()),
                "skills": {name: list(registry.skills(name)) for name in registry.names()},
                "conflicts": [{"team": name, **to_json(each)} for name, all in found.items() for each in all],
                "problems": problems,
            }
        )
        return
    count = len({skill.path for name in registry.names() for skill in registry.skills(name).values()})
    skills = f", with {count} skill{'s' if count > 1 else ''}" if count else ""
    found_teams = "1 team is" if len(registry.names()) == 1 else f"{len(registry.names())} teams are"
    print_line(f"{registry.root}: {found_teams} valid{skills}")
    for problem in problems:
        print_note(f"WARNING: {problem}")
    for name, conflicts in found.items():
        for each in conflicts:
            print_note(f"WARNING: {name}: the rule {each.name!r} is in {each.first} and in {each.second}")


@teams.command(
    "import",
    epilog=examples(("dragoman teams import ~/openhive", "teams, rules, skills and sub-agents of OpenHive")),
)
def import_teams(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder in OpenHive's layout.")],
    *,
    teams: TeamsFolder = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Import teams from OpenHive's layout: config.yaml, org-rules/, team-rules/, skills/ and subagents/.

    Prints what dragoman.yaml needs for the profiles of providers.yaml, and what is left out. Keys and
    credentials are not copied.
    """
    from dragoman.teams.openhive import import_layout, providers_section  # late: as above

    report = import_layout(source, find_folder(teams, config))
    if json:
        print_json(to_json(report))
        return
    print_line(f"imported {', '.join(report.teams)}")
    if section := providers_section(report.profiles):
        print_line(f"\n# for dragoman.yaml\n{section}")
    for note in report.notes:
        print_note(note)


@teams.command(
    "remove",
    epilog=examples(("dragoman teams remove docs --yes", "delete its folder, with its workspace and rules")),
)
def remove(
    name: TeamName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    teams: TeamsFolder = None,
    config: ConfigFile = None,
) -> None:
    """Delete the folder of a team. Refused while teams are below it."""
    registry = load_teams(teams, config)
    team = registry.get(name)
    if children := [each.name for each in registry.children(name)]:
        raise Conflict(f"teams are below {name!r}: {', '.join(children)}", hint="remove them first")
    if not yes:
        typer.confirm(f"Delete {team.folder} with its workspace?", abort=True)
    shutil.rmtree(team.folder)
    print_line(f"removed {team.folder}")


def find_folder(teams: Path | None, config: Path | None) -> Path:
    """Return the folder of the teams: as named, as configured, or ./teams."""
    from dragoman.cli.config_discovery import read_config_if_any  # late: as above
    from dragoman.server.app.teams import DEFAULT_FOLDER, teams_folder  # late: as above

    return teams or teams_folder(read_config_if_any(config)) or DEFAULT_FOLDER


def load_teams(teams: Path | None, config: Path | None) -> TeamRegistry:
    """Return the teams of a folder. NotFound without one, ConfigError with every problem."""
    from dragoman.cli.teams.scaffold import read_teams  # late: as above

    return read_teams(find_folder(teams, config))


def to_json(value: object) -> dict[str, Any]:
    """Return a struct as JSON values."""
    from msgspec import to_builtins  # late: as above

    fields: dict[str, Any] = to_builtins(value)
    return fields


def conflicts_of(registry: TeamRegistry, name: str) -> Sequence[RuleConflict]:
    """Return the rules of a team that are defined at two levels."""
    from dragoman.teams.prompt import find_conflicts  # late: as above

    return find_conflicts(registry, registry.get(name))


def find_skill_problems(registry: TeamRegistry, name: str) -> Sequence[str]:
    """Return warnings about the skills of a team, a sentence for each."""
    from dragoman.teams.skills.diagnostics import skill_warnings  # late: as above

    return skill_warnings(registry, registry.get(name))


def print_sections(registry: TeamRegistry, name: str) -> None:
    """Print the sections of a team's instructions, and its conflicts."""
    from dragoman.teams.prompt import build_prompt  # late: as above

    sections = build_prompt(registry, registry.get(name)).sections
    rows: list[tuple[str, ...]] = [
        (each.kind, each.source, each.hash[:12], str(each.tokens)) for each in sections
    ]
    rows.append(("all", "", "", str(sum(each.tokens for each in sections))))
    print_table(("SECTION", "SOURCE", "HASH", "TOKENS"), rows)
    for each in conflicts_of(registry, name):
        print_note(f"WARNING: the rule {each.name!r} is in {each.first} and in {each.second}")
