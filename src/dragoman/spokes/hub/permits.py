"""Permits: which namespaces the spokes of an owner may bring operations in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from dragoman.errors import Forbidden
from dragoman.operations.registry import RESERVED

EVERYBODY = "*"


class Permits:
    """What the configuration allows: an owner's patterns, those of `*`, or else whatever is free.

    A namespace that is granted to an owner by name, or reserved, is not free to others.
    """

    def __init__(
        self, namespaces: Mapping[str, str | Sequence[str]] | None = None, *, reserved: Sequence[str] = ()
    ) -> None:
        self._granted = {
            owner: (said,) if isinstance(said, str) else tuple(said)
            for owner, said in (namespaces or {}).items()
        }
        self._reserved = (*reserved, RESERVED)

    def check(self, owner: str, namespace: str, *, holder: str | None) -> None:
        """Forbidden when this owner may not. `holder` is who has operations there, None for nobody."""
        name = namespace.lower()
        if name == RESERVED:
            raise Forbidden(f"the namespace {RESERVED!r} is the hub's own; choose another")
        granted = self._granted.get(owner, self._granted.get(EVERYBODY))
        if granted is not None and not matches(name, granted):
            raise Forbidden(
                f"spokes of {owner!r} may not register in the namespace {namespace!r}",
                hint=f"`spokes.namespaces` of the hub allows them {', '.join(granted) or 'none'}",
            )
        if owner in self._granted:
            return
        if holder not in (None, owner):
            raise Forbidden(
                f"the namespace {namespace!r} is taken by others; choose another",
                hint="`spokes.namespaces` of the hub's configuration can share it",
            )
        if matches(name, self._reserved) or self._is_anothers(name):
            raise Forbidden(
                f"the namespace {namespace!r} is kept for others; choose another",
                hint=f"`spokes.namespaces` of the hub's configuration can grant it to {owner!r}",
            )

    def _is_anothers(self, name: str) -> bool:
        return any(
            matches(name, [pattern for pattern in patterns if pattern != EVERYBODY])
            for owner, patterns in self._granted.items()
            if owner != EVERYBODY
        )


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns fits, whatever the letters' case."""
    return any(fnmatchcase(name, pattern.lower()) for pattern in patterns)
