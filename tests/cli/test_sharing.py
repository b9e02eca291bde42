"""`dragoman sessions share`, `unshare`, `grants`, `grant` and `revoke`."""

from __future__ import annotations

from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.cli.conftest import Run
from tests.cli.program import Hub


@pytest.fixture
def trip(run: Run, hub: Hub) -> str:
    """A session with an answer."""
    assert run("run", "Which hotel?", "--session", "shared trip", "--hub", hub.url).code == 0
    return "shared trip"


def test_a_session_is_shared_by_a_link_until_it_is_revoked(run: Run, hub: Hub, trip: str) -> None:
    where = ("--hub", hub.url)
    shared = run("sessions", "share", trip, "--expires", "7d", *where)
    assert shared.code == 0
    with urlopen(shared.out.strip()) as page:
        assert b"Which hotel?" in page.read()
    (link,) = run("sessions", "share", trip, "--list", "--json", *where).json["shares"]
    assert link["id"] in run("sessions", "share", trip, "--list", *where).out
    assert run("sessions", "unshare", trip, link["id"], *where).out == f"{link['id']} is revoked\n"
    with pytest.raises(HTTPError, match="404"):
        urlopen(shared.out.strip())
    assert run("sessions", "unshare", trip, link["id"], *where).code == 1
    assert "there is no link" in run("sessions", "share", trip, "--list", *where).err


def test_a_session_is_granted_to_another_owner_until_it_is_revoked(run: Run, hub: Hub, trip: str) -> None:
    where = ("--hub", hub.url)
    assert "nobody but its owner" in run("sessions", "grants", trip, *where).err
    granted = run("sessions", "grant", trip, "--owner", "bob", "--role", "write", *where)
    assert granted.out.splitlines()[1].split()[:2] == ["bob", "write"]
    (row,) = run("sessions", "grants", trip, "--json", *where).json["grants"]
    assert (row["owner"], row["role"]) == ("bob", "write")
    assert run("sessions", "revoke", trip, "--owner", "bob", *where).code == 0
    again = run("sessions", "revoke", trip, "--owner", "bob", *where)
    assert (again.code, again.out) == (1, "")


def test_a_grant_names_an_owner_or_a_key(run: Run) -> None:
    for wrong in ((), ("--owner", "bob", "--key-id", "key_1")):
        result = run("sessions", "grant", "trip", *wrong)
        assert (result.code, result.out) == (2, "")
        assert "--owner and --key-id" in result.err
