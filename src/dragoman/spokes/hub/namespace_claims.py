"""Namespaces that spokes have registered in: each belongs to its first owner, also after a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from dragoman.errors import StoreError, TooLarge, Unavailable

log = logging.getLogger(__name__)


class NamespaceStore(Protocol):
    """Stores the owners of namespaces."""

    async def list(self) -> Mapping[str, str]: ...

    async def claim(self, owners: Mapping[str, str]) -> Mapping[str, str]: ...

    async def release(self, namespace: str) -> None: ...


class NamespaceClaims:
    """The owners of namespaces, by canonical name. Without a store they are kept in memory."""

    def __init__(self, store: NamespaceStore | None = None, *, limit: int) -> None:
        """`limit` is how many namespaces one owner may have."""
        self._store = store
        self._limit = limit
        self._owners: dict[str, str] = {}
        self._unsaved: dict[str, str] = {}
        self._is_loaded = store is None
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Read the stored owners: other hosts change them, too.

        While the database does not answer, those that were read before are used. Raises Unavailable if there
        are none.
        """
        if self._store is None:
            return
        async with self._lock:
            try:
                stored = await self._store.list()
            except (StoreError, Unavailable) as error:
                if self._is_loaded:
                    return
                raise Unavailable(f"the owners of namespaces cannot be read: {error.message}") from error
            self._owners = {**self._unsaved, **stored}
            self._is_loaded = True

    def owner_of(self, namespace: str) -> str | None:
        """Return the owner of the namespace, or None."""
        return self._owners.get(namespace)

    def by_namespace(self) -> Mapping[str, str]:
        """Return all owners by namespace."""
        return dict(sorted(self._owners.items()))

    def check_limit(self, namespace: str, owner: str) -> None:
        """Raise TooLarge if the owner has too many namespaces for a new one."""
        if namespace not in self._owners and list(self._owners.values()).count(owner) >= self._limit:
            raise TooLarge(
                f"the spokes of {owner!r} have {self._limit} namespaces already, which is the limit",
                hint="an administrator can free one: DELETE /api/spokes/namespaces/NAME",
            )

    def claim(self, namespace: str, owner: str) -> None:
        """Give a namespace without an owner to one; `save` stores that."""
        if namespace not in self._owners:
            self._owners[namespace] = self._unsaved[namespace] = owner

    async def save(self) -> None:
        """Store new claims. If another host has given a namespace to another owner first, that one has it.

        While the database does not answer, they are stored by a later call.
        """
        if self._store is None or not self._unsaved:
            return
        async with self._lock:
            claims = dict(self._unsaved)
            try:
                stored = await self._store.claim(claims)
            except (StoreError, Unavailable) as error:
                log.warning("the owners of the namespaces %s are not stored: %s", ", ".join(claims), error)
                return
            for namespace in claims:
                self._unsaved.pop(namespace, None)
            self._owners.update(stored)

    async def release(self, namespace: str) -> None:
        """Remove the owner of a namespace. Raises StoreError, Unavailable."""
        async with self._lock:
            if self._store is not None:
                await self._store.release(namespace)
            self._owners.pop(namespace, None)
            self._unsaved.pop(namespace, None)
