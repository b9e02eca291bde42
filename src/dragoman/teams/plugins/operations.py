"""`plugins.propose`, `plugins.activate`, `plugins.deprecate` and `plugins.list`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from pydantic import Field

from dragoman.operations.context import Context
from dragoman.operations.definitions.decorator import from_function
from dragoman.operations.operation import Operation
from dragoman.teams.plugins.service import VERIFY_SECONDS, Plugins
from dragoman.teams.plugins.static_check import MAX_SOURCE
from dragoman.teams.plugins.store import PluginRecord, PluginState
from dragoman.teams.registry import TeamRegistry

PluginName = Annotated[str, Field(min_length=1, max_length=63, examples=["word_count"])]


class PluginSummary(TypedDict):
    """A plugin: the id by which it is called, its state, and what an approval names."""

    id: str
    name: str
    state: PluginState
    hash: str
    schema: dict[str, Any]
    description: str
    reason: str | None


def plugin_operations(plugins: Plugins, teams: TeamRegistry) -> list[Operation]:
    """Return the operations over plugins of the calling team."""
    return [*authoring_operations(plugins, teams), *listing_operations(plugins, teams)]


def authoring_operations(plugins: Plugins, teams: TeamRegistry) -> list[Operation]:
    """Return `plugins.propose` and `plugins.activate`."""

    async def propose(
        name: PluginName, source: Annotated[str, Field(max_length=MAX_SOURCE)], *, context: Context
    ) -> PluginSummary:
        """Propose an operation written in Python. It is checked, and its tests run in a sandbox.

        The source defines DESCRIPTION, INPUT (a JSON Schema), TESTS ([{"input": ..., "output": ...}]) and
        `def run(input)`. Call plugins.activate with the hash and the schema that are returned.

        Args:
            name: The name, in snake_case; it is called as TEAM.NAME.
            source: The whole source.
        """
        team = teams.calling_team(context).name
        return summary(await plugins.propose(team, name, text=source, by=context.identity))

    async def activate(
        name: PluginName, hash: str, *, schema: dict[str, Any], context: Context
    ) -> PluginSummary:
        """Make a proposed plugin callable. A person approves its name, hash and schema.

        Args:
            name: The name that it was proposed under.
            hash: The hash of its source, as plugins.propose returned it.
            schema: The JSON Schema of its input, as plugins.propose returned it.
        """
        team = teams.calling_team(context).name
        return summary(await plugins.activate(team, name, hash=hash, schema=schema, by=context.identity))

    return [
        from_function(propose, "plugins", timeout=VERIFY_SECONDS + 60),
        from_function(activate, "plugins", timeout=60, approval=True),
    ]


def listing_operations(plugins: Plugins, teams: TeamRegistry) -> list[Operation]:
    """Return `plugins.list` and `plugins.deprecate`."""

    def show(*, context: Context) -> list[PluginSummary]:
        """List the plugins of the team with their states."""
        team = teams.calling_team(context).name
        return [summary(each) for each in plugins.store.list(team, owner=context.identity.owner)]

    async def deprecate(
        name: PluginName, reason: Annotated[str, Field(max_length=500)], *, context: Context
    ) -> PluginSummary:
        """Make a plugin no longer callable.

        Args:
            name: The plugin.
            reason: Why.
        """
        team = teams.calling_team(context).name
        return summary(await plugins.deprecate(team, name, reason=reason, by=context.identity))

    return [
        from_function(show, "plugins", name="list", effect="read", timeout=30),
        from_function(deprecate, "plugins", effect="idempotent", timeout=60),
    ]


def summary(record: PluginRecord) -> PluginSummary:
    """Return what a caller is told of a plugin."""
    schema: Mapping[str, Any] = record.schema
    return PluginSummary(
        id=record.id,
        name=record.name,
        state=record.state,
        hash=record.hash,
        schema=dict(schema),
        description=record.description,
        reason=record.reason,
    )
