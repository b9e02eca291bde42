"""Permissions of spokes: in which namespaces the spokes of an owner may register operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from dragoman.errors import Forbidden
from dragoman.operations.registry import RESERVED_NAMESPACE

ANY_OWNER = "*"


class NamespacePermissions:
    """The configured namespaces of each owner: the owner's patterns, those of `*`, or all free ones.

    A namespace that is granted to an owner by name, or reserved, is not free to others.
    """

    def __init__(
        self, namespaces: Mapping[str, str | Sequence[str]] | None = None, *, reserved: Sequence[str] = ()
    ) -> None:
        self._patterns = {
            owner: (patterns,) if isinstance(patterns, str) else tuple(patterns)
            for owner, patterns in (namespaces or {}).items()
        }
        self._reserved = (*reserved, RESERVED_NAMESPACE)

    def check(self, owner: str, namespace: str, *, current_owner: str | None) -> None:
        """Raise Forbidden if the owner may not use the namespace. `current_owner` is whose operations are in
        it, None for nobody's.
        """
        name = namespace.lower()
        if name == RESERVED_NAMESPACE:
            raise Forbidden(f"the namespace {RESERVED_NAMESPACE!r} is the hub's own; choose another")
        granted = self._patterns.get(owner, self._patterns.get(ANY_OWNER))
        if granted is not None and not matches_any(name, granted):
            raise Forbidden(
                f"spokes of {owner!r} may not register in the namespace {namespace!r}",
                hint=f"`spokes.namespaces` of the hub allows them {', '.join(granted) or 'none'}",
            )
        if owner in self._patterns:
            return
        if current_owner not in (None, owner):
            raise Forbidden(
                f"the namespace {namespace!r} is taken by others; choose another",
                hint="`spokes.namespaces` of the hub's configuration can share it",
            )
        if matches_any(name, self._reserved) or self._is_granted_to_other(name):
            raise Forbidden(
                f"the namespace {namespace!r} is kept for others; choose another",
                hint=f"`spokes.namespaces` of the hub's configuration can grant it to {owner!r}",
            )

    def _is_granted_to_other(self, name: str) -> bool:
        return any(
            matches_any(name, [pattern for pattern in patterns if pattern != ANY_OWNER])
            for owner, patterns in self._patterns.items()
            if owner != ANY_OWNER
        )


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a pattern matches, ignoring case."""
    return any(fnmatchcase(name, pattern.lower()) for pattern in patterns)
