"""API keys: creation, lookup, limits, rotation, expiry, revocation."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.errors import BadRequest, NotFound
from dragoman.store.accounts.keys import LAST_USED_INTERVAL
from dragoman.store.store import Store
from dragoman.usage_limits import Limits
from tests.store.conftest import Clock

LIMITS = Limits(requests_per_minute=60, usd_per_day=2.5)


async def test_a_key_is_found_by_its_secret_only(store: Store, clock: Clock) -> None:
    key, secret = await store.keys.create("ann", name="laptop", scopes=["chat", "admin"])
    assert secret.startswith("dgm_")
    assert len(secret) >= 36
    assert secret.startswith(key.prefix)
    assert (key.owner, key.name, key.created_at) == ("ann", "laptop", clock.now)
    assert key.scopes == {"chat", "admin"}
    assert await store.keys.authenticate(secret) == key
    assert await store.keys.authenticate(secret[:-1]) == "unknown"
    assert await store.keys.authenticate("") == "unknown"
    assert await store.keys.authenticate("\udcff") == "unknown"


async def test_a_secret_is_nowhere_in_the_database(store: Store) -> None:
    key, secret = await store.keys.create("ann")
    _, new = await store.keys.rotate(key.id, 60)
    rows = await store.database.read(lambda connection: connection.fetch_all("SELECT * FROM keys", {}))
    former = await store.database.read(
        lambda connection: connection.fetch_all("SELECT * FROM former_secrets", {})
    )
    shown = f"{rows!r} {former!r} {await store.keys.list()!r}"
    assert secret not in shown
    assert new not in shown


async def test_a_key_keeps_what_it_may_ask_and_how_much(store: Store) -> None:
    key, secret = await store.keys.create(
        "ann", models=["openai/*", "fast"], limits=LIMITS, expires_at=9_000.0
    )
    assert (key.models, key.limits, key.expires_at) == (("openai/*", "fast"), LIMITS, 9_000.0)
    assert await store.keys.get(key.id) == key
    assert await store.keys.authenticate(secret) == key
    assert await store.keys.get("nobody") is None


@pytest.mark.parametrize("wrong", [{"scopes": ["everything"]}, {"models": ["openai/*", ""]}])
async def test_a_key_that_cannot_be_is_not_made(store: Store, wrong: dict[str, list[str]]) -> None:
    with pytest.raises(BadRequest):
        await store.keys.create("ann", **wrong)  # type: ignore[arg-type]  # what is wrong is the point
    assert await store.keys.list() == []


async def test_a_key_is_changed_and_its_secret_stays(store: Store) -> None:
    key, secret = await store.keys.create("ann", models=["a"], expires_at=9_000.0)
    changes = {"name": "ci", "scopes": frozenset({"gateway"}), "models": None, "limits": LIMITS}
    changed = await store.keys.update(key.id, **changes, expires_at=None)
    assert changed == msgspec.structs.replace(key, **changes, expires_at=None)
    assert await store.keys.authenticate(secret) == changed
    with pytest.raises(NotFound):
        await store.keys.update("nobody", name="x")
    with pytest.raises(TypeError, match="owner"):
        await store.keys.update(key.id, owner="bob")
    with pytest.raises(BadRequest, match="'all'"):
        await store.keys.update(key.id, scopes=frozenset({"all"}))


async def test_an_expired_key_is_found_no_more_until_it_is_prolonged(store: Store, clock: Clock) -> None:
    key, secret = await store.keys.create("ann", expires_at=clock.now + 10)
    clock.now += 9.5
    assert await store.keys.authenticate(secret) != "expired"
    clock.now += 0.5
    assert await store.keys.authenticate(secret) == "expired"
    await store.keys.update(key.id, expires_at=clock.now + 10)
    assert await store.keys.authenticate(secret) != "expired"


async def test_after_a_rotation_both_secrets_are_good_until_the_grace_is_over(
    store: Store, clock: Clock
) -> None:
    key, old = await store.keys.create("ann", limits=LIMITS)
    rotated, new = await store.keys.rotate(key.id, 60.0)
    assert (rotated.id, rotated.limits, new != old) == (key.id, LIMITS, True)
    assert new.startswith(rotated.prefix)
    assert await store.keys.authenticate(new) == rotated
    await store.flush()
    assert await store.keys.authenticate(old) == msgspec.structs.replace(
        rotated, expires_at=clock.now + 60, last_used_at=clock.now
    )
    clock.now += 60
    assert await store.keys.authenticate(old) == "rotated"
    found = await store.keys.authenticate(new)
    assert not isinstance(found, str)
    assert found.id == key.id


async def test_a_key_rotated_twice_keeps_each_promise(store: Store, clock: Clock) -> None:
    key, first = await store.keys.create("ann", expires_at=clock.now + 30)
    _, second = await store.keys.rotate(key.id, 60.0)
    _, third = await store.keys.rotate(key.id, 0.0)
    found = [await store.keys.authenticate(secret) for secret in (first, second, third)]
    assert [each if isinstance(each, str) else each.expires_at for each in found] == [
        clock.now + 30,
        "rotated",
        clock.now + 30,
    ]


async def test_a_revoked_key_is_found_no_more_but_still_listed(store: Store, clock: Clock) -> None:
    key, secret = await store.keys.create("ann")
    other, _ = await store.keys.create("bob")
    rotated, new = await store.keys.rotate(key.id, 60.0)
    clock.now += 1
    assert await store.keys.revoke(key.id) is True
    assert await store.keys.revoke(key.id) is False
    assert await store.keys.revoke("nobody") is False
    assert [await store.keys.authenticate(each) for each in (secret, new)] == ["revoked", "revoked"]
    with pytest.raises(NotFound):
        await store.keys.rotate(key.id, 60.0)
    revoked = msgspec.structs.replace(rotated, revoked_at=clock.now)
    assert {found.id: found for found in await store.keys.list()} == {key.id: revoked, other.id: other}


async def test_the_use_of_a_key_is_noted_once_a_minute(store: Store, clock: Clock) -> None:
    _, secret = await store.keys.create("ann")
    noted = []
    for passed in (0.0, LAST_USED_INTERVAL - 1, 1.0):
        clock.now += passed
        await store.keys.authenticate(secret)
        await store.flush()
        noted.append((await store.keys.list())[0].last_used_at)
    assert noted == [1_000.0, 1_000.0, 1_000.0 + LAST_USED_INTERVAL]
