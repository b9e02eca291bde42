"""The paths about the hub itself: its state, its log, its budgets, and what its policy decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from dragoman.accounts.meter import Meter
from dragoman.server.accounts.budgets import BudgetHandlers
from dragoman.server.app.routing.shared_routes import Routes
from dragoman.server.hosts import HostHandlers, LocalHost
from dragoman.server.log_buffer import LogHandlers
from dragoman.server.operation_statistics import OperationStatisticsHandlers
from dragoman.server.policy import PolicyHandlers
from dragoman.server.system import SystemHandlers, SystemSources
from dragoman.server.system_state import HubStateHandlers, HubStateSources

if TYPE_CHECKING:
    from dragoman.server.app.services import HubServices


class SystemApi(msgspec.Struct, frozen=True, kw_only=True):
    """The handlers of these paths."""

    system: SystemHandlers
    state: HubStateHandlers
    hosts: HostHandlers
    logs: LogHandlers
    budgets: BudgetHandlers
    policy: PolicyHandlers
    statistics: OperationStatisticsHandlers


def build_system_api(
    services: HubServices,
    sources: SystemSources,
    *,
    meter: Meter,
    host: LocalHost,
    count_runs: Callable[[], int],
) -> SystemApi:
    """Build the handlers. `count_runs` returns how many runs this process executes."""
    store = services.store

    state = HubStateSources(
        retention=sources.retention,
        database=sources.database,
        running=count_runs,
        spooled=lambda: meter.ledger.spool.row_count,
    )
    return SystemApi(
        system=SystemHandlers(sources, store.usage_series),
        state=HubStateHandlers(store, state, host=host),
        hosts=HostHandlers(store, local=host, count_runs=count_runs),
        logs=LogHandlers(services.logs),
        budgets=BudgetHandlers(store, lambda: meter.limits),
        policy=PolicyHandlers(services.calls, services.registry),
        statistics=OperationStatisticsHandlers(store),
    )


def system_routes(api: SystemApi) -> Routes:
    """The paths, each with the scope that a key needs."""
    yield "/api/agents", {"GET": api.system.agents}, "chat"
    yield "/api/models", {"GET": api.system.models}, "chat"
    yield "/api/providers", {"GET": api.system.providers}, "admin"
    yield "/api/config", {"GET": api.system.config}, "admin"
    yield "/api/system", {"GET": api.state.system}, "admin"
    yield "/api/system/tables", {"GET": api.state.tables}, "admin"
    yield "/api/logs", {"GET": api.logs.list}, "admin"
    yield "/api/queue", {"GET": api.state.queue}, "chat"
    yield "/api/policy/explain", {"POST": api.policy.explain}, "operations"
    yield from report_routes(api.budgets, api.statistics)
    yield "/api/hosts", {"GET": api.hosts.list}, "admin"
    yield "/api/hosts/{id}/drain", {"POST": api.hosts.drain}, "admin"


def report_routes(budgets: BudgetHandlers, statistics: OperationStatisticsHandlers) -> Routes:
    """The paths whose handlers need only the store."""
    yield "/api/budgets", {"GET": budgets.list}, None
    yield "/api/operations/{id}/stats", {"GET": statistics.get}, "operations"
