"""A model server, a hub and the real clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients import hub as hubs
from tests.clients.driver import Driver
from tests.clients.hub import Hub, StartHub
from tests.clients.upstream import Upstream


@pytest.fixture(scope="session")
def upstream() -> Iterator[Upstream]:
    """The model server that every hub of these tests asks."""
    server = Upstream()
    yield server
    server.close()


@pytest.fixture(scope="session")
def start_hub(
    upstream: Upstream, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[StartHub]:
    """Starts hubs: `start_hub(model="up/plain", keyless=False, **more_configuration)`.

    With `--hosts N` each is N processes on one Postgres, behind a proxy that gives each request to the next.
    """
    running: list[Hub] = []
    count: int = pytestconfig.getoption("--hosts")

    def begin(*, model: str = "up/any-model", keyless: bool = False, **more: Any) -> Hub:
        up = {"type": "openai", "base_url": upstream.url, "api_key_env": "UP_KEY"}
        config = {"providers": {"up": up}, "model": model, **more}
        folder = tmp_path_factory.mktemp("hub")
        if count > 1:
            from tests.hosts.cluster import (
                start_cluster,
            )  # late: imports a driver that most tests do not need

            hub: Hub = start_cluster(folder, config, count=count, keyless=keyless)
        else:
            hub = hubs.start(folder, config, keyless=keyless)
        running.append(hub)
        return hub

    yield begin
    for hub in running:
        hub.stop()


@pytest.fixture(scope="session")
def hub(start_hub: StartHub) -> Hub:
    """The hub that the tests share: each has a session of its own there."""
    return start_hub()


@pytest.fixture(params=["7", "6"], ids=["sdk7", "sdk6"])
def sdk(request: pytest.FixtureRequest) -> str:
    """The version of the AI SDK."""
    version: str = request.param
    return version


@pytest.fixture
def drive(hub: Hub, sdk: str) -> Driver:
    """Plays scenarios against the shared hub."""
    return Driver(sdk, hub)
