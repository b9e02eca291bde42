"""The services of a hub that outlive a reload: store, registry, calls, tracing, hooks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec

from dragoman.agent.hooks.hooks import Hooks
from dragoman.agent.tools.toolbox import Toolbox, find_operation
from dragoman.config import Config, master_key
from dragoman.config.problems import blame_field
from dragoman.errors import DragomanError, NotFound, StoreError, Unavailable
from dragoman.hosts.client import HostClient
from dragoman.http.transport import Transport
from dragoman.hub_events.domain_events import DomainEvents, SessionEvents
from dragoman.hub_events.event_log import EventLog, EventSettings
from dragoman.hub_events.registry_changes import OperationEvents
from dragoman.model_request import Tool
from dragoman.operations.artifact_overflow import ArtifactOverflow
from dragoman.operations.call_dispatcher import Calls, CallSettings
from dragoman.operations.context import Context
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.permission.access_control import AccessControl
from dragoman.operations.registry import Registry
from dragoman.operations.search.embedder import Embedder
from dragoman.operations.search.search import OperationSearch
from dragoman.runs.crash_recovery import find_cut_off_runs
from dragoman.server.app.background_jobs import AnswerReplayer, follow_standing_rules, run_in_background
from dragoman.server.app.hooks import build_hooks
from dragoman.server.app.operation_setup import build_policy, build_registry, build_search
from dragoman.server.app.providers import secret_names
from dragoman.server.app.team_memory import add_team_memory
from dragoman.server.app.team_tools import TeamTools, ToolServices
from dragoman.server.app.teams import TeamServices
from dragoman.server.log_buffer import LogEvents, LogRing
from dragoman.server.sessions.grant_revocation import SharedAccess
from dragoman.store.encryption import MasterKey
from dragoman.store.postgres.url import url_secrets
from dragoman.store.runs import RunRecord
from dragoman.store.store import DatabaseSettings, Store
from dragoman.tracing.interface import NO_TRACING, TelemetrySettings, Tracing
from dragoman.version import version

log = logging.getLogger(__name__)
REJOIN_TIMEOUT = 15.0  # seconds that a run waits after a crash for the operations of its calls
ARRIVAL_TIMEOUT = 5.0


class HubEnvironment(msgspec.Struct, frozen=True):
    """The environment of a hub. `require_keys`: callers need a key; `secrets`: values that logs redact."""

    data: Path
    environ: Mapping[str, str]
    require_keys: bool
    secrets: set[str]
    tracing: Tracing | None = None

    def __repr__(self) -> str:
        return f"HubEnvironment({str(self.data)!r})"


class HubServices(msgspec.Struct, frozen=True, kw_only=True):
    """The store, the registry and the other services that a reload does not replace."""

    environment: HubEnvironment
    store: Store
    registry: Registry
    calls: Calls
    meta: MetaTools
    tracing: Tracing
    hooks: Hooks
    events: EventLog
    session_events: SessionEvents
    operation_events: OperationEvents
    shared_access: SharedAccess
    teams: TeamServices
    logs: LogRing
    host_client: HostClient | None = None
    """For requests to other hosts, if several may share the database."""
    cut_off: Sequence[RunRecord]
    """The runs that were under way when the hub stopped."""

    @classmethod
    async def open(cls, config: Config, environment: HubEnvironment, *, stack: AsyncExitStack) -> HubServices:
        """Open the services; `stack` closes them."""
        logs = stack.enter_context(LogRing(environment.secrets).attached())
        tracing = open_hub_tracing(config, environment, stack=stack)
        environment.secrets.update(url_secrets(config.database or ""))
        store = await Store.open(
            environment.data,
            database=DatabaseSettings(config.database, config.synchronous),
            tolerate_outages=True,
            master_key=read_master_key(config, environment.environ),
        )
        await stack.enter_async_context(store)
        host_client = None if store.host_id is None else HostClient(store.hosts)
        if host_client is not None:
            stack.push_async_callback(host_client.close)
        cut_off = await find_runs_to_resume(store)
        replay_answers(store, stack)
        access = follow_grants(store)
        events = open_events(config, store, logs=logs)
        session_events = SessionEvents(events, build_domain_events(config))
        registry = build_registry(config, store.artifacts, history=store.history)
        hooks = open_hooks(config, environment, stack=stack)
        team_tools = TeamTools(config, hooks, stack=stack)
        settings = call_settings(config, tracing, hooks=hooks, events=session_events)
        calls = build_calls(config, store, registry=registry, settings=settings)
        await stack.enter_async_context(calls)
        teams = TeamServices.open(config, store, environ=environment.environ, access=calls.access_control)
        search, embedder = open_search(config, registry, stack=stack)
        add_team_memory(
            teams, store, registry=registry, calls=calls, logged=environment.secrets, embedder=embedder
        )
        await team_tools.open(ToolServices(teams, store, registry), access=calls.access_control)
        follow_rules(store, calls, stack=stack)
        return cls(
            environment=environment,
            store=store,
            registry=registry,
            calls=calls,
            meta=MetaTools(registry, calls, search=search),
            tracing=tracing,
            hooks=hooks,
            events=events,
            session_events=session_events,
            operation_events=OperationEvents(registry, events),
            shared_access=access,
            teams=teams,
            logs=logs,
            cut_off=cut_off,
            host_client=host_client,
        )

    async def toolbox(self, pinned: Sequence[str], client: Sequence[Tool], *, context: Context) -> Toolbox:
        """Build the toolbox of an agent's model for the identity of `context`.

        Waits up to ARRIVAL_TIMEOUT seconds for pinned operations of an MCP server that is starting.
        """
        by = asyncio.get_running_loop().time() + ARRIVAL_TIMEOUT
        await self.calls.wait_for_operations(pinned, msgspec.structs.replace(context, deadline=by))
        found = [operation for id in pinned if (operation := find_operation(self.registry, id)) is not None]
        visible = [operation for operation in found if self.calls.is_visible(operation, context)]
        shown = [operation.for_caller(context) for operation in visible]
        return Toolbox(self.calls, self.meta, registry=self.registry, pinned=shown, client=client)

    async def wait_for_operations(self, ids: Sequence[str]) -> None:
        """Wait up to REJOIN_TIMEOUT seconds for operations of MCP servers and spokes that come back."""
        await self.registry.wait_until_registered(ids, seconds=REJOIN_TIMEOUT)

    def operation_source(self, operation: str, owner: str) -> str | None:
        """Return where an operation comes from; None when there is none for this owner."""
        try:
            return self.registry.get(operation, owner=owner).source
        except NotFound:
            return None

    async def read_secrets(self, config: Config) -> Mapping[str, str]:
        """Read the secrets that the configuration names, and log those that cannot be read."""
        found: dict[str, str] = {}
        for name in sorted(secret_names(config)):
            try:
                found[name] = await self.store.secrets.get(name)
            except DragomanError as error:
                log.warning("the secret %s cannot be read: %s", name, error.message)
        return found


def open_events(config: Config, store: Store, *, logs: LogRing) -> EventLog:
    """Return the log of events, which has events for logged lines, too."""
    events = EventLog(store.events, settings=event_settings(config))
    LogEvents(logs, events)
    return events


def open_search(
    config: Config, registry: Registry, *, stack: AsyncExitStack
) -> tuple[OperationSearch, Embedder | None]:
    """Open the search over all operations; return it with the embedder, if there is one."""
    search, semantic_index = build_search(config, registry)
    if semantic_index is None:
        return search, None
    stack.enter_context(run_in_background(semantic_index.run))
    return search, semantic_index.embedder


def open_hooks(config: Config, environment: HubEnvironment, *, stack: AsyncExitStack) -> Hooks:
    """Open the hooks of a configuration, with the transport of HTTP hooks."""
    transport = Transport()
    stack.push_async_callback(transport.close)
    names = [hook.secret_env for hook in config.hooks if hook.secret_env is not None]
    environment.secrets.update(environment.environ[name] for name in names if name in environment.environ)
    hooks = build_hooks(config.hooks, environ=environment.environ, transport=transport)
    stack.push_async_callback(hooks.aclose)
    return hooks


def call_settings(config: Config, tracing: Tracing, *, hooks: Hooks, events: SessionEvents) -> CallSettings:
    """Return the settings of all calls."""
    return CallSettings(
        threads=config.limits.threads,
        tracer=call_tracer(tracing),
        max_failures=config.limits.repeats,
        hooks=hooks.calls if hooks else None,
        events=events,
    )


def build_calls(config: Config, store: Store, *, registry: Registry, settings: CallSettings) -> Calls:
    """Build the service that calls operations."""
    spill = ArtifactOverflow(store.artifacts, limit=config.limits.result, max_size=config.limits.artifact)
    return Calls(
        registry, store.calls, access_control=build_guard(config, store), overflow=spill, settings=settings
    )


def follow_grants(store: Store) -> SharedAccess:
    """Return the access to shared sessions, which is refreshed when another host changes grants."""
    access = SharedAccess(store.sessions)
    store.signals.subscribe("grants", access.wake)
    return access


def follow_rules(store: Store, calls: Calls, *, stack: AsyncExitStack) -> None:
    """Keep standing rules in force until `stack` ends."""
    stack.enter_context(
        run_in_background(partial(follow_standing_rules, store, calls.access_control.standing))
    )


def build_guard(config: Config, store: Store) -> AccessControl:
    """Build access control from the policy and the stored approvals."""
    return AccessControl(
        build_policy(config),
        store.approvals,
        clock=store.approval_clock,
        approval_seconds=config.approval_seconds,
    )


def event_settings(config: Config) -> EventSettings:
    """Return the limits of the log of events."""
    limits = config.limits
    return EventSettings(followers=limits.followers, size=limits.event, rows=limits.events)


def build_domain_events(config: Config) -> DomainEvents:
    """Build the registry of domain events. ConfigError for a schema that is not valid."""
    with blame_field("events.schemas"):
        return DomainEvents(config.events.schemas, unknown=config.events.unknown)


def open_hub_tracing(config: Config, environment: HubEnvironment, *, stack: AsyncExitStack) -> Tracing:
    """Return the tracing of the environment, or else that of the configuration; `stack` closes it."""
    tracing = environment.tracing or build_tracing(config, environment.secrets)
    stack.push_async_callback(tracing.close)
    return tracing


def replay_answers(store: Store, stack: AsyncExitStack) -> None:
    """Write spooled answers each time the database is up again, until `stack` ends."""
    replayer = AnswerReplayer(store)
    store.database.on_recovery(replayer.wake)
    stack.enter_context(run_in_background(replayer.run))


def build_tracing(config: Config, secrets: Collection[str]) -> Tracing:
    """Build tracing. ConfigError when it is configured and its packages are not installed."""
    telemetry = config.telemetry
    if telemetry.otlp_endpoint is None:
        return NO_TRACING
    from dragoman.tracing.otlp_setup import open_tracing  # late: OpenTelemetry costs 0.04 s and 3 MB

    settings = TelemetrySettings(
        endpoint=telemetry.otlp_endpoint,
        service=telemetry.service_name,
        version=version(),
        content=telemetry.content,
        sample=telemetry.sample,
    )
    return open_tracing(settings, secrets=secrets)


def call_tracer(tracing: Tracing) -> Tracing | None:
    """Return the tracer of calls; None when tracing is off."""
    return None if tracing is NO_TRACING else tracing


def read_master_key(config: Config, environ: Mapping[str, str]) -> MasterKey | None:
    """Return the master key of the encrypted table, or None."""
    with blame_field("master_key_file" if config.master_key_file else config.master_key_env):
        text = master_key(config, environ)
        return None if text is None else MasterKey.from_text(text)


async def find_runs_to_resume(store: Store) -> Sequence[RunRecord]:
    """Return the runs that a crash cut off. If the database is down, the next start of a hub finds them."""
    try:
        await store.answers.replay(at_start=True)
        cut_off = await find_cut_off_runs(store)
        if store.host_id is not None:
            await store.calls.interrupt_absent(time.time())
    except (StoreError, Unavailable) as error:
        log.warning("the database is down, so the hub only relays for keys that it knows: %s", error.message)
        return ()
    if cut_off:
        log.warning("%d runs were cut off by a crash; each continues from its message", len(cut_off))
    return cut_off
