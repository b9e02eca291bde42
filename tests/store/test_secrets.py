"""Secrets: encrypted at rest, decrypted with their master key only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dragoman.errors import BadRequest, ConfigError, NotFound, StoreError
from dragoman.store.encryption import MasterKey, read_key_file
from dragoman.store.secrets import Secret
from dragoman.store.store import Store
from tests.store.conftest import Clock
from tests.store.places import Place

VALUE = "sk-live-0123456789-ä"
MASTER, OTHER = MasterKey.generate(), MasterKey.generate()


async def opened(place: Place, clock: Clock, *, master: MasterKey | None = MASTER) -> Store:
    return await place.open(clock=clock, master_key=master)


def change(place: Place, sql: str) -> None:
    if place.backend == "postgres":
        sql = re.sub(r"zeroblob\((.+)\)", r"decode(repeat('00', \1), 'hex')", sql)
    place.query(sql)


async def test_a_secret_is_read_again_and_replaced(place: Place, clock: Clock) -> None:
    async with await opened(place, clock) as store:
        await store.secrets.put("openai", VALUE)
        assert await store.secrets.get("openai") == VALUE
        clock.now += 5
        await store.secrets.put("openai", "another")
        assert await store.secrets.get("openai") == "another"
        dates = {"created_at": 1_000.0, "updated_at": 1_005.0}
        assert await store.secrets.list() == [Secret(name="openai", key_id=MASTER.fingerprint, **dates)]
        assert await store.secrets.delete("openai") is True
        assert await store.secrets.delete("openai") is False
        with pytest.raises(NotFound, match="openai"):
            await store.secrets.get("openai")


async def test_a_value_is_neither_in_the_files_nor_in_what_is_shown(place: Place, clock: Clock) -> None:
    async with await opened(place, clock) as store:
        await store.secrets.put("openai", VALUE)
        assert VALUE not in repr(await store.secrets.list())
        content = b"".join(path.read_bytes() for path in place.folder.iterdir())
    assert VALUE.encode() not in content
    assert MASTER.to_text().encode() not in content


def test_the_same_value_is_sealed_differently_each_time() -> None:
    first, second = MASTER.encrypt("a", VALUE), MASTER.encrypt("a", VALUE)
    assert first.nonce != second.nonce
    assert first.ciphertext != second.ciphertext


async def test_another_master_key_is_told_what_to_do(place: Place, clock: Clock) -> None:
    async with await opened(place, clock) as store:
        await store.secrets.put("openai", VALUE)
    async with await opened(place, clock, master=OTHER) as store:
        with pytest.raises(ConfigError, match=f"{MASTER.fingerprint}.*{OTHER.fingerprint}") as refused:
            await store.secrets.get("openai")
        assert "DRAGOMAN_MASTER_KEY" in str(refused.value.hint)
    async with await opened(place, clock, master=None) as store:
        assert len(await store.secrets.list()) == 1
        with pytest.raises(ConfigError, match="none is set"):
            await store.secrets.get("openai")
        with pytest.raises(ConfigError, match="none is set"):
            await store.secrets.put("openai", VALUE)


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE secrets SET ciphertext = zeroblob(length(ciphertext))",
        "UPDATE secrets SET nonce = zeroblob(12)",
        "UPDATE secrets SET (nonce, ciphertext) = (SELECT nonce, ciphertext FROM secrets WHERE name = 'b')",
    ],
)
async def test_a_row_that_was_changed_or_exchanged_is_noticed(place: Place, clock: Clock, harm: str) -> None:
    async with await opened(place, clock) as store:
        await store.secrets.put("a", VALUE)
        await store.secrets.put("b", "worse")
        change(place, f"{harm} WHERE name = 'a'")
        with pytest.raises(StoreError, match="'a' is damaged"):
            await store.secrets.get("a")
        with pytest.raises(StoreError, match="'a' is damaged"):
            await store.secrets.rotate(OTHER)
        assert await store.secrets.get("b") == "worse"


async def test_rotation_seals_everything_anew(place: Place, clock: Clock) -> None:
    async with await opened(place, clock) as store:
        await store.secrets.put("a", VALUE)
        await store.secrets.put("b", "worse")
        assert await store.secrets.rotate(OTHER) == 2
        assert await store.secrets.get("a") == VALUE
        assert {secret.key_id for secret in await store.secrets.list()} == {OTHER.fingerprint}
    async with await opened(place, clock, master=OTHER) as store:
        assert [await store.secrets.get(name) for name in "ab"] == [VALUE, "worse"]


@pytest.mark.parametrize("name", ["", "a b", "-a", "../a", "a" * 101, "ä", "a\n"])
async def test_a_name_that_cannot_be_typed_is_refused(place: Place, clock: Clock, name: str) -> None:
    async with await opened(place, clock) as store:
        with pytest.raises(BadRequest):
            await store.secrets.put(name, VALUE)


def test_a_master_key_is_base64_of_any_alphabet_also_in_a_file(tmp_path: Path) -> None:
    file, text = tmp_path / "master", MASTER.to_text()
    file.write_text(f"{text}\n")
    urlsafe = text.replace("+", "-").replace("/", "_").rstrip("=")
    keys = (MasterKey.from_text(text), MasterKey.from_text(f" {urlsafe}\n"), read_key_file(file))
    assert [key.to_text() for key in keys] == [text] * 3


def test_a_master_key_that_cannot_be_is_refused_without_being_shown(tmp_path: Path) -> None:
    binary, wrong = tmp_path / "binary", tmp_path / "wrong"
    binary.write_bytes(b"\xff" * 32)
    wrong.write_text("no base64: hunter2")
    for path in (binary, wrong, tmp_path / "nowhere"):
        with pytest.raises(ConfigError) as refused:
            read_key_file(path)
        assert "hunter2" not in f"{refused.value.message} {refused.value.hint}"
    with pytest.raises(ConfigError) as refused:
        MasterKey.from_text("hunter2hunter2")
    assert "hunter2" not in f"{refused.value.message} {refused.value.hint}"


def test_no_repr_shows_a_master_key() -> None:
    shown = f"{MASTER!r} {MASTER} {[MASTER]} {vars(type(MASTER))}"
    assert MASTER.to_text() not in shown
    assert repr(MASTER) == f"MasterKey({MASTER.fingerprint})"
