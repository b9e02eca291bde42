"""MCP servers that are added, approved and removed at one of several hosts with folders of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.server.app import external_operations
from dragoman.store.encryption import MasterKey
from tests.hosts.conftest import HostCluster
from tests.serving import Served
from tests.waiting import until

RAW = Path(__file__).parents[1] / "mcp" / "client" / "raw_server.py"
pytestmark = pytest.mark.usefixtures("quick_ticks")


@pytest.fixture(autouse=True)
def quick_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_operations, "FOLLOW_INTERVAL", 0.02)


def raw_server(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-S", "-E", str(RAW), str(folder / "raw.txt")]
    return {"command": command, "trust": "ask", "env": {"TOKEN": "secret-of-the-server"}}


def write_key(folder: Path, key: MasterKey) -> str:
    path = folder / "master.key"
    path.write_text(key.to_text())
    return str(path)


def state(host: Served, name: str) -> str | None:
    """The state of a server at a host; None where it is unknown."""
    return next((each.state for each in host.hub.external.servers.list() if each.name == name), None)


async def until_state(host: Served, wanted: str) -> None:
    await until(lambda: state(host, "raw") == wanted)


async def until_removed(host: Served) -> None:
    await until(lambda: state(host, "raw") is None and not operations(host))


def operations(host: Served) -> set[str]:
    return {each.id for each in host.hub._services.registry.list() if each.id.startswith("raw.")}


async def test_a_server_that_is_added_approved_and_removed_at_one_host_is_so_at_all(
    hosts: HostCluster, tmp_path: Path
) -> None:
    master = write_key(tmp_path, MasterKey.generate())
    first, second = await hosts.open(master_key_file=master)
    await first.hub.external.add("raw", raw_server(tmp_path))
    for host in (first, second):
        await until_state(host, "ready")
        assert not operations(host)
    [(body,)] = hosts.execute("SELECT body FROM mcp_servers")
    assert "secret-of-the-server" not in body
    (approved,) = await first.hub.external.servers.approve("raw", ["echo"], by="ada")
    await until(lambda: operations(second) == {f"raw.{approved}"})
    (third,) = await hosts.open(1, master_key_file=master)  # a later host, with a folder of its own
    await until(lambda: operations(third) == {f"raw.{approved}"})
    await second.hub.external.remove("raw")
    for host in (first, second, third):
        await until_removed(host)


async def test_other_hosts_are_told_of_servers_and_look_for_them_at_once(
    hosts: HostCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_operations, "FOLLOW_INTERVAL", 3_600.0)
    first, second = await hosts.open(master_key_file=write_key(tmp_path, MasterKey.generate()))
    await first.hub.external.add("raw", raw_server(tmp_path))
    await until_state(second, "ready")
    await second.hub.external.remove("raw")
    await until_removed(first)


async def test_without_a_master_key_a_host_of_another_folder_says_why_it_leaves_a_server_out(
    hosts: HostCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await hosts.open()
    await first.hub.external.add("raw", raw_server(tmp_path))
    await until(lambda: "the MCP server raw is left out" in caplog.text)
    assert "DRAGOMAN_MASTER_KEY" in caplog.text
    assert "secret-of-the-server" not in caplog.text
    assert state(second, "raw") is None


async def test_a_new_master_key_encrypts_the_servers_too(hosts: HostCluster, tmp_path: Path) -> None:
    new = MasterKey.generate()
    (host,) = await hosts.open(1, master_key_file=write_key(tmp_path, MasterKey.generate()))
    await host.hub.external.add("raw", raw_server(tmp_path))
    await host.hub.store.secrets.rotate(new)
    await hosts.close(host)
    (host,) = await hosts.open(1, master_key_file=write_key(tmp_path, new))
    [record] = await host.hub.store.mcp_servers.list()
    assert "secret-of-the-server" in record.body
