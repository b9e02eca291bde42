"""The hub that a command works on: a running one, or a data folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from dragoman.cli.hub_client.client import HubClient

T = TypeVar("T")


class HubTarget(NamedTuple):
    """A running hub and a key of it, or else a data folder, which is created if `creates` is set."""

    hub: str | None
    key: str | None
    data: Path | None = None
    creates: bool = False


@asynccontextmanager
async def connect(target: HubTarget) -> AsyncIterator[HubClient]:
    """Open a client of the hub where one is named, else of the data folder. NotFound, BadRequest."""
    if target.hub or target.data is None:
        from dragoman.cli.hub_client.client import HubClient  # late: --help needs none of these
        from dragoman.cli.options import DEFAULT_HUB  # late: as above

        async with HubClient.over_http(target.hub or DEFAULT_HUB, target.key) as client:
            yield client
        return
    # late: SQLAlchemy and the server take 0.3 s
    from dragoman.cli.hub_client.in_process import connect_to_data

    async with connect_to_data(target.data, creates=target.creates) as client:
        yield client


def run_with_client(target: HubTarget, work: Callable[[HubClient], Awaitable[T]]) -> T:
    """Run `work` with a client of the target, in an event loop of its own."""

    async def run() -> T:
        async with connect(target) as client:
            return await work(client)

    return asyncio.run(run())
