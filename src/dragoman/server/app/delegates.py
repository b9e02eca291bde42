"""Delegates: the agents of a configuration that other agents can call, as operations in the registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dragoman.agent.profile import Profile
from dragoman.agent.subagent import NAMESPACE
from dragoman.errors import ConfigError
from dragoman.operations.operation import Operation
from dragoman.operations.registry import Registry
from dragoman.runs.delegation import Delegation


class Delegates:
    """Keeps the registry's `agents.*` as the configuration wants them."""

    def __init__(self, registry: Registry, delegation: Delegation) -> None:
        self._registry = registry
        self._delegation = delegation
        self._held: list[str] = []  # small-letter ids

    def made(self, agents: Mapping[str, Profile]) -> Sequence[Operation]:
        """Those that have a description, as operations. ConfigError where one cannot be put in."""
        found: dict[str, Operation] = {}
        taken = {each.id.lower() for each in self._registry.list(NAMESPACE)} - set(self._held)
        for agent in agents.values():
            if agent.description is not None:
                operation = self._delegation.operation(agent)
                key = operation.id.lower()
                if key in taken or key in found:
                    raise ConfigError(f"agents.{agent.name}: there is an operation {operation.id!r} already")
                found[key] = operation
        return list(found.values())

    def put(self, operations: Sequence[Operation]) -> None:
        """Take out those of before, and in these."""
        while self._held:
            self._registry.remove(self._held.pop())
        for operation in operations:
            self._registry.add(operation)
            self._held.append(operation.id.lower())
