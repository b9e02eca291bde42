"""The ledger of calls as commands read it: from a running hub, or from a data folder."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

from dragoman.cli.client import HubClient, segment
from dragoman.cli.keys import existing
from dragoman.server.calls import Reader
from dragoman.store.store import Store

Json: TypeAlias = dict[str, Any]


class Remote:
    """The caller's calls in a running hub."""

    def __init__(self, client: HubClient) -> None:
        self._client = client

    @classmethod
    @asynccontextmanager
    async def open(cls, hub: str, key: str | None) -> AsyncIterator[Remote]:
        """Those of the key's owner; of all where it has the scope "admin"."""
        async with HubClient(hub, key) as client:
            yield cls(client)

    async def tree(self, id: str, since: str = "") -> Json:
        """See `GET /api/calls/{id}/tree`."""
        return await self._get(f"/{segment(id)}/tree?{urlencode({'since': since})}")

    async def list(self, query: Mapping[str, str]) -> Json:
        """See `GET /api/calls`."""
        return await self._get(f"?{urlencode(query)}")

    async def call(self, id: str) -> Json:
        """See `GET /api/calls/{id}`."""
        return await self._get(f"/{segment(id)}")

    async def _get(self, path: str) -> Json:
        found: Json = await self._client.ask("GET", f"/api/calls{path}")
        return found


class Folder:
    """The calls of all owners in a data folder, also while a hub runs there."""

    def __init__(self, store: Store) -> None:
        self._reader = Reader(store)

    @classmethod
    @asynccontextmanager
    async def open(cls, data: Path) -> AsyncIterator[Folder]:
        """NotFound when there is no such folder."""
        async with await Store.open(existing(data), exclusive=False) as store:
            yield cls(store)

    async def tree(self, id: str, since: str = "") -> Json:
        """See `GET /api/calls/{id}/tree`; always whole."""
        return {**await self._reader.tree(id), "now": time.time()}

    async def list(self, query: Mapping[str, str]) -> Json:
        """See `GET /api/calls`."""
        return await self._reader.list(query)

    async def call(self, id: str) -> Json:
        """See `GET /api/calls/{id}`."""
        return await self._reader.call(id)
