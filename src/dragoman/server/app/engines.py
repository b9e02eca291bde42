"""Opens the engine of a hub: DBOS where hosts share a Postgres database, otherwise a queue in memory."""

from __future__ import annotations

import logging

from dragoman.config import Config
from dragoman.errors import Unavailable
from dragoman.runs.engine import Engine, MemoryEngine
from dragoman.runs.registry import RunRegistry
from dragoman.runs.takeover import QueuedTurns
from dragoman.server.app.services import HubServices
from dragoman.store.store import Store

log = logging.getLogger(__name__)


def open_engine(config: Config, store: Store) -> Engine:
    """Return the engine of a hub; `start` begins its work.

    A host without DBOS, because its package is not installed or another hub of the process has it, queues in
    memory. Its runs are found by other hosts all the same, a few seconds later.
    """
    at_once = config.limits.resumed
    if store.open_connection is None or store.host_id is None:
        return MemoryEngine(at_once=at_once)
    try:
        # late: DBOS is an extra, and takes a third of a second to load
        from dragoman.runs.dbos_engine import DbosEngine

        engine = DbosEngine(
            store.open_connection,
            host_id=store.host_id,
            at_once=at_once,
            notify_hosts=lambda: store.signals.send("turns", None),
        )
    except ModuleNotFoundError as error:
        if error.name != "dbos":
            raise
        log.warning("the package dbos is not installed: pip install 'dragoman[postgres]'")
    except Unavailable:
        log.info("another hub of this process has the queue that hosts share")
    else:
        store.signals.subscribe("turns", engine.wake)
        return engine
    return MemoryEngine(at_once=at_once)


def build_queued_turns(services: HubServices, *, runs: RunRegistry, engine: Engine) -> QueuedTurns:
    """Return what queues and executes the turns of a hub."""
    abandon = services.calls.approval_flow.abandon
    return QueuedTurns(services.store, runs, engine=engine, abandon=abandon)
