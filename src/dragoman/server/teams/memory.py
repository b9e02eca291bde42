"""HTTP handlers of teams' memories and vaults. Each owner has its own; of secrets, only names are shown."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.http.asgi_exchange import Exchange
from dragoman.ids import new_id
from dragoman.operations.authorization import restrict_owner, visible_owner
from dragoman.server.http.query_parameters import parse_limit
from dragoman.store.teams.memories import MEMORY_KINDS, Memory, MemoryKind, MemoryRepository
from dragoman.store.teams.vault import VaultEntry, VaultRepository
from dragoman.teams.memory.operations import MAX_CONTENT_LENGTH, MAX_KEY_LENGTH
from dragoman.teams.registry import TeamRegistry

MAX_BODY = 64_000
MAX_PAGE = 500
BODY_HINT = 'send {"team": "NAME", "key": "…", "content": "…", "type"?: "lesson", "reason"?: "…"}'


class MemoryBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a memory that a person writes or corrects."""

    team: str
    key: str
    content: str
    type: MemoryKind = "context"
    reason: str | None = None


class MemoryHandlers:
    """Handlers of `/api/memory`. A caller sees and changes its own owner's; the scope admin names another."""

    def __init__(self, memories: MemoryRepository, teams: TeamRegistry) -> None:
        self._memories = memories
        self._teams = teams

    async def list(self, exchange: Exchange) -> None:
        """List a team's memories, with `?q` those that match, with `?key` the history of one."""
        query = exchange.query
        team, owner = self._teams.get(query.get("team", "")).name, find_owner(exchange)
        limit = parse_limit(query.get("limit", "100"), maximum=MAX_PAGE)
        kinds = parse_kinds(query.get("type"))
        if "key" in query:
            found = await self._memories.history(team, owner, key=query["key"], limit=limit)
        elif "q" in query:
            found = await self._memories.search(team, owner, query=query["q"], kinds=kinds, limit=limit)
        else:
            found = await self._memories.list(team, owner, kinds=kinds, limit=limit)
        await exchange.respond(200, {"memories": [memory_to_json(memory) for memory in found]})

    async def save(self, exchange: Exchange) -> None:
        """Write a memory, or replace one with a reason. Conflict."""
        try:
            body = msgspec.convert(await exchange.read_json(MAX_BODY), MemoryBody)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the body is invalid: {error}", hint=BODY_HINT) from None
        key, content = body.key.strip(), body.content.strip()
        if not 1 <= len(key) <= MAX_KEY_LENGTH or not 1 <= len(content) <= MAX_CONTENT_LENGTH:
            raise BadRequest(
                f"a key has 1 to {MAX_KEY_LENGTH} characters, a memory 1 to {MAX_CONTENT_LENGTH}",
                hint=BODY_HINT,
            )
        draft = Memory(
            id=new_id("mem"),
            team=self._teams.get(body.team).name,
            owner=find_owner(exchange),
            key=key,
            kind=body.type,
            content=content,
            created_at=0.0,
            created_by=exchange.identity.key_id,
            reason=body.reason,
        )
        await exchange.respond(200, memory_to_json(await self._memories.save(draft)))

    async def delete(self, exchange: Exchange) -> None:
        """Delete the memory of a `?key`; its history stays. NotFound."""
        query = exchange.query
        team, owner = self._teams.get(query.get("team", "")).name, find_owner(exchange)
        await self._memories.delete(team, owner, key=query.get("key", ""), reason=query.get("reason"))
        await exchange.respond(204)


class VaultHandlers:
    """Handlers of `/api/vault`: names of secrets and the operations that may receive them, never a value."""

    def __init__(self, vault: VaultRepository, teams: TeamRegistry) -> None:
        self._vault = vault
        self._teams = teams

    async def list(self, exchange: Exchange) -> None:
        """List the secrets that a team may use for the caller."""
        team = self._teams.get(exchange.query.get("team", "")).name
        found = await self._vault.list(team, find_owner(exchange))
        await exchange.respond(200, {"secrets": [entry_to_json(entry) for entry in found]})


def find_owner(exchange: Exchange) -> str:
    """Return whose data the request is about: the caller's, or `?owner` for the scope admin. Forbidden."""
    filters = {"owner": exchange.query["owner"]} if "owner" in exchange.query else {}
    return restrict_owner(filters, visible_owner(exchange.identity)).get("owner", exchange.identity.owner)


def parse_kinds(text: str | None) -> tuple[MemoryKind, ...]:
    """Return the kinds of memory of a `?type`. BadRequest."""
    if text is None:
        return MEMORY_KINDS
    found = tuple(kind for kind in MEMORY_KINDS if kind == text)
    if not found:
        raise BadRequest(f"type must be one of {', '.join(MEMORY_KINDS)}, not {text[:40]!r}", field="type")
    return found


def memory_to_json(memory: Memory) -> dict[str, Any]:
    return {
        "id": memory.id,
        "team": memory.team,
        "key": memory.key,
        "type": memory.kind,
        "content": memory.content,
        "active": memory.is_active,
        "createdAt": memory.created_at,
        "createdBy": memory.created_by,
        "endedAt": memory.ended_at,
        "supersedes": memory.supersedes,
        "reason": memory.reason,
        "confidence": memory.confidence,
        "sources": memory.sources,
    }


def entry_to_json(entry: VaultEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "handle": entry.handle,
        "operations": entry.receivers,
        "origins": entry.origins,
        "managed": entry.is_managed,
        "plain": entry.plain,
        "createdAt": entry.created_at,
        "updatedAt": entry.updated_at,
    }
