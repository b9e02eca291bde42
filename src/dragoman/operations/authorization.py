"""Access checks: which endpoints a caller's key may use, and whose data a caller may see.

Every endpoint, the runs and the store's own transactions use these functions, so that a key has the same
rights everywhere. A key with the scope "admin" sees the data of all owners, any other key that of its owner.
Whether a refusal is a 403 (`require_owner`) or a 404 that does not reveal that the resource exists
(`is_visible`) is the choice of the endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from dragoman.errors import Forbidden
from dragoman.identity import DEFAULT_SCOPES, Identity, Scope

RUN_DATA_SCOPES: tuple[Scope, ...] = ("operations", "chat", "admin")
"""Any of these opens the lists of calls, approvals and artifacts."""


SessionRole: TypeAlias = Literal["read", "write", "admin"]
SESSION_ROLES: tuple[SessionRole, ...] = get_args(SessionRole)
"""What a grant allows in a session of another owner; each role includes those before it.

"read": see the session; "write": send messages, stop runs and answer approvals; "admin": change its settings
and its grants.
"""


def roles_with(needed: SessionRole) -> tuple[SessionRole, ...]:
    """Return the roles that allow what `needed` allows."""
    return SESSION_ROLES[SESSION_ROLES.index(needed) :]


def require_scope(caller: Identity, *scopes: Scope) -> None:
    """Raise Forbidden, with `scope` set to the first of `scopes`, unless the caller has one of them.

    The hint names the command that adds this scope to the key.
    """
    if any(map(caller.may, scopes)):
        return
    wanted = " or ".join(map(repr, scopes))
    granted = ", ".join(sorted(caller.scopes or DEFAULT_SCOPES))
    raise Forbidden(
        f"this needs a key with the scope {wanted}; this key has {granted}",
        hint=f"`dragoman keys change {caller.key_id} --add-scope {scopes[0]}` adds it to this key",
        scope=scopes[0],
    )


def require_owner(caller: str, owner: str, *, resource: str) -> None:
    """Raise Forbidden unless the caller is the owner. `resource` names it for the message: "session 's1'"."""
    if caller != owner:
        raise Forbidden(f"{resource} belongs to another owner")


def visible_owner(caller: Identity) -> str | None:
    """Return the only owner whose data the caller may see; None for a caller who may see everybody's."""
    return None if caller.may("admin") else caller.owner


def is_visible(owner: str, *, to: str | None) -> bool:
    """Return whether an owner's data may be shown. `to` is a `visible_owner`."""
    return to is None or to == owner


def restrict_owner(filters: Mapping[str, str], visible: str | None) -> Mapping[str, str]:
    """Return list filters that match only data of a `visible_owner`.

    Raises Forbidden when `filters` names another owner.
    """
    if visible is None:
        return filters
    owner = filters.get("owner", visible)
    if owner != visible:
        raise Forbidden(
            f"this key may not see the data of the owner {owner!r}",
            hint="use a key with the scope admin",
            scope="admin",
        )
    return {**filters, "owner": visible}
