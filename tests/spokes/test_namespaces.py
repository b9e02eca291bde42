"""Which namespaces an owner's spokes may use."""

from __future__ import annotations

import pytest

from dragoman.errors import Forbidden
from dragoman.spokes.hub.permissions import NamespacePermissions

SAID = {"ann": ["tools-*", "web"], "bob": "deploy"}


@pytest.mark.parametrize(
    ("owner", "namespace", "holder"),
    [
        ("eve", "free", None),
        ("eve", "mine", "eve"),
        ("ann", "tools-a", None),
        ("ann", "WEB", None),
        ("ann", "web", "bob"),
        ("bob", "deploy", ""),
    ],
)
def test_what_is_free_or_granted_is_allowed(owner: str, namespace: str, holder: str | None) -> None:
    NamespacePermissions(SAID, reserved=["kept"]).check(owner, namespace, current_owner=holder)


@pytest.mark.parametrize(
    ("owner", "namespace", "holder"),
    [
        ("eve", "hub", None),
        ("ann", "Hub", None),
        ("eve", "taken", "ann"),
        ("eve", "builtin", ""),
        ("eve", "deploy", None),
        ("eve", "Kept", None),
        ("ann", "free", None),
        ("ann", "deploy", None),
    ],
)
def test_what_is_taken_kept_or_granted_to_others_is_not(
    owner: str, namespace: str, holder: str | None
) -> None:
    with pytest.raises(Forbidden):
        NamespacePermissions(SAID, reserved=["kept"]).check(owner, namespace, current_owner=holder)


def test_a_star_is_for_owners_that_are_not_named_and_lets_nobody_into_what_is_held() -> None:
    permits = NamespacePermissions({"*": ["open-*"], "ann": ["own"]})
    permits.check("eve", "open-a", current_owner=None)
    for namespace, holder in (("other", None), ("open-a", "ann"), ("own", None)):
        with pytest.raises(Forbidden):
            permits.check("eve", namespace, current_owner=holder)
