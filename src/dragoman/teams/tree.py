"""The tree of teams: each with its ancestors and members, checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import asdict

from dragoman.errors import ConfigError
from dragoman.suggestions import suggest
from dragoman.teams.spec import TEAM_FILE, TeamFile, TeamSpec, check_team_name

MAX_TREE_DEPTH = 16


def build_specs(files: Mapping[str, TeamFile], *, folders: Mapping[str, Path]) -> dict[str, TeamSpec]:
    """Return the teams with their places in the tree. Raises ConfigError with every problem, one a line."""
    problems = [
        f"{folders[name] / TEAM_FILE}: {text}"
        for name in sorted(files)
        for text in find_problems(name, files)
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    return {name: make_spec(name, files, folder=folders[name]) for name in sorted(files)}


def make_spec(name: str, files: Mapping[str, TeamFile], *, folder: Path) -> TeamSpec:
    """Return a team with its place in a tree without problems."""
    file = files[name]
    children = [other for other, each in files.items() if each.parent == name]
    around = {*file.members, *children, *([file.parent] if file.parent else [])} - {name}
    fields = {**asdict(file), "members": tuple(sorted(around))}
    return TeamSpec(name=name, folder=folder, ancestors=tuple(ancestors_of(name, files)), **fields)


def ancestors_of(name: str, files: Mapping[str, TeamFile]) -> list[str]:
    """Return the teams above one, the root first; at most MAX_TREE_DEPTH."""
    found: list[str] = []
    parent = files[name].parent
    while parent is not None and parent in files and len(found) <= MAX_TREE_DEPTH:
        found.insert(0, parent)
        parent = files[parent].parent
    return found


def find_problems(name: str, files: Mapping[str, TeamFile]) -> Iterator[str]:
    """Yield what is wrong with a team's name, parent and members."""
    file = files[name]
    try:
        check_team_name(name)
    except ConfigError as error:
        yield error.message
    for field, other in (("parent", file.parent), *(("members", member) for member in file.members)):
        if other is not None and other not in files:
            yield f"{field}: there is no team {other!r}{suggest(other, files)}"
    above = ancestors_of(name, files)
    if name in above:
        yield f"parent: {' > '.join([*above[: above.index(name) + 1]])} goes round in a circle"
    elif len(above) > MAX_TREE_DEPTH:
        yield f"parent: more than {MAX_TREE_DEPTH} teams are above this one"
