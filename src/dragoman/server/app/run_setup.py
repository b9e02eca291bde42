"""Wires runs: their factory and queue, the runs of other hosts, and titles of sessions."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.accounts.meter import Meter
from dragoman.accounts.payment import Billing
from dragoman.config import Config
from dragoman.runs.registry import RunRegistry
from dragoman.runs.remote import RemoteRuns, RunHosts
from dragoman.runs.run import RunSettings
from dragoman.runs.run_factory import RunFactory
from dragoman.runs.run_queue import QueueSettings
from dragoman.runs.titles import TitleWriter
from dragoman.server.app.model_setup import ModelSetup
from dragoman.server.app.services import HubServices
from dragoman.store.hosts.queued_runs import QueueLimits


def run_settings(config: Config, services: HubServices, *, meter: Meter) -> RunSettings:
    """Return the settings of all runs."""
    return RunSettings(
        disconnect_grace=config.grace,
        max_answer=config.limits.answer,
        read_ahead=config.limits.read_ahead,
        reader_timeout=config.limits.reader_timeout,
        tracing=services.tracing,
        hooks=services.hooks.loop if services.hooks else None,
        webhook=config.webhooks.url,
        write_usage=meter.ledger.flush,
        submit_usage=meter.ledger.write_batch,
    )


def build_run_factory(
    config: Config, services: HubServices, *, setup: ModelSetup, meter: Meter
) -> RunFactory:
    """Build the factory of the hub's runs."""
    return RunFactory(
        services.store,
        setup.agent_registry,
        toolbox=services.toolbox,
        billing=Billing(meter, setup.catalog.price),
        settings=run_settings(config, services, meter=meter),
    )


def queue_settings(config: Config) -> QueueSettings:
    """Return the limits of waiting messages and of background runs."""
    limits = config.limits
    waiting = QueueLimits(session=limits.queued, owner=limits.owner_queued)
    return QueueSettings(waiting, limits.background_runs)


def remote_runs(runs: RunRegistry, services: HubServices) -> RemoteRuns | None:
    """Return the runs of other hosts; None when none shares the database."""
    client = services.host_client
    if client is None:
        return None
    return RemoteRuns(RunHosts(services.store, client, runs.get, runs.factory.settings))


def build_title_writer(
    config: Callable[[], Config], services: HubServices, *, runs: RunRegistry
) -> TitleWriter:
    """Let a model write the titles of sessions, if the configuration names one."""
    writer = TitleWriter(
        services.store,
        agents=lambda: runs.agents,
        billing=lambda: runs.factory.billing,
        model=lambda: config().title_model,
    )
    runs.on_end.append(writer.run_ended)
    return writer
