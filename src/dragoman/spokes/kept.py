"""Kept results: the newest ones by key, within a number and a size."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Values by key; the oldest are forgotten first."""

    def __init__(self, *, count: int, size: int) -> None:
        self._values: dict[K, tuple[V, int]] = {}
        self._count = count
        self._size = size
        self._room = size

    def all(self) -> Sequence[K]:
        """Those that are kept, oldest first."""
        return tuple(self._values)

    def get(self, key: K) -> V | None:
        """The value of this key."""
        held = self._values.get(key)
        return None if held is None else held[0]

    def keep(self, key: K, value: V, *, size: int) -> None:
        """Keep a value of so many bytes, in the place of older ones; one that fills it all is not kept."""
        self.drop(key)
        if size > self._size:
            return
        self._values[key] = (value, size)
        self._room -= size
        while self._room < 0 or len(self._values) > self._count:
            self.drop(next(iter(self._values)))

    def drop(self, key: K) -> None:
        """Forget this one."""
        held = self._values.pop(key, None)
        if held is not None:
            self._room += held[1]
