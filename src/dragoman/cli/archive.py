"""The archive: sessions and what was said in them, read from a data folder or from a running hub."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dragoman.cli.client import HubClient
from dragoman.cli.keys import existing
from dragoman.errors import NotFound
from dragoman.messages import Message
from dragoman.operations.history import Indexing
from dragoman.operations.identity import LOCAL
from dragoman.store.sessions import Session
from dragoman.store.store import Store


class Archive(Protocol):
    """Where sessions are kept; a session has the keys of `GET /api/sessions/{id}`."""

    async def sessions(self, limit: int = 50) -> list[dict[str, Any]]: ...

    async def session(self, id: str) -> dict[str, Any]: ...

    async def messages(self, id: str) -> list[Message]: ...

    async def search(self, query: str, *, session: str | None = None, limit: int = 20) -> dict[str, Any]: ...


class Folder:
    """The sessions of all owners in a data folder, also while a hub runs there."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def sessions(self, limit: int = 50) -> list[dict[str, Any]]:
        """The last changed first."""
        found = [
            each
            for owner in await self._owners()
            for each in await self._store.sessions.list(owner, limit=limit)
        ]
        newest = sorted(found, key=lambda session: session.updated_at, reverse=True)[:limit]
        return [await self._shown(session) for session in newest]

    async def session(self, id: str) -> dict[str, Any]:
        """NotFound when there is none of this id."""
        found = await self._store.sessions.get(id)
        if found is None:
            raise NotFound(f"there is no session {id!r}", hint="`dragoman sessions list` shows them")
        return await self._shown(found)

    async def messages(self, id: str) -> list[Message]:
        """What was said, as far as it is written down."""
        return list(await self._store.messages.list(id))

    async def search(self, query: str, *, session: str | None = None, limit: int = 20) -> dict[str, Any]:
        """What was said, as `GET /api/search` tells it, with the owners; the best of each one's, in turn."""
        owners = await self._owners() if session is None else [(await self.session(session))["owner"]]
        answers = [
            (owner, await self._store.history.search(query, owner=owner, session_id=session, limit=limit))
            for owner in owners
        ]
        there = [found.matched for _, found in answers if found.passages]
        matched = next((way for way in ("all", "some") if way in there), "text")
        held = [(owner, found.passages) for owner, found in answers if found.matched == matched]
        ranked = [(rank, owner, each) for owner, found in held for rank, each in enumerate(found)]
        best = sorted(ranked, key=lambda place: place[:2])[:limit]
        told = [{**msgspec.to_builtins(passage), "owner": owner} for _, owner, passage in best]
        return {"matched": matched, "found": told, **unfinished([found.indexing for _, found in answers])}

    async def _owners(self) -> list[str]:
        return sorted({LOCAL.owner, *(key.owner for key in await self._store.keys.list())})

    async def _shown(self, session: Session) -> dict[str, Any]:
        return {
            "id": session.id,
            "owner": session.owner,
            "title": session.title,
            "model": session.model,
            "agent": session.agent,
            "maxSteps": session.max_steps,
            "createdAt": session.created_at,
            "updatedAt": session.updated_at,
            "running": await self._store.runs.active(session.id) is not None,
        }


def unfinished(indexing: Sequence[Indexing | None]) -> dict[str, Any]:
    """What is said of indexing that is not done, of all owners together."""
    there = [each for each in indexing if each is not None]
    if not there:
        return {}
    return {"indexing": {"done": sum(each.done for each in there), "left": sum(each.left for each in there)}}


@asynccontextmanager
async def opened(hub: str | None, key: str | None, *, data: Path) -> AsyncIterator[Archive]:
    """The archive of a hub when one is named, else that of the data folder."""
    if hub:
        async with HubClient(hub, key) as client:
            yield client
    else:
        async with await Store.open(existing(data), exclusive=False) as store:
            yield Folder(store)


async def pick(archive: Archive, id: str | None) -> dict[str, Any]:
    """The session of this id, or the last changed one. NotFound."""
    if id is not None:
        return await archive.session(id)
    found: Sequence[dict[str, Any]] = await archive.sessions(limit=1)
    if not found:
        raise NotFound("there is no session yet", hint="`dragoman chat` begins one")
    return found[0]
