"""The ground that a hub stands on: what a reload of its configuration leaves as it is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from dragoman.agent.hooks.hooks import Hooks
from dragoman.agent.toolbox import Toolbox, found
from dragoman.config import Config, master_key
from dragoman.errors import DragomanError, NotFound, StoreError, Unavailable
from dragoman.http.transport import Transport
from dragoman.operations.call import Calls, CallSettings
from dragoman.operations.context import Context
from dragoman.operations.meta import Meta
from dragoman.operations.permission.guard import Guard
from dragoman.operations.registry import Registry
from dragoman.operations.spill import Spill
from dragoman.request import Tool
from dragoman.runs.recovery import recover
from dragoman.server.app.chores import background
from dragoman.server.app.fleet import secret_names
from dragoman.server.app.hooks import hooks_of
from dragoman.server.app.tools import policy_of, registry_of, search_of
from dragoman.server.version import version
from dragoman.store.sealing import MasterKey
from dragoman.store.store import Store
from dragoman.tracing.telemetry import open_tracing
from dragoman.tracing.tracing import OFF, Telemetry, Tracing

log = logging.getLogger(__name__)
ARRIVAL = 5.0


class Place(msgspec.Struct, frozen=True):
    """Where a hub is. `keys`: whether callers need one; `secrets` is told what must never be shown."""

    data: Path
    environ: Mapping[str, str]
    keys: bool
    secrets: set[str]
    tracing: Tracing | None = None

    def __repr__(self) -> str:
        return f"Place({str(self.data)!r})"


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """The store and the operations, and where everything is."""

    place: Place
    store: Store
    registry: Registry
    calls: Calls
    meta: Meta
    tracing: Tracing
    hooks: Hooks

    @classmethod
    async def lay(cls, config: Config, place: Place, *, stack: AsyncExitStack) -> Ground:
        """Open what there is; the stack closes it."""
        tracing = place.tracing or tracing_of(config, place.secrets)
        stack.push_async_callback(tracing.close)
        store = await Store.open(
            place.data,
            synchronous=config.synchronous,
            patient=True,
            master=master_of(config, place.environ),
        )
        await stack.enter_async_context(store)
        await tidy(store)
        registry = registry_of(config, store.artifacts, history=store.history)
        hooks = opened_hooks(config, place, stack=stack)
        settings = CallSettings(
            threads=config.limits.threads,
            tracer=traced(tracing),
            repeats=config.limits.repeats,
            hooks=hooks.calls if hooks else None,
        )
        calls = calls_of(config, store, registry=registry, settings=settings)
        await stack.enter_async_context(calls)
        search, meanings = search_of(config, registry)
        if meanings is not None:
            stack.enter_context(background(meanings.keep_up()))
        return cls(
            place=place,
            store=store,
            registry=registry,
            calls=calls,
            meta=Meta(registry, calls, search=search),
            tracing=tracing,
            hooks=hooks,
        )

    async def toolbox(self, pinned: Sequence[str], client: Sequence[Tool], *, context: Context) -> Toolbox:
        """What an agent's model can call for whom the context names.

        What is pinned and on its way, as while an MCP server starts, is waited for: ARRIVAL seconds at most.
        """
        by = asyncio.get_running_loop().time() + ARRIVAL
        await self.calls.arrived(pinned, msgspec.structs.replace(context, deadline=by))
        there = [operation for id in pinned if (operation := found(self.registry, id)) is not None]
        shown = [operation.id for operation in there if self.calls.is_visible(operation, context)]
        return Toolbox(self.calls, self.meta, registry=self.registry, pinned=shown, client=client)

    def source(self, operation: str) -> str | None:
        """Where an operation comes from; None when it is gone."""
        try:
            return self.registry.get(operation).source
        except NotFound:
            return None

    async def secrets(self, config: Config) -> Mapping[str, str]:
        """The entries of the encrypted table that the configuration names, as far as they can be had."""
        found: dict[str, str] = {}
        for name in sorted(secret_names(config)):
            try:
                found[name] = await self.store.secrets.get(name)
            except DragomanError as error:
                log.warning("the secret %s cannot be had: %s", name, error.message)
        return found


def opened_hooks(config: Config, place: Place, *, stack: AsyncExitStack) -> Hooks:
    """The hooks of a configuration, with what those at an address are asked through."""
    transport = Transport()
    stack.push_async_callback(transport.close)
    names = [hook.secret_env for hook in config.hooks if hook.secret_env is not None]
    place.secrets.update(place.environ[name] for name in names if name in place.environ)
    hooks = hooks_of(config.hooks, environ=place.environ, transport=transport)
    stack.push_async_callback(hooks.aclose)
    return hooks


def calls_of(config: Config, store: Store, *, registry: Registry, settings: CallSettings) -> Calls:
    """What calls the operations."""
    spill = Spill(store.artifacts, limit=config.limits.result, largest=config.limits.artifact)
    return Calls(registry, store.calls, guard=guard_of(config, store), spill=spill, settings=settings)


def guard_of(config: Config, store: Store) -> Guard:
    """The policy, and where approvals are kept."""
    return Guard(policy_of(config), store.approvals, clock=time.time, seconds=config.approval_seconds)


def tracing_of(config: Config, secrets: Collection[str]) -> Tracing:
    """Tracing as it is configured. ConfigError when it is, and what it needs is not installed."""
    said = config.telemetry
    if said.otlp_endpoint is None:
        return OFF
    settings = Telemetry(
        endpoint=said.otlp_endpoint,
        service=said.service_name,
        version=version(),
        content=said.content,
        sample=said.sample,
    )
    return open_tracing(settings, secrets=secrets)


def traced(tracing: Tracing) -> Tracing | None:
    """Whoever sees each call; nobody when tracing is off."""
    return None if tracing is OFF else tracing


def master_of(config: Config, environ: Mapping[str, str]) -> MasterKey | None:
    """The key to the encrypted table, if there is one."""
    said = master_key(config, environ)
    return None if said is None else MasterKey.from_text(said)


async def tidy(store: Store) -> None:
    """Close what a crash has cut off. While the database is down this waits for the next start."""
    try:
        recovered = await recover(store)
    except (StoreError, Unavailable) as error:
        log.warning("the database is down, so the hub only relays for keys that it knows: %s", error.message)
        return
    if recovered:
        log.warning("%d runs were cut off by a crash; their messages are closed", recovered)
