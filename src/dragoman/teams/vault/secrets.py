"""The secrets that a team's calls use: read from its vault once a run, and sealed in the calls' results."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TypeAlias

from dragoman.errors import Forbidden
from dragoman.operations.context import Context
from dragoman.operations.secret_handles import CallSecrets, VaultSecret
from dragoman.store.teams.vault import VaultEntry, VaultRepository
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.tool_patterns import is_allowed
from dragoman.teams.vault.origins import is_permitted

MAX_CACHED = 1_000
VaultKey: TypeAlias = tuple[str, str]
"""Team and owner."""


class TeamSecrets:
    """Finds the secrets of a call, for `Calls.secrets`. `logged` collects what logs redact."""

    def __init__(self, vault: VaultRepository, teams: TeamRegistry, *, logged: set[str]) -> None:
        self._vault = vault
        self._teams = teams
        self._logged = logged
        self._version = 0
        """Increases with each change of a vault."""
        self._by_run: OrderedDict[tuple[VaultKey, str | None], CallSecrets] = OrderedDict()
        self._by_vault: OrderedDict[VaultKey, tuple[Sequence[VaultEntry], CallSecrets]] = OrderedDict()

    def __call__(self, context: Context) -> Awaitable[CallSecrets] | None:
        """Return the secrets of the caller's team; None for a caller without a team."""
        team = self._teams.nearest_team(context)
        return None if team is None else self.load(team.name, context.identity.owner, run_id=context.run_id)

    async def load(self, team: str, owner: str, *, run_id: str | None) -> CallSecrets:
        """Return the secrets of a team and owner. They are read again for each run.

        Raises ConfigError and StoreError: then nothing could be sealed, so no call may run.
        """
        key = (team, owner)
        cached = self._by_run.get((key, run_id)) if run_id is not None else None
        if cached is not None:
            return cached
        version = self._version
        secrets = await self._read(key)
        if version == self._version:  # otherwise a vault has changed since, maybe this one
            self._by_run[key, run_id] = secrets
            if len(self._by_run) > MAX_CACHED:
                self._by_run.popitem(last=False)
        return secrets

    async def guard_file(self, text: str, context: Context) -> None:
        """Raise Forbidden for a text with a secret of the caller's team, before it is written to a file."""
        loading = self(context)
        if loading is not None and (await loading).contains(text):
            raise Forbidden(
                "The text contains a secret of the vault, and secrets are not written to files.",
                hint="Pass its handle to the operation that needs the value.",
            )

    def forget(self) -> None:
        """Read all vaults again, because one has changed."""
        self._version += 1
        self._by_run.clear()

    async def _read(self, key: VaultKey) -> CallSecrets:
        """Read a vault, and decrypt it if it has changed."""
        entries = await self._vault.list(*key)
        before = self._by_vault.get(key)
        if before is not None and list(before[0]) == list(entries):
            return before[1]
        values = await self._vault.read(*key) if entries else []
        secrets = CallSecrets(visible_secrets(values))
        self._logged.update(secrets.forms())
        self._by_vault[key] = (entries, secrets)
        if len(self._by_vault) > MAX_CACHED:
            self._by_vault.popitem(last=False)
        return secrets


def visible_secrets(values: Sequence[tuple[VaultEntry, str]]) -> Sequence[VaultSecret]:
    """Return the entries as secrets; of two with one name the operator's."""
    found: dict[str, VaultSecret] = {}
    for entry, value in sorted(values, key=lambda pair: pair[0].is_managed):
        found[entry.name] = VaultSecret(
            entry.name,
            value,
            partial(is_allowed, entry.receivers),
            ", ".join(entry.receivers) or "none",
            entry.origins,
            partial(is_permitted, entry.origins),
        )
    return list(found.values())
