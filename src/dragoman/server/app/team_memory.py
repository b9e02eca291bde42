"""Wires the memories and vaults of teams."""

from __future__ import annotations

from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.registry import Registry
from dragoman.operations.search.embedder import Embedder
from dragoman.server.app.teams import TeamServices
from dragoman.store.store import Store
from dragoman.teams.memory.briefing import MemoryBriefing
from dragoman.teams.memory.operations import MemoryOperations
from dragoman.teams.memory.semantic_search import MemorySearch
from dragoman.teams.vault.operations import VaultOperations
from dragoman.teams.vault.secrets import TeamSecrets


def add_team_memory(
    teams: TeamServices,
    store: Store,
    *,
    registry: Registry,
    calls: Calls,
    logged: set[str],
    embedder: Embedder | None,
) -> None:
    """Register the operations of memory and vault, and let calls use the vaults, if the hub has teams.

    `logged` collects the values that logs redact. `embedder` finds memories by meaning; None for words only.
    """
    if teams.registry.root is None:
        return
    secrets = TeamSecrets(store.vault, teams.registry, logged=logged)
    calls.secrets = secrets
    teams.write_guards.append(secrets.guard_file)
    teams.briefings.append(MemoryBriefing(store.memories))
    search = MemorySearch(store.memories, embedder)
    memory = MemoryOperations(store.memories, teams.registry, search=search)
    vault = VaultOperations(store.vault, teams.registry, loaded=secrets)
    for operation in (*memory.all(), *vault.all()):
        registry.add(operation)
