"""The connection for signals carries nothing any more and is not closed, as behind a firewall."""

from __future__ import annotations

import pytest

from dragoman.store.postgres import connection_watch, signal_connection
from tests.hosts.conftest import HostCluster
from tests.hosts.postgres_proxy import PostgresProxy
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("quick_ticks", "quick_watch")


@pytest.fixture
def quick_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without an answer are looked up, and tried, several times a second."""
    monkeypatch.setattr(connection_watch, "SILENT", 0.3)
    monkeypatch.setattr(signal_connection, "CHECK_INTERVAL", 0.1)


@pytest.mark.parametrize("is_sending", [True, False])
async def test_a_host_whose_signals_are_not_carried_any_more_looks_and_hears_again(
    hosts: HostCluster, proxy: PostgresProxy, is_sending: bool
) -> None:
    [silent] = await hosts.open(1, database=proxy.url)
    [other] = await hosts.open(1)
    heard: list[str | None] = []
    silent.hub.store.signals.subscribe("policy", heard.append)

    def is_heard(id: str) -> bool:
        other.hub.store.signals.send("policy", id)
        return id in heard

    await until(lambda: is_heard("before"))
    heard.clear()
    await until(lambda: proxy.stall("signals"))  # on a busy machine it may just be replaced
    if is_sending:
        silent.hub.store.signals.send("policy", "lost")
    await until(lambda: None in heard)
    await until(lambda: is_heard("after"))
