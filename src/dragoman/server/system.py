"""HTTP handlers about the hub itself: its agents, its providers, and the configuration in force."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.agent.spec import AgentSpec
from dragoman.http.asgi_exchange import Exchange
from dragoman.identity import Identity
from dragoman.offload import offload_disk
from dragoman.providers.key_pool import KeyStatus
from dragoman.store.accounts.usage_series import UsagePoint, UsageSeriesRepository
from dragoman.store.retention import RetentionPeriods
from dragoman.version import version

MAX_ROWS = 1_000  # providers
WINDOW = 3_600.0  # seconds of requests that a provider's statistics cover


class ProviderStatus(msgspec.Struct, frozen=True):
    """A provider as it is now. `url` has no secrets; it is None for one without an address."""

    name: str
    family: str
    url: str | None = None
    keys: Sequence[KeyStatus] = ()


class SystemSources(msgspec.Struct, frozen=True, kw_only=True):
    """Functions by which the handlers read what is in force now, also after a reload."""

    agents: Callable[[], Mapping[str, AgentSpec]]
    providers: Callable[[], Sequence[ProviderStatus]]
    config: Callable[[], Mapping[str, Any]]
    models: Callable[[Identity], Sequence[str]]
    default_model: Callable[[], str | None]
    retention: Callable[[], RetentionPeriods]
    database: Callable[[], str | None]
    """The URL of the database; None for SQLite in the data folder."""


class SystemHandlers:
    """Handlers of `/api/agents`, `/api/models`, `/api/providers` and `/api/config`."""

    def __init__(self, sources: SystemSources, series: UsageSeriesRepository) -> None:
        self._sources = sources
        self._series = series

    async def agents(self, exchange: Exchange) -> None:
        """List the agents by name; "default" answers where no agent is named."""
        agents = self._sources.agents()
        await exchange.respond(200, {"agents": [agent_to_json(agents[name]) for name in sorted(agents)]})

    async def models(self, exchange: Exchange) -> None:
        """List the models that the caller may name in a message, and the one that answers without a name."""
        names = self._sources.models(exchange.identity)
        await exchange.respond(200, {"models": names, "default": self._sources.default_model()})

    async def providers(self, exchange: Exchange) -> None:
        """List the providers with their keys, and how their requests of the last hour went."""
        now = time.time()
        read = await self._series.read(
            "hour", ("provider",), params={"since": now - WINDOW, "until": now}, groups=MAX_ROWS, charted=1
        )
        recent = {each.group["provider"]: each.total for each in read.groups}
        providers = self._sources.providers()
        found = [provider_to_json(each, recent.get(each.name, UsagePoint())) for each in providers]
        await exchange.respond(200, {"providers": found})

    async def config(self, exchange: Exchange) -> None:
        """Return the configuration in force, without secrets."""
        summary = await offload_disk(self._sources.config)  # it checks whether files of keys exist
        await exchange.respond(200, {"version": version(), **summary})


def agent_to_json(agent: AgentSpec) -> dict[str, Any]:
    """Return an agent as the API shows it, without its instructions."""
    return {
        "name": agent.name,
        "model": agent.model,
        "description": agent.description,
        "operations": sorted(agent.operations),
        "maxSteps": agent.max_steps,
        "whenBusy": agent.when_busy,
    }


def provider_to_json(provider: ProviderStatus, recent: UsagePoint) -> dict[str, Any]:
    """Return a provider as the API shows it. Times are in seconds."""
    keys = [{"name": key.name, "busy": key.busy, "cooldown": round(key.cooldown, 1)} for key in provider.keys]
    is_down = bool(provider.keys) and all(key.cooldown > 0 for key in provider.keys)
    return {
        "name": provider.name,
        "family": provider.family,
        "url": provider.url,
        "state": "cooling-down" if is_down else "up",
        "keys": keys,
        "lastHour": {
            "requests": recent.calls,
            "failed": recent.failed,
            "errorRate": recent.failed / recent.calls if recent.calls else None,
            "firstByte": msgspec.to_builtins(recent.first_byte),
            "duration": msgspec.to_builtins(recent.duration),
        },
    }
