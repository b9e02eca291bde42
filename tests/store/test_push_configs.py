"""Receivers of the states of tasks: encrypted, taken by one host, encrypted anew with the secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.errors import A2aError
from dragoman.store.encryption import MasterKey
from dragoman.store.push_configs import LEASE, PushConfig
from tests.store.conftest import Clock
from tests.store.places import Place
from tests.store.samples import converse

MASTER, OTHER = MasterKey.generate(), MasterKey.generate()
LIMITS = {"per_task": 2, "per_owner": 2}


def receiver(id: str = "one", body: str = '{"token": "hush"}') -> PushConfig:
    return PushConfig(
        task_id="s-r1",
        id=id,
        session_id="s",
        message_id="a1",
        owner="ann",
        agent="default",
        body=body,
        created_at=1.0,
    )


async def test_a_delivery_is_taken_once_until_its_lease_is_over(place: Place, clock: Clock) -> None:
    async with await place.open(clock=clock, master_key=MASTER) as store:
        await converse(store, "a", "b")
        await store.push_configs.put(receiver(), **LIMITS)
        [due] = await store.push_configs.take_due()
        assert (due.config.body, due.run_id) == ('{"token": "hush"}', "s-r1")
        assert "hush" not in str(place.query("SELECT * FROM push_configs"))
        assert await store.push_configs.take_due() == []
        clock.now += LEASE + 1
        assert len(await store.push_configs.take_due()) == 1


async def test_a_clock_that_was_set_back_delays_no_delivery(place: Place, clock: Clock) -> None:
    async with await place.open(clock=clock, master_key=MASTER) as store:
        await converse(store, "a", "b")
        await store.push_configs.put(receiver(), **LIMITS)
        clock.now += 31_536_000.0
        assert len(await store.push_configs.take_due()) == 1
        clock.now -= 31_536_000.0
        assert len(await store.push_configs.take_due()) == 1
        assert await store.push_configs.take_due() == []


async def test_so_many_receivers_a_task_has(place: Place, clock: Clock) -> None:
    async with await place.open(clock=clock) as store:
        await converse(store, "a", "b")
        for id in ("one", "two", "one"):
            await store.push_configs.put(receiver(id), **LIMITS)
        with pytest.raises(A2aError, match="at most 2"):
            await store.push_configs.put(receiver("three"), **LIMITS)
        assert [each.id for each in await store.push_configs.list("s-r1")] == ["one", "two"]
        assert await store.push_configs.delete("s-r1", "two")
        assert not await store.push_configs.delete("s-r1", "two")


async def test_rotation_of_the_secrets_encrypts_receivers_anew(place: Place, clock: Clock) -> None:
    async with await place.open(clock=clock, master_key=MASTER) as store:
        await converse(store, "a", "b")
        await store.push_configs.put(receiver(), **LIMITS)
        before = place.query("SELECT body FROM push_configs")
        await store.secrets.rotate(OTHER)
        is_of_master = place.backend == "postgres"  # a folder of its own has a key of its own
        assert (place.query("SELECT body FROM push_configs") != before) is is_of_master
    async with await place.open(clock=clock, master_key=OTHER) as store:
        [found] = await store.push_configs.list("s-r1")
        assert found.body == '{"token": "hush"}'


async def test_what_one_host_cannot_decrypt_is_left_to_another(
    place: Place, clock: Clock, tmp_path: Path
) -> None:
    if place.url is None:
        return
    async with await place.open(clock=clock) as first:  # its key is that of its folder
        await converse(first, "a", "b")
        await first.push_configs.put(receiver(), **LIMITS)
        async with await Place(tmp_path / "other", place.url).open(clock=clock) as second:
            assert await second.push_configs.take_due() == []
        assert len(await first.push_configs.take_due()) == 1
