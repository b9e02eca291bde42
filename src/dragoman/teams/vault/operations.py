"""`vault.set`, `vault.get`, `vault.list` and `vault.delete`: secrets that a team uses by their handles."""

from __future__ import annotations

import secrets as random_secrets
from collections.abc import Iterable, Sequence
from typing import Annotated, TypedDict

from pydantic import Field

from dragoman.errors import BadRequest, CallDenied, ConfigError, NotFound
from dragoman.operations.context import Context
from dragoman.operations.definitions.decorator import from_function
from dragoman.operations.operation import Operation
from dragoman.operations.secret_handles import NAME_PATTERN
from dragoman.store.teams.vault import VaultEntry, VaultRepository
from dragoman.suggestions import suggest
from dragoman.teams.memory.operations import TeamArgument
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.tool_patterns import parse_patterns
from dragoman.teams.vault.origins import MAX_ORIGIN_LENGTH, MAX_ORIGINS, check_origins
from dragoman.teams.vault.secrets import TeamSecrets

MIN_VALUE_LENGTH = 8  # characters: a shorter value would be found in any text
MAX_VALUE_LENGTH = 8_000
MAX_RECEIVERS = 20
HOW_TO_USE = "Write the handle into the input of an operation that may receive it; it gets the value."

SecretName = Annotated[str, Field(pattern=f"^{NAME_PATTERN.pattern}$")]
SecretValue = Annotated[str, Field(min_length=MIN_VALUE_LENGTH, max_length=MAX_VALUE_LENGTH)]
Receivers = Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=MAX_RECEIVERS)]
Origins = Annotated[list[Annotated[str, Field(max_length=MAX_ORIGIN_LENGTH)]], Field(max_length=MAX_ORIGINS)]


class SecretHandle(TypedDict):
    """A secret by its handle, the operations that may receive its value, and where they may send it."""

    handle: str
    operations: list[str]
    origins: list[str]
    managed: bool


class SecretReading(TypedDict):
    """A secret by its handle and, where its entry allows that, in plain text."""

    handle: str
    operations: list[str]
    origins: list[str]
    usage: str
    value: str | None


class VaultOperations:
    """The operations of a team's vault. `loaded` are the secrets that calls use."""

    def __init__(self, vault: VaultRepository, teams: TeamRegistry, *, loaded: TeamSecrets) -> None:
        self._vault = vault
        self._teams = teams
        self._loaded = loaded

    def all(self) -> Sequence[Operation]:
        """Return the operations."""
        return [
            from_function(self.set, "vault", effect="idempotent", timeout=30),
            from_function(self.get, "vault", effect="read", timeout=30),
            from_function(self.list, "vault", effect="read", timeout=30),
            from_function(self.delete, "vault", effect="idempotent", timeout=30),
        ]

    async def set(
        self,
        name: SecretName,
        value: SecretValue | None = None,
        *,
        operations: Receivers,
        origins: Origins | None = None,
        team: TeamArgument | None = None,
        context: Context,
    ) -> SecretHandle:
        """Store a secret of the team. Without a value, a random one is made that nobody sees.

        Args:
            name: Its name.
            value: The secret itself. It is not recorded.
            operations: Ids or patterns of the operations that may receive it, like mail.send or mcp_git.*.
            origins: Where these may send it if their input has an address, like https://api.example.com.
            team: For people only; a team has its own.
        """
        spec = self._teams.calling_team(context, team)
        entry = VaultEntry(
            team=spec.name,
            owner=context.identity.owner,
            name=name,
            receivers=check_receivers(operations),
            origins=check_origins(origins or ()),
        )
        stored = await self._vault.put(entry, check_value(value or random_secrets.token_urlsafe(32)))
        self._loaded.forget()
        return secret_handle(stored)

    async def get(
        self,
        name: SecretName,
        *,
        plain: bool = False,
        team: TeamArgument | None = None,
        context: Context,
    ) -> SecretReading:
        """Get the handle of a secret, for use in the inputs of operations.

        Args:
            name: Its name.
            plain: Return the value itself, where the operator allows that.
            team: For people only; a team has its own.
        """
        spec = self._teams.calling_team(context, team)
        entry = await self._find(spec.name, name, context=context)
        value = await self._read_plain(entry, context) if plain else None
        return SecretReading(
            handle=entry.handle,
            operations=[*entry.receivers],
            origins=[*entry.origins],
            usage=HOW_TO_USE,
            value=value,
        )

    async def list(self, *, team: TeamArgument | None = None, context: Context) -> list[SecretHandle]:
        """List the handles of the team's secrets; `managed` ones are the operator's and cannot be changed.

        Args:
            team: For people only; a team has its own.
        """
        spec = self._teams.calling_team(context, team)
        return [secret_handle(entry) for entry in await self._vault.list(spec.name, context.identity.owner)]

    async def delete(self, name: SecretName, *, team: TeamArgument | None = None, context: Context) -> str:
        """Delete a secret of the team.

        Args:
            name: Its name.
            team: For people only; a team has its own.
        """
        spec = self._teams.calling_team(context, team)
        await self._vault.delete(spec.name, context.identity.owner, name=name)
        self._loaded.forget()
        return f"{name} is deleted"

    async def _find(self, team: str, name: str, *, context: Context) -> VaultEntry:
        entries = {entry.name: entry for entry in await self._vault.list(team, context.identity.owner)}
        if name not in entries:
            raise NotFound(f"The vault of {team!r} has no secret {name!r}.{suggest(name, entries)}")
        return entries[name]

    async def _read_plain(self, entry: VaultEntry, context: Context) -> str:
        """Return the value. Raises CallDenied unless the entry allows that, and the caller is the team."""
        team = self._teams.team_of(context)
        if not entry.plain or team is None or team.name != entry.team:
            raise CallDenied(f"The secret {entry.name!r} cannot be returned in plain text.", hint=HOW_TO_USE)
        values = await self._vault.read(entry.team, context.identity.owner)
        return next(value for found, value in values if found == entry)


def secret_handle(entry: VaultEntry) -> SecretHandle:
    """Return an entry as callers see it."""
    return SecretHandle(
        handle=entry.handle,
        operations=[*entry.receivers],
        origins=[*entry.origins],
        managed=entry.is_managed,
    )


def check_name(name: str) -> str:
    """Return a name that a handle can have. Raises BadRequest."""
    if not NAME_PATTERN.fullmatch(name):
        raise BadRequest(
            f"{name[:100]!r} is not a valid name for a secret: use 1 to 64 letters, digits, - and _",
            field="name",
        )
    return name


def check_value(value: str) -> str:
    """Return a value that can be a secret. Raises BadRequest."""
    if not MIN_VALUE_LENGTH <= len(value) <= MAX_VALUE_LENGTH or "\0" in value:
        raise BadRequest(f"a secret has {MIN_VALUE_LENGTH} to {MAX_VALUE_LENGTH} characters", field="value")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRequest("a secret must be valid Unicode", field="value") from None
    return value


def check_receivers(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return patterns of receivers. Raises BadRequest for one that no operation matches, or that all do."""
    names = tuple(dict.fromkeys(patterns))
    try:
        parsed = parse_patterns(names)
    except ConfigError as error:
        raise BadRequest(error.message, hint=error.hint, field="operations") from None
    if any(not pattern.literals for pattern in parsed):
        raise BadRequest("every operation would receive the secret; name those that may", field="operations")
    return names
