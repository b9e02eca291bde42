"""Permissions of spokes: which namespaces an owner's spokes may use, and who sees their operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from dragoman.errors import Forbidden
from dragoman.operations.operation import Effect
from dragoman.operations.registry import HUB_NAMESPACES, RESERVED_NAMESPACE
from dragoman.unicode_normalisation import normalise_text

ANY_OWNER = "*"


class NamespacePermissions:
    """The configured namespaces of each owner: the owner's patterns, those of `*`, or all free ones.

    A namespace that is granted to an owner by name, or reserved, is not free to others. Operations in a
    namespace that is granted to their owner by name are for all owners; `*` only lets owners register.
    """

    def __init__(
        self,
        namespaces: Mapping[str, str | Sequence[str]] | None = None,
        *,
        reserved: Sequence[str] = (),
        effects: Mapping[str, Effect] | None = None,
        trust_effects: str | Sequence[str] = (),
    ) -> None:
        """`effects` are by patterns of ids; `trust_effects` are patterns of owners whose claims are used."""
        self._patterns = {
            owner: (patterns,) if isinstance(patterns, str) else tuple(patterns)
            for owner, patterns in (namespaces or {}).items()
        }
        self._reserved = tuple(reserved)
        self._effects = dict(effects or {})
        self._trusted = (trust_effects,) if isinstance(trust_effects, str) else tuple(trust_effects)

    def check(self, owner: str, namespace: str, *, current_owner: str | None) -> None:
        """Raise Forbidden if the owner may not use the namespace.

        `current_owner` is the owner by its operations or by its first use, None if there is none.
        """
        name = canonical_namespace(namespace)
        by_name = self._patterns.get(owner, ())
        if name == RESERVED_NAMESPACE or (name in HUB_NAMESPACES and name not in map(fold, by_name)):
            raise Forbidden(f"the namespace {namespace[:100]!r} is the hub's own; choose another")
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
                f"the namespace {namespace!r} is reserved for others; choose another",
                hint=f"`spokes.namespaces` of the hub's configuration can grant it to {owner!r}",
            )

    def shares(self, owner: str, namespace: str) -> bool:
        """Return whether all owners may call what the owner's spokes register in the namespace."""
        granted = self._patterns.get(owner, ()) if owner != ANY_OWNER else ()
        return matches_any(canonical_namespace(namespace), granted)

    def configured_effect(self, id: str) -> Effect | None:
        """Return the effect that the configuration gives an operation: its id, else the first pattern."""
        exact = {pattern.lower(): effect for pattern, effect in self._effects.items()}
        if id.lower() in exact:
            return exact[id.lower()]
        return next((effect for pattern, effect in exact.items() if fnmatchcase(id.lower(), pattern)), None)

    def trusts_effects(self, owner: str) -> bool:
        """Return whether the policy relies on the effects that this owner's spokes claim."""
        return any(fnmatchcase(owner, pattern) for pattern in self._trusted)

    def _is_granted_to_other(self, name: str) -> bool:
        return any(
            matches_any(name, [pattern for pattern in patterns if pattern != ANY_OWNER])
            for owner, patterns in self._patterns.items()
            if owner != ANY_OWNER
        )


def canonical_namespace(namespace: str) -> str:
    """Return the form in which namespaces are compared: names that look or are spelt alike are the same."""
    return fold(normalise_text("NFKC", namespace)).strip()


def fold(name: str) -> str:
    """Return the name in lower case with `_` for `-`, which tool names do not distinguish."""
    return name.casefold().replace("-", "_")


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a pattern matches a canonical name."""
    return any(fnmatchcase(name, fold(pattern)) for pattern in patterns)
