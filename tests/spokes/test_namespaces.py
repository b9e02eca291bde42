"""Which namespaces an owner's spokes may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.agent.subagent import NAMESPACE
from dragoman.errors import Forbidden
from dragoman.operations.message_search import MemoryMessageSearch
from dragoman.operations.registry import HUB_NAMESPACES, Registry
from dragoman.operations.results.artifact import MemoryArtifactStore
from dragoman.spokes.hub.permissions import NamespacePermissions
from dragoman.tools import history
from dragoman.tools.builtin import builtin_operations
from dragoman.tools.web.host_policy import WebSettings

SAID = {"ann": ["tools-*", "web"], "bob": "deploy", "all": "[a-z]*"}


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
    NamespacePermissions(SAID, reserved=["kept", "Kept-Too"]).check(owner, namespace, current_owner=holder)


@pytest.mark.parametrize(
    ("owner", "namespace", "holder"),
    [
        ("eve", "hub", None),
        ("eve", "\uff48\uff55\uff42", None),
        ("eve", "Files", None),
        ("eve", "ARTIFACTS", None),
        ("eve", "history", None),
        ("eve", "agents", None),
        ("eve", "\uff55ser", None),
        ("all", "web", None),
        ("all", "T\u0131me", "ann"),
        ("eve", "kep\uff54", None),
        ("eve", "kept_too", None),
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
        NamespacePermissions(SAID, reserved=["kept", "Kept-Too"]).check(
            owner, namespace, current_owner=holder
        )


def test_a_star_is_for_owners_that_are_not_named_and_lets_nobody_into_what_is_held() -> None:
    permits = NamespacePermissions({"*": ["open-*"], "ann": ["own"]})
    permits.check("eve", "open-a", current_owner=None)
    for namespace, holder in (("other", None), ("open-a", "ann"), ("own", None)):
        with pytest.raises(Forbidden):
            permits.check("eve", namespace, current_owner=holder)


def test_the_hub_s_own_namespaces_are_reserved_whatever_is_switched_on() -> None:
    web, store = WebSettings(), MemoryArtifactStore()
    built = builtin_operations(Path.cwd(), artifacts=store, web=web)
    own = Registry(*built, *history.operations(MemoryMessageSearch())).namespaces()
    of_teams = {"browser", "memory", "plugins", "shell", "skills", "teams", "triggers", "vault"}
    assert {*own, *of_teams, "hub", NAMESPACE} == HUB_NAMESPACES


def test_only_a_grant_by_name_shares_a_namespace() -> None:
    permits = NamespacePermissions({"*": ["open-*"], "ann": ["own", "Tools-*"]})
    shared = [("ann", "OWN"), ("ann", "tools_x"), ("ann", "other"), ("eve", "open-a"), ("*", "open-a")]
    assert [permits.shares(*each) for each in shared] == [True, True, False, False, False]
