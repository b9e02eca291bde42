"""The tables of the tasks of teams."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Double, Index, Table
from sqlalchemy.sql import text

from dragoman.store.tables.types import INTEGER, TEXT, metadata

# The tasks of teams. `chain` are the agents above, as JSON, `source_session` and `source_message` the answer
# in which it was given, `hash` that of its normalised text. `delivered_at` is when its result was delivered
# to the session where it was given; it is set at the end of a task whose result nobody gets.
team_tasks = Table(
    "team_tasks",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("key_id", TEXT),
    Column("team", TEXT, nullable=False),
    Column("topic", TEXT),
    Column("text", TEXT, nullable=False),
    Column("hash", TEXT, nullable=False),
    Column("priority", TEXT, nullable=False),
    Column("rank", INTEGER, nullable=False),
    Column("overlap", TEXT, nullable=False),
    Column("state", TEXT, nullable=False),
    Column("source", TEXT, nullable=False),
    Column("source_session", TEXT),
    Column("source_message", TEXT),
    Column("parent_call", TEXT),
    Column("chain", TEXT),
    Column("read_only", Boolean, nullable=False),
    Column("detached", Boolean, nullable=False),
    Column("correlation_id", TEXT),
    Column("dedup_key", TEXT),
    Column("budget", Double),
    Column("deadline", Double),
    Column("deliver", TEXT, nullable=False),
    Column("wake", Boolean, nullable=False),
    Column("webhook", TEXT),
    Column("session_id", TEXT, nullable=False),
    Column("run_id", TEXT),
    Column("attempts", INTEGER, nullable=False),
    Column("result", TEXT),
    Column("artifact", TEXT),
    Column("error", TEXT),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
    Column("delivered_at", Double),
    Column("budget_left", Double),
    Column("subagent", TEXT),
    Column("max_steps", INTEGER),
    Column("stall_level", INTEGER),
    Column("shared_budgets", TEXT),
    Index(None, "owner", "created_at", "id"),
    Index(None, "team", "state", "rank"),
    Index(None, "session_id"),
    Index(None, "source_session"),
    Index(None, "parent_call"),
)
HAS_KEY = text("dedup_key IS NOT NULL")
Index(
    "uq_team_tasks_dedup_key",
    team_tasks.c.owner,
    team_tasks.c.dedup_key,
    unique=True,
    sqlite_where=HAS_KEY,
)
IS_OPEN_TASK = text("delivered_at IS NULL")
Index(
    "ix_team_tasks_open",
    team_tasks.c.state,
    team_tasks.c.owner,
    sqlite_where=IS_OPEN_TASK,
)

# Teams that begin no tasks until they are resumed.
team_pauses = Table(
    "team_pauses",
    metadata,
    Column("team", TEXT, primary_key=True, nullable=False),
    Column("paused_at", Double, nullable=False),
    Column("paused_by", TEXT, nullable=False),
)
