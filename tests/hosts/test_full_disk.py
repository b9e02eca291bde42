"""Hosts whose Postgres has a full file system. Only root can mount a small one: a part of `make soak`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.hosts.conftest import HostCluster
from tests.hosts.test_outages import check_recovery, check_refusals
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.usefixtures("quick_ticks")
DISK_SIZE = "140m"
SETTINGS = {"min_wal_size": "32MB", "max_wal_size": "48MB"}


async def test_a_file_system_without_space_refuses_writes_and_kills_no_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk() as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        server = PostgresServer(SETTINGS)
        monkeypatch.undo()
        try:
            async with AsyncExitStack() as stack:
                hosts = HostCluster(tmp_path, server.url(), stack)
                first, second = await hosts.open(2)
                await first.chat("hello")
                with filled(disk):
                    await check_refusals(first, second)
                await check_recovery(hosts)
        finally:
            server.close()


@contextmanager
def small_disk() -> Iterator[Path]:
    """A file system of `DISK_SIZE`."""
    folder = Path(tempfile.mkdtemp(prefix="dragoman-disk-"))
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE},mode=777", "tmpfs", str(folder)], check=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Take all the space that a file system has left."""
    ballast = disk / "ballast"
    file = os.open(ballast, os.O_CREAT | os.O_WRONLY)
    try:
        with suppress(OSError):
            while os.write(file, bytes(4_096)):
                pass
        yield
    finally:
        os.close(file)
        ballast.unlink()
