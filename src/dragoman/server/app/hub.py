"""An open hub: its parts, and how a reload replaces its configuration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from starlette.routing import Router
from starlette.types import ASGIApp

from dragoman.accounts.meter import Meter
from dragoman.accounts.payment import Billing
from dragoman.accounts.price_lookup import SELF_HOSTED_TYPES
from dragoman.accounts.spool import Spool
from dragoman.agent.subagent import NAMESPACE
from dragoman.config import Config
from dragoman.config.problems import blame_field
from dragoman.errors import ConfigError, HostFenced, NotFound, RunActive, StoreError, Unavailable
from dragoman.identity import Identity
from dragoman.mcp.server.server import McpServer
from dragoman.operations.approval import ApprovalRequest
from dragoman.operations.meta_tools import META_TOOLS_BY_ID
from dragoman.runs.agent_operations import AgentOperations
from dragoman.runs.crash_recovery import CutOffRuns
from dragoman.runs.registry import RunRegistry
from dragoman.runs.takeover import HostTakeover
from dragoman.server.accounts.key_monitor import KeyMonitor
from dragoman.server.app.background_jobs import (
    ApprovalResumer,
    BackgroundJob,
    LeftoverReplay,
    RetentionPurge,
    release_lost_reservations,
    run_in_background,
)
from dragoman.server.app.callable_agents import CallableAgents
from dragoman.server.app.engines import build_queued_turns, open_engine
from dragoman.server.app.external_operations import ExternalOperations
from dragoman.server.app.internal import listen_for_hosts
from dragoman.server.app.model_setup import ModelSetup, listed_models
from dragoman.server.app.operation_setup import as_tuple, build_policy
from dragoman.server.app.policy_names import unknown_policy_names
from dragoman.server.app.providers import ProviderSet, answer_limits
from dragoman.server.app.routing.routes import HubEndpoints, HubParts
from dragoman.server.app.run_setup import build_run_factory, build_title_writer, queue_settings, remote_runs
from dragoman.server.app.runners import add_runners
from dragoman.server.app.services import HubEnvironment, HubServices, build_domain_events
from dragoman.server.app.system import system_sources
from dragoman.server.app.tasks import add_team_tasks
from dragoman.server.app.triggers import TeamTriggers
from dragoman.server.app.webhooks import build_webhook_sender
from dragoman.server.fence import FenceGate
from dragoman.server.gateway.handlers import Gateway, GatewaySettings
from dragoman.server.hosts import LocalHost
from dragoman.server.http.request_log import log_request
from dragoman.server.internal.routes import HostRoutes, health_routes
from dragoman.server.internal.runs import InternalRunHandlers
from dragoman.server.internal.spoke_operations import SpokeCallHandlers
from dragoman.server.metrics.metrics import Metrics, MetricSources
from dragoman.store.hosts.host_folder import USAGE_SPOOL
from dragoman.tracing.interface import Tracing
from dragoman.version import version

log = logging.getLogger(__name__)


class Hub:
    """An open hub. `async with Hub.open(...) as hub`, then serve `hub.app`."""

    def __init__(
        self,
        services: HubServices,
        config: Config,
        *,
        setup: ModelSetup,
        external: ExternalOperations,
        metrics: Metrics,
    ) -> None:
        self._services = services
        self._config, self._setup = config, setup
        self.store, self.external = services.store, external
        self.meter = build_meter(config, services, setup=setup)
        self.meter.observers += [metrics.count_request, log_request]
        self.gateway = Gateway(
            setup.catalog,
            self.meter,
            tracing=services.tracing,
            metrics=metrics,
            settings=gateway_settings(config),
        )
        self.engine = open_engine(config, services.store)
        self.runs = RunRegistry(
            services.store,
            build_run_factory(config, services, setup=setup, meter=self.meter),
            cut_off=CutOffRuns(self.engine, services.cut_off, services.wait_for_operations),
            queue=queue_settings(config),
        )
        self.runs.remote = remote_runs(self.runs, services)
        self.titles = build_title_writer(lambda: self._config, services, runs=self.runs)
        self.runners = add_runners(config, services, runs=self.runs)
        tasks = self.team_tasks = add_team_tasks(config, services, runs=self.runs)
        self.triggers = TeamTriggers(config, services, tasks=tasks, metrics=metrics, meter=self.meter)
        self.spoke_calls = share_spokes(services, self.meter)
        self.internal_runs = InternalRunHandlers(self.runs, abort_call=services.calls.abort)
        self.queued_turns = build_queued_turns(services, runs=self.runs, engine=self.engine)
        self.takeover = HostTakeover(services.store, self.engine)
        self._callable_agents = CallableAgents(services.registry, AgentOperations(self.runs))
        self._callable_agents.register(setup.agent_registry.agents, services.teams.registry)
        self.metrics, metrics.sources = metrics, self._metric_sources()
        self.host = LocalHost(services.store, on_drain=self.runs.refuse_new)
        self.retention = RetentionPurge.of(self.store, config.retention_periods, count=metrics.rows_deleted)
        self.mcp = build_mcp_server(config, services)
        self.endpoints = HubEndpoints(config, self._parts(), services=services)
        self.fence = FenceGate(self.endpoints.app)
        # Runs first: their clients get the last frames before their requests are ended.
        self.key_monitor = KeyMonitor(services.store, [self.runs.work, *self.endpoints.work])
        self._retiring: list[ProviderSet] = []
        self._tasks: set[asyncio.Task[None]] = set()
        services.teams.registry.on_change(self._update_callable_agents)

    @property
    def app(self) -> ASGIApp:
        """The hub as an ASGI app."""
        return self.endpoints.app if self.store.membership is None else self.fence

    def _metric_sources(self) -> MetricSources:
        return MetricSources(
            host=self.store.host_id,
            cooldowns=self.cooldowns,
            runs=lambda: self.runs.active_count,
            spool=lambda: self.meter.ledger.spool.row_count,
            database=lambda: self.store.database.is_up,
        )

    def _parts(self) -> HubParts:
        return HubParts(
            runs=self.runs,
            gateway=self.gateway,
            meter=self.meter,
            metrics=self.metrics,
            host=self.host,
            external=self.external,
            system=system_sources(lambda: (self._config, self._setup), services=self._services),
            mcp=self.mcp,
            runners=self.runners,
            team_tasks=self.team_tasks,
            triggers=self.triggers.service,
            abort=self.abort,
            answer_approval=self.answer_approval,
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        config: Config,
        data: Path,
        *,
        require_keys: bool = True,
        environ: Mapping[str, str] | None = None,
        secrets: set[str] | None = None,
        tracing: Tracing | None = None,
    ) -> AsyncIterator[Hub]:
        """Open a hub with its data in `data`; with `require_keys` False every caller is the owner `local`.

        `secrets` collects the values that logs must redact, also after a reload. `tracing` replaces
        the tracing of the configuration.
        """
        async with AsyncExitStack() as stack:
            environment = HubEnvironment(
                data, environ or {}, require_keys, set() if secrets is None else secrets, tracing
            )
            services = await HubServices.open(config, environment, stack=stack)
            external = ExternalOperations(
                config,
                services.registry,
                store=services.store,
                environment=services.environment,
                on_change=services.operation_events.note_sources,
            )
            await stack.enter_async_context(external)
            metrics = Metrics(models=listed_models(config))
            model_setup = await build_setup(config, services, metrics=metrics)
            hub = cls(services, config, setup=model_setup, external=external, metrics=metrics)
            stack.push_async_callback(hub.close)
            await stack.enter_async_context(hub.meter)
            stack.push_async_callback(hub.engine.close)
            # Closed after the runs: viewers at other hosts get their last events.
            await stack.enter_async_context(listen_for_hosts(config.hosts, services, *hub.internal_routes()))
            stack.push_async_callback(hub.stop)
            hub.engine.start(hub.queued_turns.execute)
            for job in hub._background_jobs(config):
                stack.enter_context(run_in_background(job))
            hub._watch_hosts(stack)
            for name in await hub.unknown_policy_names(config):
                log.warning("%s", name)
            await external.wait_shared()
            yield hub

    def _background_jobs(self, config: Config) -> Iterator[BackgroundJob]:
        """Yield the jobs that run until the hub is closed."""
        services = self._services
        approval_flow = services.calls.approval_flow
        yield self.retention.run
        resume = self.queued_turns.resume
        yield ApprovalResumer(
            self.store, resume, approval_flow=approval_flow, now=self.store.approval_clock
        ).run
        yield self.key_monitor.run
        yield self.host.watch
        yield self.share_operations
        yield self.external.follow_other_hosts
        yield partial(release_lost_reservations, self.store)
        yield LeftoverReplay(self.store, self.meter.ledger).run
        yield self.runs.recovery.run
        yield self.endpoints.push_notifier.run
        yield services.shared_access.run
        yield self.runs.queue.run
        yield build_webhook_sender(config, services).run
        yield services.events.run
        yield services.events.trim
        yield self.team_tasks.worker.run
        yield from self.triggers.jobs()

    def internal_routes(self) -> Sequence[HostRoutes]:
        """Return the routes that this host serves to other hosts."""
        return health_routes(), self.internal_runs.routes(), self.spoke_calls.routes()

    async def share_operations(self) -> None:
        """Register the operations of spokes of other hosts, until cancelled."""
        await self.external.share_operations(self._services.host_client, self.meter.shared_budgets)

    async def unknown_policy_names(self, config: Config) -> Sequence[str]:
        """Return a sentence for each name in a rule of the policy that no agent or operation has."""
        external = {*config.mcp_servers, *config.spokes.reserved}
        external |= {server.name for server in self.external.servers.list()}
        for patterns in config.spokes.namespaces.values():
            external.update(as_tuple(patterns))
        with suppress(Unavailable):  # the owners of namespaces are not known without the database
            external |= set(await self.external.spoke_server.namespaces())
        ids = [*META_TOOLS_BY_ID, *(operation.id for operation in self._services.registry.list())]
        return unknown_policy_names(
            config, ids, external=external, teams=self._services.teams.registry.names()
        )

    async def reload(self, config: Config) -> None:
        """Use another configuration for new requests; active requests finish with the old one.

        ConfigError changes nothing. Operations, body limits and the data folder stay as
        they were at the start.
        """
        model_setup = await build_setup(config, self._services, metrics=self.metrics)
        domain_events = build_domain_events(config)
        delegates = self._callable_agents.build(
            model_setup.agent_registry.agents, self._services.teams.registry
        )
        self._services.calls.access_control.policy = build_policy(config)
        await self.external.reload(config)
        for name in await self.unknown_policy_names(config):
            log.warning("%s", name)
        if self.store.database.is_up:
            await self.meter.ledger.flush()  # a new budget counts what was spent before it
        old, self._setup, self._config = self._setup, model_setup, config
        self.meter.reconfigure(model_setup.limits, model_setup.prices)
        self.gateway.catalog = model_setup.catalog
        self.runs.factory.agents = model_setup.agent_registry
        self._callable_agents.replace(delegates)
        self.runs.factory.billing = Billing(self.meter, model_setup.catalog.price)
        self.retention.periods = config.retention_periods
        self._services.session_events.domain_events = domain_events
        self.load_prices()
        self._retiring.append(old.providers)
        self._spawn(self._close_when_idle(old.providers))

    def _update_callable_agents(self) -> None:
        """Register the agents of the changed teams; change nothing if an id is taken."""
        try:
            self._callable_agents.register(self._setup.agent_registry.agents, self._services.teams.registry)
        except ConfigError as error:
            log.warning("%s", error.message)

    async def abort(self, id: str) -> bool:
        """Stop a run, or an active call, with all calls below it. False when it is not active."""
        run = self.runs.get(id)
        if run is not None:
            await run.stop_and_wait("stopped by the user")
            return True
        if self._services.calls.abort(id, "stopped by the user"):
            return True
        row = await self.store.runs.get(id)
        if (
            row is not None
            and row.status == "running"
            and await self.runs.starting.wait_started(row.session_id)
        ):
            return await self.abort(id)  # it was stored, and had not begun
        return self.runs.remote is not None and await self.runs.remote.abort(id, "stopped by the user")

    async def answer_approval(
        self, id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> ApprovalRequest:
        """Answer an approval, and resume the session that waits for it."""
        found = await self._services.calls.answer_approval(id, approved=approved, by=by, reason=reason)
        self.triggers.approval_answered()
        with suppress(RunActive, Unavailable):  # ApprovalResumer retries it soon
            await self.queued_turns.resume(found)
        return found

    def take_over(self, host_id: str) -> None:
        """Take over from a fenced host, in the background."""
        self._spawn(self._take_over(host_id))

    def _watch_hosts(self, stack: AsyncExitStack) -> None:
        """Take over from hosts that are lost, until `stack` ends; stop when this one is fenced."""
        membership = self.store.membership
        if membership is not None:
            membership.watch(on_host_lost=self.take_over, on_fenced=self.end_fenced)
            stack.enter_context(run_in_background(self.takeover.run))

    def end_fenced(self) -> None:
        """Refuse all requests, and stop all runs without writing anything: other hosts have them.

        The server, which waits for `fence`, then closes the hub.
        """
        self.runs.refuse_new()
        self.runs.stop_unwritten()
        self.fence.close(HostFenced(self.store.host_id or ""))

    async def _take_over(self, host_id: str) -> None:
        with suppress(StoreError, Unavailable):  # it is reported again
            await self.takeover.take_over(host_id)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and wait up to `seconds` for active ones to end."""
        await asyncio.gather(
            self.gateway.drain(seconds),
            self.runs.drain(seconds),
            self.engine.drain(seconds),
            self.endpoints.drain(seconds),
        )

    async def stop(self) -> None:
        """End runs, sessions of MCP clients and spokes, and notify their clients."""
        await self.engine.drain(0)
        await self.team_tasks.worker.close()
        await asyncio.gather(self.runs.close(), self.endpoints.close())
        await self.titles.close()
        await self.runners.close()
        self.spoke_calls.close()
        await self.external.spoke_server.close()

    async def close(self) -> None:
        """Close all providers, including those of earlier configurations."""
        for task in list(self._tasks):
            task.cancel()
        for provider_set in (*self._retiring, self._setup.providers):
            await provider_set.close()

    def load_prices(self) -> None:
        """Load the price list in the background, so that the first request does not wait for it.

        Not part of `open`: a hub is ready without it, and one that is opened for a moment does not need it.
        Self-hosted models have no list prices, so a hub with no other models does not load the list.
        """
        if any(each.type not in SELF_HOSTED_TYPES for each in self._config.providers.values()):
            self._spawn(self._setup.prices.preload())

    async def _close_when_idle(self, providers: ProviderSet) -> None:
        try:
            await providers.close_when_idle()
        finally:
            self._retiring.remove(providers)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cooldowns(self) -> Mapping[str, int]:
        """Return the number of keys in cooldown, by provider."""
        providers = self._setup.providers.remote_providers()
        return {name: provider.keys.cooling_down for name, provider in providers.items()}


async def build_setup(config: Config, services: HubServices, *, metrics: Metrics) -> ModelSetup:
    """Build the model setup of a configuration. ConfigError when an agent pins an unknown operation."""
    secrets = await services.read_secrets(config)
    model_setup = ModelSetup.build(
        config,
        services.environment.environ,
        secrets=secrets,
        on_fallback=metrics.provider_fell_back,
        teams=services.teams,
    )
    for name, agent in model_setup.agent_registry.agents.items():
        if name not in ("default", *config.agents):
            continue  # an agent of a team: its tools may be registered later
        pins_of_hub = name == "default" and name not in config.agents
        field = "pinned" if pins_of_hub else f"agents.{name}.operations"
        for number, id in enumerate(agent.operations):
            with blame_field(f"{field}[{number}]"):
                check_pinned(id, config=config, services=services)
    for provider in model_setup.providers.remote_providers().values():
        services.environment.secrets.update(provider.keys.secrets, provider.server.secrets)
        provider.on_retry = metrics.attempt_retried
        provider.on_failure = metrics.attempt_failed
    return model_setup


def share_spokes(services: HubServices, meter: Meter) -> SpokeCallHandlers:
    """Return the handlers of other hosts' calls to this host's spokes; a signal reports new operations."""
    store = services.store
    return SpokeCallHandlers(
        services.registry,
        services.calls,
        shared_budgets=meter.shared_budgets,
        on_change=lambda: store.signals.send("spokes", store.host_id or ""),
    )


def check_pinned(id: str, *, config: Config, services: HubServices) -> None:
    """Raise ConfigError unless the operation exists or an MCP server or spoke may register it later."""
    namespace, _, name = id.partition(".")
    if namespace in {*config.mcp_servers, *config.spokes.reserved}:
        return
    if namespace == NAMESPACE and name in config.agents:
        if config.agents[name].description is None:
            raise ConfigError(
                f"the agent {name!r} has no description, so it cannot be called as an operation",
                hint=f"agents.{name}.description says what others may call it for",
            )
        return
    try:
        services.registry.get(id)
    except NotFound as error:
        hint = error.hint or "`dragoman ops list` shows those that exist"
        raise ConfigError(error.message, hint=hint) from None


def gateway_settings(config: Config) -> GatewaySettings:
    """Return the settings of the gateway."""
    return GatewaySettings(
        body_limit=config.limits.gateway_body,
        keep_alive=config.keep_alive,
        answer_limits=answer_limits(config),
    )


def build_meter(config: Config, services: HubServices, *, setup: ModelSetup) -> Meter:
    """Build the meter, which records usage and cost."""
    spool = Spool(services.store.host_folder / USAGE_SPOOL, max_bytes=config.limits.spool)
    return Meter(services.store, setup.prices, spool=spool, limits=setup.limits)


def build_mcp_server(config: Config, services: HubServices) -> McpServer:
    """Build the MCP server of the hub."""
    return McpServer(
        services.meta,
        services.calls,
        registry=services.registry,
        pinned=config.mcp.pinned,
        version=version(),
    )


def build_app(
    config: Config, data: Path, *, require_keys: bool = True, environ: Mapping[str, str] | None = None
) -> ASGIApp:
    """Build an ASGI app that opens its hub at start-up: for `uvicorn --factory` and other servers."""
    apps: list[ASGIApp] = []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with Hub.open(config, data, require_keys=require_keys, environ=environ) as hub:
            apps.append(hub.app)
            yield
            apps.clear()

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        await apps[0](scope, receive, send)

    return Router(lifespan=lifespan, default=inside)
