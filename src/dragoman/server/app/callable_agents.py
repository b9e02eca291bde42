"""Agents and sub-agents of teams as operations of the registry, in step with their configuration."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from dragoman.agent.spec import AgentSpec
from dragoman.errors import ConfigError
from dragoman.operations.operation import Operation
from dragoman.operations.registry import Registry
from dragoman.runs.agent_operations import AgentOperations
from dragoman.server.app.teams import describe_team, subagent_operations
from dragoman.teams.plugins.service import is_plugin
from dragoman.teams.registry import TeamRegistry

log = logging.getLogger(__name__)


class CallableAgents:
    """Keeps the registry's `agents.*` operations in step with the configuration."""

    def __init__(self, registry: Registry, delegation: AgentOperations) -> None:
        self._registry = registry
        self._delegation = delegation
        self._registered: list[str] = []  # lower-case ids

    def register(self, agents: Mapping[str, AgentSpec], teams: TeamRegistry) -> None:
        """Build and replace the operations. Raises ConfigError, and changes nothing, if an id is taken."""
        self.replace(self.build(agents, teams))

    def build(self, agents: Mapping[str, AgentSpec], teams: TeamRegistry) -> Sequence[Operation]:
        """Return the agents with a description, and the sub-agents of teams, as operations.

        Raises ConfigError if an id is taken. Ids of plugins are not: what people have written goes first.
        """
        found: dict[str, Operation] = {}
        others = (each.id.lower() for each in self._registry.list() if not is_plugin(each))
        taken = set(others) - set(self._registered)
        for name in agents:
            team = teams.find(name)
            if team is None:
                description, timeout = agents[name].description, agents[name].timeout
            else:  # without its instructions, which are built when it runs
                description, timeout = describe_team(team), team.budget.seconds
            if description is not None:
                operation = self._delegation.operation(name, description=description, timeout=timeout)
                add_new(operation, found, taken=taken, blame=f"agents.{name}")
        for operation in subagent_operations(teams, self._delegation):
            add_new(operation, found, taken=taken, blame=f"teams: {operation.namespace}")
        return list(found.values())

    def replace(self, operations: Sequence[Operation]) -> None:
        """Replace the registered agents, and plugins of the same ids, by these operations."""
        while self._registered:
            self._registry.remove(self._registered.pop())
        ids = {each.id.lower() for each in operations}
        for plugin in filter(is_plugin, self._registry.list()):
            if plugin.id.lower() in ids:
                log.warning("the plugin %s is left out: there is a sub-agent of this name", plugin.id)
                self._registry.remove(plugin.id)
        for operation in operations:
            self._registry.add(operation)
            self._registered.append(operation.id.lower())


def add_new(operation: Operation, found: dict[str, Operation], *, taken: Collection[str], blame: str) -> None:
    """Add an operation to those found. Raises ConfigError when its id is taken."""
    key = operation.id.lower()
    if key in taken or key in found:
        raise ConfigError(f"{blame}: there is an operation {operation.id!r} already")
    found[key] = operation
