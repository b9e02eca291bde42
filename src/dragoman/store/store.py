"""The store: one database and its repositories."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dragoman.errors import ConfigError, StoreError, Unavailable
from dragoman.store.accounts.browser_sessions import BrowserSessionRepository
from dragoman.store.accounts.budgets import BudgetRepository
from dragoman.store.accounts.keys import ApiKeyRepository
from dragoman.store.accounts.operation_statistics import OperationStatisticsRepository
from dragoman.store.accounts.session_tokens import SessionTokenRepository
from dragoman.store.accounts.usage import UsageRepository
from dragoman.store.accounts.usage_series import UsageSeriesRepository
from dragoman.store.answer_spool import AnswerSpool
from dragoman.store.approval_inbox import ApprovalInboxRepository
from dragoman.store.approvals import ApprovalRepository
from dragoman.store.artifacts import ArtifactRepository
from dragoman.store.call_trees.nodes import CallNodeRepository
from dragoman.store.call_trees.roots import RootRepository
from dragoman.store.call_trees.waiting_runs import WaitingRunRepository
from dragoman.store.calls import CallRepository
from dragoman.store.connection import DatabaseJob
from dragoman.store.database import Database
from dragoman.store.encryption import FolderKey, MasterKey
from dragoman.store.hosts.host_folder import ANSWERS_FOLDER
from dragoman.store.hosts.hosts import HostRepository
from dragoman.store.hosts.queued_runs import QueuedRunRepository
from dragoman.store.hosts.rates import HostRateRepository
from dragoman.store.hosts.signals import HostSignals
from dragoman.store.hub_events import HubEventRepository
from dragoman.store.mcp_servers import DefinitionPinRepository, McpServerRepository
from dragoman.store.push_configs import PushConfigRepository
from dragoman.store.responses import ResponseRepository
from dragoman.store.retention import Retention
from dragoman.store.runner_frame_log import RunnerFrameRepository
from dragoman.store.runs import RunRepository
from dragoman.store.secrets import SecretRepository
from dragoman.store.sessions.branches import BranchRepository
from dragoman.store.sessions.conversations import ConversationRepository
from dragoman.store.sessions.message_search import MessageSearchRepository
from dragoman.store.sessions.messages import MessageRepository
from dragoman.store.sessions.presence import PeopleRepository
from dragoman.store.sessions.session_deletion import SessionDeletion
from dragoman.store.sessions.sessions import SessionRepository
from dragoman.store.sessions.shares import ShareRepository
from dragoman.store.settled_clock import approval_clock
from dragoman.store.spoke_namespaces import SpokeNamespaceRepository
from dragoman.store.sqlite import SQLiteBackend, Synchronous
from dragoman.store.standing_rules import PolicyRuleRepository
from dragoman.store.subagent_answers import SubagentAnswerRepository
from dragoman.store.teams.a2a_tasks import TaskRepository
from dragoman.store.teams.generated_files import GeneratedFileRepository
from dragoman.store.teams.memories import MemoryRepository
from dragoman.store.teams.team_tasks import TeamTaskRepository
from dragoman.store.teams.triggers import TriggerRepository
from dragoman.store.teams.vault import VaultRepository
from dragoman.store.webhook_deliveries import WebhookDeliveryRepository

if TYPE_CHECKING:
    from dragoman.store.postgres.backend import DatabaseUse, PostgresBackend
    from dragoman.store.postgres.connection import RawConnection
    from dragoman.store.postgres.membership import Membership
    from dragoman.store.postgres.signal_connection import SignalConnection

T = TypeVar("T")
DATABASE_FILE = "hub.db"
FOLDER_KEY_FILE = "hub.key"


class DatabaseSettings(msgspec.Struct, frozen=True):
    """Where the data is: at the `url` of a Postgres database or, for None, in SQLite in the data folder.

    With `synchronous="normal"` writes that SQLite has acknowledged survive any crash of the process, with
    "full" also a power failure; a Postgres server has a setting of its own.
    """

    url: str | None = None
    synchronous: Synchronous = "normal"

    def __repr__(self) -> str:
        return f"DatabaseSettings({'SQLite' if self.url is None else 'Postgres'})"  # a URL has a password


DEFAULT_DATABASE = DatabaseSettings()


class Store:
    """The hub's persistent data. Use it as an async context manager, or call `close`."""

    open_connection: Callable[[], RawConnection] | None = None
    """Opens a separate connection of this host; None where no hosts share the database."""
    _signal_connection: SignalConnection | None = None

    def __init__(
        self,
        database: Database,
        folder: Path,
        *,
        clock: Callable[[], float] = time.time,
        master_key: MasterKey | None = None,
        recovered: bool = True,
        membership: Membership | None = None,
    ) -> None:
        """`recovered` False: a crashed hub may have left reservations, see `BudgetRepository`.

        `membership` is this process as one of the hosts that share the database.
        """
        self.database = database
        self.folder = folder
        self.membership = membership
        self.host_id = host_id = None if membership is None else membership.id
        """The host whose runs and calls these are; None on SQLite, and for a command beside a hub."""
        self.host_folder = folder if membership is None else membership.folder.path
        """The part of the data folder that belongs to this process: several hosts may share the rest."""
        self.hosts = HostRepository(database)
        self.host_rates = HostRateRepository(database)
        self.events = HubEventRepository(database, clock=clock)
        self.sessions = SessionRepository(database, clock=clock, events=self.events)
        self.messages = MessageRepository(database, clock=clock)
        self.history = MessageSearchRepository(database)
        self.runs = RunRepository(database, sessions=self.sessions, messages=self.messages, host_id=host_id)
        self.branches = BranchRepository(database, sessions=self.sessions, messages=self.messages)
        self.webhooks = WebhookDeliveryRepository(database)
        self.queued_runs = QueuedRunRepository(database, sessions=self.sessions)
        self.answers = AnswerSpool(self.host_folder / ANSWERS_FOLDER, runs=self.runs, messages=self.messages)
        self.tasks = TaskRepository(database)
        self.runner_frames = RunnerFrameRepository(database)
        self.subagent_answers = SubagentAnswerRepository(database)
        self.calls = CallRepository(database, host_id=host_id)
        self.approvals = ApprovalRepository(database, clock=self._expiry_clock(clock), sessions=self.sessions)
        self.artifacts = ArtifactRepository(database)
        self.responses = ResponseRepository(database, clock=clock)
        shared_key = None if membership is None else master_key
        keys: dict[str, Any] = {"folder_key": FolderKey(folder / FOLDER_KEY_FILE), "master_key": shared_key}
        self._sealing_keys = keys
        self.mcp_servers = McpServerRepository(database, clock=clock, on_changed=self._notify_hosts, **keys)
        self.push_configs = PushConfigRepository(database, clock=clock, **keys)
        self.spoke_namespaces = SpokeNamespaceRepository(database, clock=clock)
        self.usage = UsageRepository(database)
        self.retention = Retention(database, clock=clock, events=self.events, frames=self.runner_frames)
        self.keys = ApiKeyRepository(database, clock=clock)
        self.secrets = SecretRepository(database, clock=clock, master_key=master_key)
        self.budgets = BudgetRepository(database, clock=clock, recovered=recovered, host_id=host_id)

    @cached_property
    def session_deletion(self) -> SessionDeletion:
        """Deletes sessions, also long ones, in small transactions."""
        return SessionDeletion(self.database, self.sessions, retention=self.retention)

    @property
    def clock_ahead(self) -> float:
        """By how many seconds this machine's clock is ahead of the database's; 0 where that is not known."""
        return 0.0 if self.membership is None else self.membership.clock_ahead

    def _expiry_clock(self, clock: Callable[[], float]) -> Callable[[], float]:
        return approval_clock(clock, ahead=self.clock_ahead)

    @property
    def approval_clock(self) -> Callable[[], float]:
        """The clock by which approval requests expire."""
        return self.approvals.clock

    @cached_property
    def conversations(self) -> ConversationRepository:
        """The conversations of the Responses API."""
        return ConversationRepository(self.database, clock=self.responses.clock)

    @cached_property
    def session_tokens(self) -> SessionTokenRepository:
        """The session tokens of keys."""
        return SessionTokenRepository(self.database, self.keys, clock=self.sessions.now)

    @cached_property
    def team_tasks(self) -> TeamTaskRepository:
        """The tasks of teams."""
        return TeamTaskRepository(self.database, sessions=self.sessions, clock=self.sessions.now)

    @cached_property
    def definition_pins(self) -> DefinitionPinRepository:
        """The approved definitions of operations from outside the hub."""
        return DefinitionPinRepository(self.database, on_changed=self._notify_hosts)

    def _notify_hosts(self) -> None:
        """Tell the other hosts that MCP servers or approved definitions have changed."""
        self.signals.send("definitions", None)

    @cached_property
    def usage_series(self) -> UsageSeriesRepository:
        """Usage over time."""
        return UsageSeriesRepository(self.database)

    @cached_property
    def operation_statistics(self) -> OperationStatisticsRepository:
        """Statistics of the calls of operations."""
        return OperationStatisticsRepository(self.database)

    @cached_property
    def roots(self) -> RootRepository:
        """Runs, calls and model calls that were started from outside."""
        return RootRepository(self.database)

    @cached_property
    def waiting_runs(self) -> WaitingRunRepository:
        """Runs and sessions whose answers wait, and what they wait for."""
        return WaitingRunRepository(self.database)

    @cached_property
    def call_nodes(self) -> CallNodeRepository:
        """The nodes of call trees, without inputs and results."""
        return CallNodeRepository(self.database)

    @cached_property
    def policy_rules(self) -> PolicyRuleRepository:
        """The standing rules."""
        return PolicyRuleRepository(
            self.database, events=self.events, on_changed=lambda: self.signals.send("policy", None)
        )

    @cached_property
    def inbox(self) -> ApprovalInboxRepository:
        """Approval requests as an inbox shows them."""
        return ApprovalInboxRepository(self.database, clock=self.approval_clock)

    @cached_property
    def people(self) -> PeopleRepository:
        """Who has sessions open at the other hosts."""
        return PeopleRepository(self.database)

    @cached_property
    def signals(self) -> HostSignals:
        """The signals between hosts."""
        return HostSignals()

    @cached_property
    def triggers(self) -> TriggerRepository:
        """The triggers of teams, and what they fired."""
        return TriggerRepository(
            self.database,
            clock=self.sessions.now,
            events=self.events,
            webhooks=self.webhooks,
            **self._sealing_keys,
        )

    @cached_property
    def shares(self) -> ShareRepository:
        """The shared links of sessions."""
        return ShareRepository(self.database, branches=self.branches, clock=self.sessions.now)

    @cached_property
    def browser_sessions(self) -> BrowserSessionRepository:
        """The sign-ins of browsers."""
        return BrowserSessionRepository(self.database, clock=self.sessions.now)

    @cached_property
    def memories(self) -> MemoryRepository:
        """The memories of the teams."""
        return MemoryRepository(self.database, clock=self.sessions.now)

    @cached_property
    def generated_files(self) -> GeneratedFileRepository:
        """The generated files of the teams, for the other hosts."""
        return GeneratedFileRepository(
            self.database, clock=self.sessions.now, on_changed=lambda: self.signals.send("teams", None)
        )

    @cached_property
    def vault(self) -> VaultRepository:
        """The secrets of the teams."""
        return VaultRepository(self.database, clock=self.sessions.now, master_key=self.secrets.master_key)

    @classmethod
    async def open(
        cls,
        folder: Path,
        *,
        database: DatabaseSettings = DEFAULT_DATABASE,
        exclusive: bool = True,
        tolerate_outages: bool = False,
        clock: Callable[[], float] = time.time,
        master_key: MasterKey | None = None,
    ) -> Store:
        """Open the store of a data folder, which is created if necessary.

        `exclusive` is for the hub: it locks the folder against a second hub or, on Postgres, joins the hosts
        that share the database. A command that reads or writes next to a running hub opens without it. See
        `Database.open` for `tolerate_outages`.
        """
        backend = choose_backend(folder, database, exclusive=exclusive)
        opened = await Database.open(backend, tolerate_outages=tolerate_outages)
        store = cls(
            opened,
            folder,
            clock=clock,
            master_key=master_key,
            recovered=not exclusive,
            membership=backend.membership if backend.name == "postgresql" else None,
        )
        if store.membership is not None and backend.name == "postgresql":
            store.membership.on_mute = lambda: opened.go_down(backend.cut_connections())
            store.membership.start(asyncio.get_running_loop())
            store.open_connection = partial(backend.open_watched, autocommit=False)
            store._signal_connection = backend.connect_signals(store.signals)
            store._signal_connection.start()
        try:
            with suppress(StoreError, Unavailable):  # the first reservation tries again
                await store.budgets.recover()
        except BaseException:  # cancelled: nobody will close it
            await store.close()
            raise
        return store

    async def replay_leftover_answers(self, folder: Path) -> int:
        """Write the answers that a process which has ended left in its part of the data folder.

        Returns how many there were. Raises StoreError or Unavailable.
        """
        spool = AnswerSpool(folder / ANSWERS_FOLDER, runs=self.runs, messages=self.messages)
        return await spool.replay(at_start=True)

    async def write(self, job: DatabaseJob[T]) -> T:
        """Run a job and return its result once it is committed."""
        return await self.database.write(job)

    def submit(
        self, job: DatabaseJob[T], *, is_long: bool = False, passes_lazy: bool = False
    ) -> asyncio.Future[T]:
        """Queue a job; return the future of its result, done once it is committed. See `Database.submit`."""
        return self.database.submit(job, is_long=is_long, passes_lazy=passes_lazy)

    def enqueue(
        self, job: DatabaseJob[Any], *, on_failure: Callable[[Exception], None] | None = None
    ) -> None:
        """Queue a job; jobs are committed in the order of their calls. Raises Unavailable when too many wait.

        `on_failure` is called with the error of a job that failed; without it, the error is logged.
        """
        self.database.enqueue(job, on_failure=on_failure)

    async def flush(self) -> None:
        """Wait until every queued job is committed."""
        await self.database.flush()

    async def close(self) -> None:
        """Finish queued jobs, then close the database."""
        connection, self._signal_connection = self._signal_connection, None
        if connection is not None:
            await asyncio.to_thread(connection.close)
        await self.database.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def choose_backend(
    folder: Path, database: DatabaseSettings, *, exclusive: bool = True
) -> SQLiteBackend | PostgresBackend:
    """Return the backend of a data folder: SQLite in it, or Postgres at a URL. Raises ConfigError."""
    if database.url is None:
        return SQLiteBackend(folder / DATABASE_FILE, synchronous=database.synchronous, exclusive=exclusive)
    return postgres_backend(database.url, folder=folder, use="host" if exclusive else "beside")


def postgres_backend(url: str, *, folder: Path | None = None, use: DatabaseUse = "beside") -> PostgresBackend:
    """Return the backend of a Postgres database. Raises ConfigError for a URL that cannot be read."""
    try:
        # late: psycopg is an extra, and SQLite needs none of it
        from dragoman.store.postgres.backend import PostgresBackend  # late: as above
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise ConfigError(
            "a Postgres database needs the package psycopg, which is not installed",
            hint="pip install 'dragoman[postgres]'",
        ) from None
    return PostgresBackend(url, folder=folder, use=use)
