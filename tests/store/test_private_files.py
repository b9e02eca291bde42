"""Permissions of the data folder and of the hub's files in it."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.accounts.spool import Spool
from dragoman.store.store import Store


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """A umask that lets everybody read: what is private must not depend on it."""
    before = os.umask(0)
    yield
    os.umask(before)


async def test_a_new_data_folder_and_its_files_are_for_their_user_only(tmp_path: Path) -> None:
    data = tmp_path / "new" / "data"
    async with await Store.open(data) as store:
        await store.keys.create("ann")
        found = {path.name: mode(path) for path in data.iterdir()}
    assert mode(data) == 0o700
    assert {"hub.db", "hub.db-wal", "hub.db-shm", "hub.lock"} <= found.keys()
    assert set(found.values()) == {0o600}


async def test_an_existing_folder_is_tightened_with_one_log_line_and_other_files_are_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    async with await Store.open(data):
        pass
    (data / "usage.spool").write_bytes(b"")
    (data / "notes.txt").write_text("mine")
    (data / "hub.db-link").symlink_to(data / "notes.txt")
    data.chmod(0o755)
    for path in data.iterdir():
        path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        async with await Store.open(data):
            pass
        async with await Store.open(data):
            pass
    assert len([line for line in caplog.messages if "permissions were removed" in line]) == 1
    assert mode(data) == 0o700
    assert mode(data / "notes.txt") == 0o644
    assert {mode(data / name) for name in ("hub.db", "hub.lock", "usage.spool")} == {0o600}


async def test_the_spool_is_for_its_user_only(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "usage.spool", max_bytes=1_000_000)
    spool._file.append([b"{}\n"])
    assert mode(tmp_path / "usage.spool") == 0o600
