"""Authentication: headers, refusals, and the database being down."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from dragoman.errors import Unauthorized, Unavailable
from dragoman.identity import LOCAL, Identity
from dragoman.server.auth import FORWARDING_HEADERS, MAX_AGE, MAX_KEYS, RECHECK_INTERVAL, Auth, KeyCache
from dragoman.store.accounts.keys import hash_secret, secret_id_of
from dragoman.store.store import Store
from dragoman.usage_limits import Limits

LIMITS = Limits(parallel=2)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def asking(store: Store, clock: Clock, folder: Path | None = None) -> Auth:
    return Auth(store.keys, required=True, folder=folder, clock=clock, now=clock)


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def test_an_identity_says_what_its_key_may(tmp_path: Path) -> None:
    async with await Store.open(tmp_path) as store:
        key, secret = await store.keys.create("ann", scopes=["chat"], models=["a/*"], limits=LIMITS)
        auth = asking(store, Clock())
        secret_id = secret_id_of(hash_secret(secret))
        expected = Identity("ann", key.id, frozenset({"chat"}), ("a/*",), LIMITS, secret_id)
        assert await auth.identify(bearer(secret)) == expected
        assert await auth.identify({"x-api-key": secret}) == expected
        assert await Auth(store.keys, required=False).identify({}) == LOCAL


async def test_x_api_key_wins_over_a_bearer(tmp_path: Path) -> None:
    async with await Store.open(tmp_path) as store:
        _, ann = await store.keys.create("ann")
        _, bob = await store.keys.create("bob")
        auth = asking(store, Clock())
        assert (await auth.identify({"x-api-key": ann, **bearer(bob)})).owner == "ann"
        assert (await auth.identify({"x-api-key": "", **bearer(bob)})).owner == "bob"
        with pytest.raises(Unauthorized):
            await auth.identify({"x-api-key": "dgm_other", **bearer(bob)})


@pytest.mark.parametrize(
    ("at", "proxy", "named"),
    [
        ("127.0.0.1", {}, True),
        ("::1", {}, True),
        ("10.0.0.7", {}, False),
        (None, {}, False),
        *(("127.0.0.1", {name: "203.0.113.9"}, False) for name in FORWARDING_HEADERS),
    ],
)
async def test_a_401_names_the_data_folder_to_callers_on_this_machine_only(
    tmp_path: Path, at: str | None, proxy: dict[str, str], named: bool
) -> None:
    async with await Store.open(tmp_path) as store:
        auth = asking(store, Clock(), tmp_path)
        gone, revoked = await store.keys.create("ann")
        await store.keys.revoke(gone.id)
        for secret in ("", "dgm_unknown", revoked):
            with pytest.raises(Unauthorized) as refused:
                await auth.identify({**bearer(secret), **proxy}, at=at)
            hint = refused.value.hint or ""
            assert "`dragoman keys " in hint
            assert (f" --data {tmp_path}" in hint) is named
            assert named or str(tmp_path) not in hint


async def test_a_refused_key_is_told_why(tmp_path: Path) -> None:
    clock = Clock()
    async with await Store.open(tmp_path, clock=clock) as store:
        auth = asking(store, clock)
        key, rotated = await store.keys.create("ann")
        await store.keys.rotate(key.id, 0.0)
        _, expired = await store.keys.create("ann", expires_at=clock.now + 1)
        gone, revoked = await store.keys.create("ann")
        await store.keys.revoke(gone.id)
        assert (await auth.identify(bearer(expired))).owner == "ann"
        clock.now += 1
        whys = {
            "dgm_?": "unknown",
            revoked: "revoked",
            rotated: "rotated",
            expired: "expired",
            "": "requires a key",
        }
        for secret, why in whys.items():
            with pytest.raises(Unauthorized, match=why) as refused:
                await auth.identify(bearer(secret))
            assert not secret or secret not in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize(
    ("scopes", "key_id", "open_doors"),
    [
        ((), None, {"gateway", "chat", "operations", "spoke", "admin"}),
        ((), "k", {"gateway", "chat", "operations"}),
        (("admin",), "k", {"admin"}),
        (("spoke",), "k", {"spoke"}),
        (("gateway", "chat"), "k", {"gateway", "chat"}),
    ],
)
def test_scopes_give_access_to_their_endpoints(
    scopes: tuple[str, ...], key_id: str | None, open_doors: set[str]
) -> None:
    identity = Identity("ann", key_id, frozenset(scopes))
    assert {
        scope for scope in ("gateway", "chat", "operations", "spoke", "admin") if identity.may(scope)
    } == open_doors


async def test_while_the_database_is_down_known_keys_go_on_and_the_others_are_told_to_come_again(
    tmp_path: Path,
) -> None:
    clock = Clock()
    store = await Store.open(tmp_path, clock=clock)
    key, existing = await store.keys.create("ann", models=["a/*"], limits=LIMITS, expires_at=clock.now + 100)
    _, unseen = await store.keys.create("ann")
    running = asking(store, clock, tmp_path)
    seen = await running.identify(bearer(existing))
    await store.close()
    clock.now += RECHECK_INTERVAL
    restarted = asking(store, clock, tmp_path)
    for auth in (running, restarted):
        assert (
            await auth.identify(bearer(existing))
            == seen
            == Identity("ann", key.id, models=("a/*",), limits=LIMITS, secret_id=seen.secret_id)
        )
        with pytest.raises(Unavailable, match="not seen before"):
            await auth.identify(bearer(unseen))
    clock.now += 100
    with pytest.raises(Unauthorized, match="expired"):
        await restarted.identify(bearer(existing))


async def test_the_file_of_known_keys_holds_no_secret_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    async with await Store.open(tmp_path / "hub") as store:
        _, secret = await store.keys.create("ann")
        auth = asking(store, Clock(), tmp_path)
        await auth.identify(bearer(secret))
        file = tmp_path / "keys.cache"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert secret not in file.read_text()
        assert [existing["identity"]["owner"] for existing in json.loads(file.read_text()).values()] == [
            "ann"
        ]


async def test_a_key_that_was_seen_to_be_revoked_is_not_known_any_more(tmp_path: Path) -> None:
    clock = Clock()
    store = await Store.open(tmp_path, clock=clock)
    key, secret = await store.keys.create("ann")
    auth = asking(store, clock, tmp_path)
    await auth.identify(bearer(secret))
    await store.keys.revoke(key.id)
    clock.now += RECHECK_INTERVAL
    with pytest.raises(Unauthorized, match="revoked"):
        await auth.identify(bearer(secret))
    await store.close()
    for down in (auth, asking(store, clock, tmp_path)):
        with pytest.raises(Unavailable):
            await down.identify(bearer(secret))


async def test_what_was_changed_of_a_known_key_is_known(tmp_path: Path) -> None:
    clock = Clock()
    store = await Store.open(tmp_path, clock=clock)
    key, secret = await store.keys.create("ann")
    await asking(store, clock, tmp_path).identify(bearer(secret))
    await store.keys.update(key.id, limits=LIMITS)
    await asking(store, clock, tmp_path).identify(bearer(secret))
    await store.close()
    assert (await asking(store, clock, tmp_path).identify(bearer(secret))).limits == LIMITS


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1}', b"\xff\xff"])
async def test_a_file_that_is_damaged_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "keys.cache").write_bytes(content)
    async with await Store.open(tmp_path) as store:
        _, secret = await store.keys.create("ann")
        assert (await asking(store, Clock(), tmp_path).identify(bearer(secret))).owner == "ann"
    restarted = KeyCache(tmp_path / "keys.cache", clock=Clock())
    assert restarted.get("x") is None


async def test_a_key_that_the_database_has_not_confirmed_for_a_week_is_refused(tmp_path: Path) -> None:
    clock = Clock()
    cache = KeyCache(tmp_path / "keys.cache", clock=clock)
    await cache.put("h", LOCAL, expires_at=None)
    clock.now += MAX_AGE
    assert cache.get("h") is not None
    clock.now += 1
    assert cache.get("h") is None
    await cache.put("h", LOCAL, expires_at=None)
    assert KeyCache(tmp_path / "keys.cache", clock=clock).get("h") is not None


async def test_only_so_many_keys_are_known_and_the_last_that_asked_stay() -> None:
    cache = KeyCache(None, clock=Clock())
    for number in range(MAX_KEYS):
        await cache.put(f"h{number}", LOCAL, expires_at=None)
    await cache.put("h0", LOCAL, expires_at=None)
    await cache.put("new", LOCAL, expires_at=None)
    assert [cache.get(hashed) is None for hashed in ("h0", "h1", "h2", "new")] == [False, True, False, False]


async def test_a_folder_that_cannot_be_written_to_keeps_nobody_out(tmp_path: Path) -> None:
    async with await Store.open(tmp_path) as store:
        _, secret = await store.keys.create("ann")
        auth = asking(store, Clock(), tmp_path / "nowhere")
        assert (await auth.identify(bearer(secret))).owner == "ann"
