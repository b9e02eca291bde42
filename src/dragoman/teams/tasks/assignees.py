"""The teams that a caller may give tasks to. Schemas of operations that name teams list exactly these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from dragoman.errors import CallDenied
from dragoman.operations.arguments.validation import make_parser
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.teams.registry import TeamRegistry

MAX_NARROWED = 1_024  # cached operations with narrowed schemas


def member_names(teams: TeamRegistry, context: Context) -> Sequence[str]:
    """Return the teams that a caller may give tasks to: its team's members, or all if it has no team."""
    team = teams.team_of(context)
    return teams.names() if team is None else [each.name for each in teams.members(team.name)]


def require_member(teams: TeamRegistry, name: str, *, context: Context) -> None:
    """Raise CallDenied, with the right names, for a team that the caller may not give tasks to."""
    names = member_names(teams, context)
    if name not in names:
        raise CallDenied(
            f"You may not give tasks to the team {name!r}: {', '.join(names) or 'there is none'}"
        )


def with_members(
    operation: Operation, teams: TeamRegistry, *, field: str, has_own: bool = False
) -> Operation:
    """Return an operation whose `field` names teams: each caller is shown those that it may name.

    With `has_own` they include the caller's own team.
    """

    def narrow(wide: Operation, context: Context) -> Operation:
        names = list(member_names(teams, context))
        own = teams.team_of(context)
        if has_own and own is not None:
            names.append(own.name)
        return narrowed(wide, field, names=tuple(sorted(set(names)))) if names else wide

    return replace(operation, narrow=narrow)


@lru_cache(MAX_NARROWED)
def narrowed(operation: Operation, field: str, *, names: tuple[str, ...]) -> Operation:
    """Return an operation whose `field` takes these names only."""
    properties = dict(operation.input_schema["properties"])
    properties[field] = with_enum(properties[field], names)
    schema = {**operation.input_schema, "properties": properties}
    return replace(
        operation, input_schema=schema, parse=both(make_parser(schema), operation.parse), narrow=None
    )


def with_enum(schema: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the schema of a name, of a list of names, or of a name or null, with these names only."""
    if "items" in schema:
        return {**schema, "items": with_enum(schema["items"], names)}
    if "anyOf" in schema:
        kinds = [with_enum(each, names) if each.get("type") == "string" else each for each in schema["anyOf"]]
        return {**schema, "anyOf": kinds}
    return {**schema, "enum": list(names)}


def both(check: Callable[[Any], Any], parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that checks an input, and parses it."""

    def checked(input: Any) -> Any:
        check(input)
        return parse(input)

    return checked
