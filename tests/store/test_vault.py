"""Vaults: encrypted, apart by team and owner, and managed entries are the operator's."""

from __future__ import annotations

import pytest

from dragoman.errors import ConfigError, Conflict, Forbidden, NotFound
from dragoman.store.encryption import MasterKey
from dragoman.store.teams import vault as module
from dragoman.store.teams.vault import OPERATOR, VaultEntry
from tests.store.conftest import Clock
from tests.store.places import Place

VALUE, OTHER = "tok-live-0123456789-ä", "another-value"
MASTER, NEW = MasterKey.generate(), MasterKey.generate()


def entry(name: str, *, team: str = "press", owner: str = "ann", plain: bool = False) -> VaultEntry:
    return VaultEntry(team=team, owner=owner, name=name, receivers=("web.fetch",), plain=plain)


async def test_entries_are_read_by_their_team_and_owner_only(place: Place, clock: Clock) -> None:
    async with await place.open(clock=clock, master_key=MASTER) as store:
        own = await store.vault.put(entry("github"), VALUE)
        managed = await store.vault.put(entry("npm", owner=OPERATOR, plain=True), OTHER)
        assert await store.vault.list("press", "ann") == [own, managed]
        assert await store.vault.list("press", "bob") == [managed]
        assert await store.vault.list("desk", "ann") == []
        values = {each.name: value for each, value in await store.vault.read("press", "ann")}
        assert values == {"github": VALUE, "npm": OTHER}
        assert await store.vault.teams() == {"press"}


async def test_a_managed_entry_is_neither_replaced_nor_deleted_by_a_team(place: Place, clock: Clock) -> None:
    async with await place.open(clock=clock, master_key=MASTER) as store:
        await store.vault.put(entry("npm", owner=OPERATOR), VALUE)
        with pytest.raises(Forbidden, match="managed by the operator"):
            await store.vault.put(entry("npm"), OTHER)
        with pytest.raises(Forbidden, match="managed by the operator"):
            await store.vault.delete("press", "ann", name="npm")
        assert [value for _, value in await store.vault.read("press", "ann")] == [VALUE]
        await store.vault.delete("press", OPERATOR, name="npm")
        with pytest.raises(NotFound):
            await store.vault.delete("press", "ann", name="npm")


async def test_values_are_in_no_file_and_rotate_with_the_secrets(place: Place, clock: Clock) -> None:
    async with await place.open(clock=clock, master_key=MASTER) as store:
        await store.secrets.put("openai", VALUE)
        await store.vault.put(entry("github"), VALUE)
        content = b"".join(path.read_bytes() for path in place.folder.iterdir() if path.is_file())
        assert VALUE.encode() not in content
        assert VALUE not in repr(await store.vault.list("press", "ann"))
        assert await store.secrets.rotate(NEW) == 2
    async with await place.open(clock=clock, master_key=NEW) as store:
        ((found, value),) = await store.vault.read("press", "ann")
        assert (found.key_id, value) == (NEW.fingerprint, VALUE)
    async with await place.open(clock=clock, master_key=MASTER) as store:
        with pytest.raises(ConfigError, match=NEW.fingerprint):
            await store.vault.read("press", "ann")


async def test_a_row_under_another_name_cannot_be_read(place: Place, clock: Clock) -> None:
    async with await place.open(clock=clock, master_key=MASTER) as store:
        await store.vault.put(entry("github"), VALUE)
    place.query("UPDATE vault_entries SET team = 'desk'")
    async with await place.open(clock=clock, master_key=MASTER) as store:
        with pytest.raises(Exception, match="damaged"):
            await store.vault.read("desk", "ann")


async def test_without_a_master_key_entries_are_listed_only(
    place: Place, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await place.open(clock=clock) as store:
        assert await store.vault.read("press", "ann") == []
        with pytest.raises(ConfigError, match="needs a master key"):
            await store.vault.put(entry("github"), VALUE)
    monkeypatch.setattr(module, "MAX_ENTRIES", 1)
    async with await place.open(clock=clock, master_key=MASTER) as store:
        await store.vault.put(entry("github"), VALUE)
        await store.vault.put(entry("github"), OTHER)
        with pytest.raises(Conflict, match="has 1 entries"):
            await store.vault.put(entry("npm"), VALUE)
