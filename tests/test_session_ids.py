"""The two ids of a session: the client's and the hub's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.session_ids import (
    MAX_ID_LENGTH,
    client_session_id,
    hub_session_id,
    is_session_id,
    session_id_for,
)

OWNERS = st.sampled_from(["ann", "bob", "", "ses_", "a~b", "ann~s"])
PLAIN = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=30)
LIKE_THE_HUBS = st.builds(hub_session_id, PLAIN, owner=OWNERS)
IDS = PLAIN | LIKE_THE_HUBS | st.just("ses_0123456789abcdef~s")


@given(id=IDS, owner=OWNERS)
def test_the_clients_id_comes_back_and_the_hubs_id_names_the_same_session(id: str, owner: str) -> None:
    hub_id = hub_session_id(id, owner=owner)
    assert hub_session_id(hub_id, owner=owner) == hub_id
    assert hub_session_id(session_id_for(owner, hub_id), owner=owner) == hub_id
    assert session_id_for(owner, hub_id) == client_session_id(hub_id)
    assert session_id_for(owner, hub_id) == id or id == hub_id


@given(ids=st.tuples(IDS, IDS), owners=st.tuples(OWNERS, OWNERS))
def test_no_choice_of_an_id_yields_the_hubs_id_of_another_owners_session(
    ids: tuple[str, str], owners: tuple[str, str]
) -> None:
    if owners[0] != owners[1]:
        assert hub_session_id(ids[0], owner=owners[0]) != hub_session_id(ids[1], owner=owners[1])
        theirs = hub_session_id(ids[0], owner=owners[0])
        assert session_id_for(owners[1], theirs) == theirs


@pytest.mark.parametrize(
    ("id", "valid"),
    [
        ("s", True),
        ("", False),
        ("a\nb", False),
        ("s" * MAX_ID_LENGTH, True),
        ("s" * (MAX_ID_LENGTH + 1), False),
        (hub_session_id("s" * MAX_ID_LENGTH, owner="ann"), True),
        (hub_session_id("s" * (MAX_ID_LENGTH + 1), owner="ann"), False),
        (hub_session_id("", owner="ann"), False),
    ],
)
def test_an_id_is_printable_and_of_limited_length_and_the_hubs_ids_are_too(id: str, valid: bool) -> None:
    assert is_session_id(id) is valid
