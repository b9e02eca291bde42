"""A hub: its parts while it is open, and how a new configuration takes the place of the old one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Router
from starlette.types import ASGIApp

from dragoman.accounts.meter import Meter
from dragoman.accounts.spool import Spool
from dragoman.config import Config
from dragoman.errors import ConfigError, NotFound
from dragoman.providers.tracing import Tracing
from dragoman.runs.board import Board
from dragoman.runs.metered import Till
from dragoman.runs.run import RunSettings
from dragoman.server.app.fleet import Fleet
from dragoman.server.app.ground import Ground, Place
from dragoman.server.app.setting import Setting, shown
from dragoman.server.auth import Auth
from dragoman.server.chat import Chat, ChatSettings
from dragoman.server.doors import Rooms, make_router
from dragoman.server.gateway import Gateway, GatewaySettings
from dragoman.server.health import Health
from dragoman.server.metrics import Metrics, Watched
from dragoman.server.operations import Operations
from dragoman.server.reference import Reference
from dragoman.server.requests import access
from dragoman.server.sessions import Sessions
from dragoman.server.usage import Usage

log = logging.getLogger(__name__)
SPOOL = "usage.spool"
EXPOSED = [
    f"x-dragoman-{name}" for name in ("session", "run", "request-id", "model", "cost", "dropped", "estimated")
]


class Hub:
    """A hub while it is open. `async with Hub.open(...) as hub`, then serve `hub.app`."""

    def __init__(self, ground: Ground, config: Config, *, setting: Setting, metrics: Metrics) -> None:
        self.store = ground.store
        self.meter = Meter(
            ground.store,
            setting.prices,
            spool=Spool(ground.place.data / SPOOL, max_bytes=config.limits.spool),
            limits=setting.limits,
        )
        self.meter.observers += [metrics.note, access]
        self.gateway = Gateway(
            setting.book,
            self.meter,
            tracing=ground.tracing,
            metrics=metrics,
            settings=GatewaySettings(body=config.limits.gateway_body, keep_alive=config.keep_alive),
        )
        self.runs = Board(
            ground.store,
            setting.roster,
            toolbox=ground.toolbox,
            till=Till(meter=self.meter, price=setting.price),
            settings=RunSettings(grace=config.grace, tracing=ground.tracing),
        )
        metrics.watched = Watched(
            cooldowns=self.cooldowns,
            runs=lambda: self.runs.count,
            spool=lambda: self.meter.ledger.spool.rows,
            database=lambda: self.store.database.up,
        )
        self.metrics = metrics
        self.app = app_of(config, self, ground=ground)
        self._ground = ground
        self._setting = setting
        self._retiring: list[Fleet] = []
        self._chores: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        config: Config,
        data: Path,
        *,
        keys: bool = True,
        environ: Mapping[str, str] | None = None,
        secrets: set[str] | None = None,
        tracing: Tracing | None = None,
    ) -> AsyncIterator[Hub]:
        """A hub with its data in `data`; `keys` False lets everybody in as the owner `local`.

        `secrets` is told what must never be shown, also after a reload: for whoever writes logs. `tracing`
        takes the place of what the configuration says of it.
        """
        async with AsyncExitStack() as stack:
            place = Place(data, environ or {}, keys, set() if secrets is None else secrets, tracing)
            ground = await Ground.lay(config, place, stack=stack)
            metrics = Metrics(known=shown(config))
            setting = await settle(config, ground, metrics=metrics)
            hub = cls(ground, config, setting=setting, metrics=metrics)
            stack.push_async_callback(hub.close)
            await stack.enter_async_context(hub.meter)
            stack.push_async_callback(hub.runs.close)
            hub.warm()
            yield hub

    async def reload(self, config: Config) -> None:
        """Go by another configuration from now on; what is under way goes on by the old one.

        ConfigError leaves everything as it is. Operations, sizes of bodies and where the data lies stay as
        they were at the start.
        """
        setting = await settle(config, self._ground, metrics=self.metrics)
        old, self._setting = self._setting, setting
        self.meter.replace(setting.limits, setting.prices)
        self.gateway.book = setting.book
        self.runs.roster = setting.roster
        self.runs.till = Till(meter=self.meter, price=setting.price)
        self.warm()
        self._retiring.append(old.fleet)
        self._later(self._retire(old.fleet))

    async def drain(self, seconds: float) -> None:
        """Take nothing new; what is under way gets so many seconds to end by itself."""
        await asyncio.gather(self.gateway.drain(seconds), self.runs.drain(seconds))

    async def close(self) -> None:
        """Close all providers, those of earlier configurations too."""
        for chore in list(self._chores):
            chore.cancel()
        for fleet in (*self._retiring, self._setting.fleet):
            await fleet.close()

    def warm(self) -> None:
        """Load the price list in the background, so that the first request does not wait for it."""
        self._later(self._setting.prices.warm())

    async def _retire(self, fleet: Fleet) -> None:
        try:
            await fleet.retire()
        finally:
            self._retiring.remove(fleet)

    def _later(self, chore: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    def cooldowns(self) -> Mapping[str, int]:
        """How many keys of each provider rest."""
        rings = {name: provider.keys for name, provider in self._setting.fleet.remote().items()}
        return {name: ring.resting for name, ring in rings.items()}


async def settle(config: Config, ground: Ground, *, metrics: Metrics) -> Setting:
    """The setting of a configuration. ConfigError when an agent pins what there is not."""
    secrets = await ground.secrets(config)
    setting = Setting.of(config, ground.place.environ, secrets=secrets, fell=metrics.fell_back)
    for name, agent in setting.roster.agents.items():
        try:
            ground.toolbox(agent.operations, agent.client_tools)
        except NotFound as error:
            said = f"the agent {name!r} pins an operation: {error.message}"
            raise ConfigError(said, hint=error.hint) from None
    for provider in setting.fleet.remote().values():
        ground.place.secrets.update(provider.keys.secrets, provider.server.secrets)
        provider.on_retry = metrics.retried
        provider.on_failure = metrics.failed
    return setting


def app_of(config: Config, hub: Hub, *, ground: Ground) -> ASGIApp:
    """The doors of a hub."""
    settings = ChatSettings(body=config.limits.body, part=config.limits.part, keep_alive=config.keep_alive)
    rooms = Rooms(
        chat=Chat(hub.runs, hub.store, settings=settings),
        sessions=Sessions(hub.runs, hub.store),
        operations=Operations(ground.registry, ground.calls, meta=ground.meta),
        gateway=hub.gateway,
        usage=Usage(hub.store, catch_up=hub.meter.ledger.catch_up),
        metrics=hub.metrics,
        health=Health(hub.store, spool=hub.meter.ledger.spool, is_draining=lambda: hub.gateway.draining),
        reference=Reference(),
    )
    auth = Auth(hub.store.keys, required=ground.place.keys, folder=ground.place.data)
    app = make_router(rooms, auth, open_metrics=config.metrics.public)
    if not config.cors.origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=config.cors.origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=EXPOSED,
    )


def build_app(
    config: Config, data: Path, *, keys: bool = True, environ: Mapping[str, str] | None = None
) -> ASGIApp:
    """An ASGI app that opens its hub at start-up: for `uvicorn --factory` and other servers."""
    held: list[ASGIApp] = []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with Hub.open(config, data, keys=keys, environ=environ) as hub:
            held.append(hub.app)
            yield
            held.clear()

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        await held[0](scope, receive, send)

    return Router(lifespan=lifespan, default=inside)
