"""A hub: its parts while it is open, and how a new configuration takes the place of the old one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from starlette.routing import Router
from starlette.types import ASGIApp

from dragoman.accounts.meter import Meter
from dragoman.accounts.spool import Spool
from dragoman.agent.subagent import NAMESPACE
from dragoman.config import Config
from dragoman.errors import ConfigError, NotFound, RunActive, Unavailable
from dragoman.mcp.server.server import McpServer
from dragoman.operations.approval import Approval
from dragoman.operations.identity import Identity
from dragoman.runs.board import Board
from dragoman.runs.delegation import Delegation
from dragoman.runs.metered import Till
from dragoman.runs.run import RunSettings
from dragoman.server.app.agents import Delegates
from dragoman.server.app.chores import Heed, background, tidy
from dragoman.server.app.fleet import Fleet
from dragoman.server.app.front import Front
from dragoman.server.app.ground import Ground, Place
from dragoman.server.app.outside import Outside
from dragoman.server.app.setting import Setting, shown
from dragoman.server.app.tools import policy_of
from dragoman.server.gateway.doors import Gateway, GatewaySettings
from dragoman.server.metrics import Metrics, Watched
from dragoman.server.requests import access
from dragoman.server.version import version
from dragoman.tracing.tracing import Tracing

log = logging.getLogger(__name__)
SPOOL = "usage.spool"


class Hub:
    """A hub while it is open. `async with Hub.open(...) as hub`, then serve `hub.app`."""

    def __init__(
        self, ground: Ground, config: Config, *, setting: Setting, outside: Outside, metrics: Metrics
    ) -> None:
        self.store = ground.store
        self.outside = outside
        self.meter = meter_of(config, ground, setting=setting)
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
            settings=RunSettings(
                grace=config.grace, tracing=ground.tracing, hooks=ground.hooks.loop if ground.hooks else None
            ),
        )
        self._delegates = Delegates(ground.registry, Delegation(self.runs))
        self._delegates.put(self._delegates.made(setting.roster.agents))
        metrics.watched = Watched(
            cooldowns=self.cooldowns,
            runs=lambda: self.runs.count,
            spool=lambda: self.meter.ledger.spool.rows,
            database=lambda: self.store.database.up,
        )
        self.metrics = metrics
        self.mcp = mcp_of(config, ground)
        self.front = Front(config, self, ground=ground)
        self.app = self.front.app
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
            outside = Outside(config, ground.registry, store=ground.store, place=ground.place)
            await stack.enter_async_context(outside)
            metrics = Metrics(known=shown(config))
            setting = await settle(config, ground, metrics=metrics)
            hub = cls(ground, config, setting=setting, outside=outside, metrics=metrics)
            stack.push_async_callback(hub.close)
            await stack.enter_async_context(hub.meter)
            stack.push_async_callback(hub.end)
            hub.warm()
            stack.enter_context(background(tidy(ground.store, config.limits.keep_days)))
            heed = Heed(ground.store, hub.runs.go_on, consent=ground.calls.consent)
            stack.enter_context(background(heed.run()))
            yield hub

    async def reload(self, config: Config) -> None:
        """Go by another configuration from now on; what is under way goes on by the old one.

        ConfigError leaves everything as it is. Operations, sizes of bodies and where the data lies stay as
        they were at the start.
        """
        setting = await settle(config, self._ground, metrics=self.metrics)
        delegates = self._delegates.made(setting.roster.agents)
        self._ground.calls.guard.policy = policy_of(config)
        await self.outside.reload(config)
        if self.store.database.up:
            await self.meter.ledger.catch_up()  # a budget that is new counts what was spent before it
        old, self._setting = self._setting, setting
        self.meter.replace(setting.limits, setting.prices)
        self.gateway.book = setting.book
        self.runs.roster = setting.roster
        self._delegates.put(delegates)
        self.runs.till = Till(meter=self.meter, price=setting.price)
        self.warm()
        self._retiring.append(old.fleet)
        self._later(self._retire(old.fleet))

    async def abort(self, id: str) -> bool:
        """Stop a run, or a call that is under way, with all below it; False when there is none."""
        run = self.runs.find(id)
        if run is not None:
            await self.runs.stop(run.row.session_id, "stopped by the user")
            return True
        return self._ground.calls.abort(id, "stopped by the user")

    async def answer(self, id: str, *, approved: bool, by: Identity, reason: str | None = None) -> Approval:
        """Answer a request for approval; an answer of a session that waited for it goes on."""
        found = await self._ground.calls.answer(id, approved=approved, by=by, reason=reason)
        with suppress(RunActive, Unavailable):  # it is tried again soon
            await self.runs.go_on(found)
        return found

    async def drain(self, seconds: float) -> None:
        """Take nothing new; what is under way gets so many seconds to end by itself."""
        await asyncio.gather(self.gateway.drain(seconds), self.runs.drain(seconds), self.front.drain(seconds))

    async def end(self) -> None:
        """End what is open: runs, sessions of MCP clients, spokes. All are told."""
        await asyncio.gather(self.runs.close(), self.front.close())
        await self.outside.switchboard.close()

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
        for id in agent.operations:
            check_pin(id, name, config=config, ground=ground)
    for provider in setting.fleet.remote().values():
        ground.place.secrets.update(provider.keys.secrets, provider.server.secrets)
        provider.on_retry = metrics.retried
        provider.on_failure = metrics.failed
    return setting


def check_pin(id: str, agent: str, *, config: Config, ground: Ground) -> None:
    """ConfigError when there is no such operation, and nobody is known who may bring it later."""
    namespace, _, name = id.partition(".")
    if namespace in {*config.mcp_servers, *config.spokes.reserved}:
        return
    if namespace == NAMESPACE and name in config.agents:
        if config.agents[name].description is None:
            raise ConfigError(
                f"the agent {agent!r} pins {id}, which has no description",
                hint=f"agents.{name}.description says what others may call it for",
            )
        return
    try:
        ground.registry.get(id)
    except NotFound as error:
        said = f"the agent {agent!r} pins an operation: {error.message}"
        raise ConfigError(said, hint=error.hint) from None


def meter_of(config: Config, ground: Ground, *, setting: Setting) -> Meter:
    """What counts usage and money."""
    spool = Spool(ground.place.data / SPOOL, max_bytes=config.limits.spool)
    return Meter(ground.store, setting.prices, spool=spool, limits=setting.limits)


def mcp_of(config: Config, ground: Ground) -> McpServer:
    """The hub as an MCP server."""
    return McpServer(
        ground.meta,
        ground.calls,
        registry=ground.registry,
        pinned=config.mcp.pinned,
        version=version(),
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
