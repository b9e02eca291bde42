"""What the runner of each active run has sent: after a crash, the run's message is rebuilt from it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec
from sqlalchemy import ColumnElement, bindparam, delete, exists, literal_column, select, tuple_

from dragoman.store.connection import Compiler, DatabaseConnection, DatabaseJob
from dragoman.store.database import Database
from dragoman.store.tables.core import IS_RUNNING, runner_frames, runs

PURGED_BATCHES = 20  # that are deleted in one transaction
ZERO: ColumnElement[int] = literal_column("0")


class FrameBatch(msgspec.Struct, frozen=True):
    """Frames of one run up to the one numbered `seq`, as JSON lines; `position` orders the batches."""

    position: int
    seq: int
    body: str


class RunnerFrameStatements:
    """The SQL of `RunnerFrameRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        of_run = runner_frames.c.run_id == bindparam("run_id")
        put = compiler.insert(runner_frames)
        put = put.on_conflict_do_update(
            index_elements=runner_frames.primary_key,
            set_={"seq": put.excluded.seq, "body": put.excluded.body},
        )
        found = select(runner_frames.c.position, runner_frames.c.seq, runner_frames.c.body).where(of_run)
        is_running = select(runs.c.id).where(runs.c.id == runner_frames.c.run_id, IS_RUNNING)
        place = runner_frames.c.run_id, runner_frames.c.position
        some = select(*place).where(~exists(is_running)).limit(literal_column(str(PURGED_BATCHES)))
        self.put = compiler.compile(put)
        self.list = compiler.compile(found.order_by(runner_frames.c.position))
        self.delete = compiler.compile(delete(runner_frames).where(of_run))
        self.purge = compiler.compile(delete(runner_frames).where(tuple_(*place).in_(some.offset(ZERO))))


class RunnerFrameRepository:
    """The frames of the runs that runners answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def _sql(self) -> RunnerFrameStatements:
        return self._database.statements(RunnerFrameStatements)

    def put_job(self, run_id: str, batch: FrameBatch) -> DatabaseJob[None]:
        """Return the job that stores frames of a run."""
        params = {"run_id": run_id, "position": batch.position, "seq": batch.seq, "body": batch.body}

        def job(connection: DatabaseConnection) -> None:
            connection.execute_batched(self._sql.put, params)

        return job

    async def list(self, run_id: str) -> Sequence[FrameBatch]:
        """Return the frames of a run, in order."""
        params = {"run_id": run_id}
        rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.list, params))
        return [FrameBatch(int(position), int(seq), str(body)) for position, seq, body in rows]

    def delete(self, run_id: str) -> None:
        """Delete the frames of a run that has ended, in the background."""
        params = {"run_id": run_id}
        self._database.enqueue(lambda connection: connection.execute_batched(self._sql.delete, params))

    async def purge(self) -> None:
        """Delete the frames of runs that are over, which a crash may have left; some in each transaction."""
        while await self._database.submit(
            lambda connection: connection.execute(self._sql.purge, {}), is_long=True
        ):
            pass
