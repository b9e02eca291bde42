"""The hub's API in this process, over a data folder or a configuration, without running a hub.

The command line uses it when no hub is named: the same handlers answer, so a command does the same with
and without a hub. A hub may be running over the same folder, therefore an attached app takes no lock,
recovers no runs, and starts nothing: no providers, MCP servers, spokes or background jobs. A path that needs
a running hub answers 503. Every caller is the operator, who can write to the data folder anyway.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.routing import Route, Router
from starlette.types import ASGIApp

from dragoman.accounts.limit_table import LimitTable
from dragoman.config import Config
from dragoman.errors import Unavailable
from dragoman.http.asgi_exchange import Exchange
from dragoman.identity import Identity
from dragoman.operations.approval import ApprovalRequest, MemoryApprovalStore
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.ledger import CallCompletion, MemoryLedger
from dragoman.operations.message_search import MemoryMessageSearch
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.permission.access_control import AccessControl, denied_failure
from dragoman.operations.results.artifact import MemoryArtifactStore
from dragoman.server.accounts.budgets import BudgetHandlers
from dragoman.server.accounts.keys import KeyHandlers
from dragoman.server.accounts.usage import UsageHandlers
from dragoman.server.app.routing.shared_routes import (
    Routes,
    approval_routes,
    artifact_routes,
    call_routes,
    key_routes,
    operation_routes,
    policy_routes,
    run_routes,
    session_routes,
    usage_routes,
)
from dragoman.server.app.routing.system_routes import report_routes
from dragoman.server.app.routing.team_routes import task_routes, trigger_routes
from dragoman.server.approvals import ApprovalHandlers
from dragoman.server.artifacts import ArtifactHandlers
from dragoman.server.call_trees.json_lines import CallStreamHandlers
from dragoman.server.calls import CallHandlers
from dragoman.server.http.endpoint import HttpEndpoint
from dragoman.server.operation_statistics import OperationStatisticsHandlers
from dragoman.server.operations import OperationHandlers
from dragoman.server.runs import RunHandlers
from dragoman.server.sessions.sessions import SessionHandlers
from dragoman.server.standing_rules import PolicyRuleHandlers
from dragoman.server.teams.tasks import TaskHandlers
from dragoman.server.teams.triggers import TriggerHandlers
from dragoman.store.store import DEFAULT_DATABASE, DatabaseSettings, Store
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.spec import TeamFile
from dragoman.teams.tasks.administration import StoredTasks
from dragoman.teams.triggers.service import TriggerService

NO_TEAMS = TeamRegistry(None, lambda _: TeamFile())
NEEDS_HUB = "This needs a running hub."
HUB_HINT = "start one with `dragoman serve`, and name it with --hub"


@asynccontextmanager
async def attach_to_data(data: Path, database: DatabaseSettings = DEFAULT_DATABASE) -> AsyncIterator[ASGIApp]:
    """Serve a data folder beside the hub that may run there: sessions, calls, approvals, usage, keys."""
    async with await Store.open(data, database=database, exclusive=False) as store:
        yield build_attached_app(
            session_routes(SessionHandlers(store, runs=None)),
            run_routes(RunHandlers(store, runs=None, abort=refuse_abort)),
            call_routes(CallHandlers(store, abort=refuse_abort), CallStreamHandlers(store)),
            approval_routes(
                ApprovalHandlers(
                    store.approvals, answer=StoredAnswers(store), sessions=store.sessions, inbox=store.inbox
                )
            ),
            policy_routes(PolicyRuleHandlers(store)),
            artifact_routes(ArtifactHandlers(store.artifacts)),
            usage_routes(UsageHandlers(store)),
            task_routes(TaskHandlers(StoredTasks(store), store.sessions)),
            trigger_routes(TriggerHandlers(TriggerService(store, NO_TEAMS))),
            key_routes(KeyHandlers(store.keys)),
            report_routes(BudgetHandlers(store, LimitTable), OperationStatisticsHandlers(store)),
        )


@asynccontextmanager
async def attach_to_config(config: Config) -> AsyncIterator[ASGIApp]:
    """Load the operations of a configuration; approvals and results live in memory until the end."""
    # late: the built-in operations, which data folders do not need
    from dragoman.server.app.operation_setup import build_policy, build_registry  # late: as above

    registry = build_registry(config, MemoryArtifactStore(), history=MemoryMessageSearch())
    approvals = MemoryApprovalStore(time.time)
    access_control = AccessControl(build_policy(config), approvals, clock=time.time)
    async with Calls(registry, MemoryLedger(), access_control=access_control) as calls:
        yield build_attached_app(
            operation_routes(OperationHandlers(calls, meta=MetaTools(registry, calls))),
            approval_routes(ApprovalHandlers(approvals, answer=calls.answer_approval)),
        )


class StoredAnswers:
    """Answers approvals in the store; a running hub, or the next one to start, resumes the waiting run."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def __call__(
        self, id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> ApprovalRequest:
        """Answer an approval, and end a call that is denied before it ran."""
        approval = await self._store.approvals.answer(id, approved=approved, by=by, reason=reason)
        if not approved and approval.call_id is not None and approval.state is None:
            completion = CallCompletion(status="denied", ended_at=time.time(), error=denied_failure(reason))
            await self._store.calls.close_pending(approval.call_id, completion)
        return approval


def build_attached_app(*tables: Routes) -> ASGIApp:
    """Build an ASGI app of these routes; every other path answers 503. Callers need no key."""
    routes: Iterable[Route] = (
        Route(path, HttpEndpoint(handlers)) for table in tables for path, handlers, _ in table
    )
    return Router(
        list(routes), default=HttpEndpoint(dict.fromkeys(("GET", "POST", "PATCH", "DELETE"), refuse))
    )


async def refuse(_: Exchange) -> None:
    """Answer 503: the path needs a running hub."""
    raise Unavailable(NEEDS_HUB, hint=HUB_HINT)


async def refuse_abort(_: str) -> bool:
    """Answer 503: only the hub that runs a call can stop it."""
    raise Unavailable(NEEDS_HUB, hint=HUB_HINT)
