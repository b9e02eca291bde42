"""The tables, as SQLAlchemy Core, for SQLite and Postgres.

Times are unix seconds. JSON is stored as text. An unknown value is NULL, never a made-up zero.
Text is ordered by its bytes, and integers have 64 bits, as in SQLite.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
)
from sqlalchemy.sql import literal_column, text

from dragoman.store.tables.approvals import approvals, policy_rules
from dragoman.store.tables.credentials import browser_sessions, former_secrets, keys, secrets, session_tokens
from dragoman.store.tables.events import hub_events, session_grants
from dragoman.store.tables.hosts import budgets, host_rates, host_reservations, hosts
from dragoman.store.tables.responses import responses
from dragoman.store.tables.tasks import team_pauses, team_tasks
from dragoman.store.tables.teams import memories
from dragoman.store.tables.triggers import occurrences, triggers
from dragoman.store.tables.types import INTEGER, TEXT, metadata

__all__ = [
    "INTEGER",
    "TEXT",
    "approvals",
    "browser_sessions",
    "budgets",
    "former_secrets",
    "host_rates",
    "host_reservations",
    "hosts",
    "hub_events",
    "keys",
    "memories",
    "metadata",
    "occurrences",
    "policy_rules",
    "responses",
    "secrets",
    "session_grants",
    "session_tokens",
    "team_pauses",
    "team_tasks",
    "triggers",
]

sessions = Table(
    "sessions",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("title", TEXT),
    Column("agent", TEXT),
    Column("model", TEXT),
    Column("max_steps", INTEGER),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("kind", TEXT),
    Column("labels", TEXT),
    Column("archived_at", Double),
    Column("runner", INTEGER),
    Column("runner_host", TEXT),
    Index(None, "owner", "updated_at", "id"),
)
DELETED_OWNER = ""  # of a session that is being deleted: no owner
# While others share its messages, it keeps its owner, who still reads them.
IS_DELETED = (sessions.c.owner == literal_column(f"'{DELETED_OWNER}'")) | (
    sessions.c.kind.is_not_distinct_from(literal_column("'deleting'"))
)

# The branches of sessions that have several, or share messages with the session that they were forked from:
# the messages from position `start` on follow the parent message. See message_paths.py.
branches = Table(
    "branches",
    metadata,
    Column("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("start", INTEGER, primary_key=True, autoincrement=False),
    Column("parent_session_id", TEXT),
    Column("parent_start", INTEGER),
    Column("parent_position", INTEGER),
    Index(None, "parent_session_id"),
)

# Links to sessions as they were when they were shared: up to the message at `position` of a branch.
shares = Table(
    "shares",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("hash", TEXT, nullable=False, unique=True),
    Column("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("tools", Boolean, nullable=False),
    Column("branch_session_id", TEXT, nullable=False),
    Column("branch_start", INTEGER, nullable=False),
    Column("position", INTEGER, nullable=False),
    Index(None, "session_id"),
    Index(None, "branch_session_id"),
)

messages = Table(
    "messages",
    metadata,
    Column("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("id", TEXT, primary_key=True),
    Column("position", INTEGER, nullable=False),
    Column("role", TEXT, nullable=False),
    Column("metadata", TEXT),
    Column("created_at", Double, nullable=False),
    Column("client_id", TEXT),
    Index(None, "session_id", "position", unique=True),
)

HAS_CLIENT_ID = text("client_id IS NOT NULL")
Index(
    "ix_messages_session_id_client_id",
    messages.c.session_id,
    messages.c.client_id,
    sqlite_where=HAS_CLIENT_ID,
)

parts = Table(
    "parts",
    metadata,
    Column("session_id", TEXT, primary_key=True),
    Column("message_id", TEXT, primary_key=True),
    Column("position", INTEGER, primary_key=True, autoincrement=False),
    Column("body", TEXT, nullable=False),
    ForeignKeyConstraint(
        ["session_id", "message_id"], ["messages.session_id", "messages.id"], ondelete="CASCADE"
    ),
)

# Text that was added to a long part since its row was written: `start` is a position in its text.
part_tails = Table(
    "part_tails",
    metadata,
    Column("session_id", TEXT, primary_key=True),
    Column("message_id", TEXT, primary_key=True),
    Column("position", INTEGER, primary_key=True, autoincrement=False),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("text", TEXT, nullable=False),
    ForeignKeyConstraint(
        ["session_id", "message_id", "position"],
        ["parts.session_id", "parts.message_id", "parts.position"],
        ondelete="CASCADE",
    ),
)

# The plain text of parts, for search; `scope` has terms for the owner and the session. See full_text.py.
passages = Table(
    "passages",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, nullable=False),
    Column("session_id", TEXT, nullable=False),
    Column("message_id", TEXT, nullable=False),
    Column("position", INTEGER, nullable=False),
    Column("scope", TEXT, nullable=False),
    Column("text", TEXT, nullable=False),
    ForeignKeyConstraint(
        ["session_id", "message_id", "position"],
        ["parts.session_id", "parts.message_id", "parts.position"],
        ondelete="CASCADE",
    ),
    Index(None, "session_id", "message_id", "position", unique=True),
)

# What is indexed: `runs` is how many runs of the session, or of the message, had ended at that time.
indexed_sessions = Table(
    "indexed_sessions",
    metadata,
    Column("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("runs", INTEGER, nullable=False),
    sqlite_with_rowid=False,
)

indexed_messages = Table(
    "indexed_messages",
    metadata,
    Column("session_id", TEXT, primary_key=True),
    Column("message_id", TEXT, primary_key=True),
    Column("runs", INTEGER, nullable=False),
    ForeignKeyConstraint(
        ["session_id", "message_id"], ["messages.session_id", "messages.id"], ondelete="CASCADE"
    ),
    sqlite_with_rowid=False,
)

runs = Table(
    "runs",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("message_id", TEXT, nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("status", TEXT, nullable=False),
    Column("finish_reason", TEXT),
    Column("error", TEXT),
    Column("agent", TEXT),
    Column("model", TEXT),
    Column("started_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("steps", INTEGER, nullable=False),
    Column("usage", TEXT),
    Column("cost", Double),
    Column("key_id", Text),
    Column("tools", Text),
    Column("crashes", Integer),
    Column("settled_parts", Integer),
    Column("host", TEXT),
    Column("epoch", INTEGER),
    Column("background", Boolean),
    Column("webhook", TEXT),
    Column("door", TEXT),
    Column("compact_threshold", INTEGER),
    Column("max_tool_calls", INTEGER),
    Column("output_format", TEXT),
    Index(None, "session_id", "started_at"),
    Index(None, "owner", "started_at", "id"),
    Index(None, "started_at", "id"),
)

# What the runner of a run has sent, until the run ends: batches of JSON lines, each up to the frame `seq`.
runner_frames = Table(
    "runner_frames",
    metadata,
    Column("run_id", TEXT, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("body", TEXT, nullable=False),
)

# A session has one active run at a time; the database enforces it.
IS_RUNNING = text("status = 'running'")
HAS_CALL = text("call_id IS NOT NULL")
Index("uq_runs_active", runs.c.session_id, unique=True, sqlite_where=IS_RUNNING)

# Messages that wait for the run of their session to end; a row's id becomes that of its run.
queued_runs = Table(
    "queued_runs",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("key_id", TEXT),
    Column("message_id", TEXT, nullable=False),
    Column("mode", TEXT, nullable=False),
    Column("rank", INTEGER, nullable=False),
    Column("status", TEXT, nullable=False),
    Column("body", TEXT, nullable=False),
    Column("background", Boolean, nullable=False),
    Column("webhook", TEXT),
    Column("created_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("error", TEXT),
    Index(None, "owner", "created_at", "id"),
)
IS_QUEUED = text("status = 'queued'")
Index(
    "uq_queued_runs_waiting",
    queued_runs.c.session_id,
    queued_runs.c.message_id,
    unique=True,
    sqlite_where=IS_QUEUED,
)

# What is posted when runs end. The deliveries of a session are made in order.
webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("run_id", TEXT, nullable=False),
    Column("session_id", TEXT, nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("url", TEXT, nullable=False),
    Column("body", TEXT, nullable=False),
    Column("status", TEXT, nullable=False),
    Column("attempts", INTEGER, nullable=False),
    Column("next_at", Double, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("error", TEXT),
    Index(None, "run_id"),
)
IS_PENDING = text("status = 'pending'")
Index(
    "ix_webhook_deliveries_pending",
    webhook_deliveries.c.session_id,
    webhook_deliveries.c.created_at,
    sqlite_where=IS_PENDING,
)

# Where the states of A2A tasks are posted to; `body` is encrypted.
push_configs = Table(
    "push_configs",
    metadata,
    Column("task_id", TEXT, primary_key=True, nullable=False),
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("message_id", TEXT, nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("agent", TEXT, nullable=False),
    Column("body", TEXT, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("delivered", Double, nullable=False),
    Column("attempts", INTEGER, nullable=False),
    Column("next_at", Double, nullable=False),
    Column("error", TEXT),
    Index(None, "owner"),
    Index(None, "session_id"),
)

# Calls and usage have no foreign keys: calls exist without sessions too, and usage outlives them. `policy` is
# the decision about the call, `door` the endpoint that a call came through that nothing else made.
calls = Table(
    "calls",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("parent_id", TEXT),
    Column("run_id", TEXT),
    Column("session_id", TEXT),
    Column("tool_call_id", TEXT),
    Column("operation", TEXT, nullable=False),
    Column("effect", TEXT, nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("input", TEXT),
    Column("input_hash", TEXT, nullable=False),
    Column("idempotency_key", TEXT),
    Column("status", TEXT, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("result", TEXT),
    Column("error", TEXT),
    Column("agent", TEXT),
    Column("step", INTEGER),
    Column("cost", Double),
    Column("attempts", INTEGER),
    Column("notes", TEXT),
    Column("host", TEXT),
    Column("policy", TEXT),
    Column("door", TEXT),
    Index(None, "session_id"),
    Index(None, "owner", "started_at"),
    Index(None, "started_at", "id"),
)

# At startup the few running calls are looked up among very many.
Index("ix_calls_running", calls.c.id, sqlite_where=IS_RUNNING)

# Partial, as SQLite would otherwise use the index for rows without a parent or run, and read all of them.
IS_BELOW = text("parent_id IS NOT NULL")
Index("ix_calls_below", calls.c.parent_id, sqlite_where=IS_BELOW)
IS_OF_RUN = text("run_id IS NOT NULL")
Index(
    "ix_calls_of_run",
    calls.c.run_id,
    calls.c.started_at,
    calls.c.id,
    sqlite_where=IS_OF_RUN,
)

# Roots are few among many calls below them, and so are failures: lists and counts of them read no others.
IS_ROOT = text("parent_id IS NULL AND run_id IS NULL")
HAS_FAILED = text("status = 'failed'")
Index("ix_calls_roots", calls.c.started_at, calls.c.id, sqlite_where=IS_ROOT)
Index(
    "ix_calls_owner_roots",
    calls.c.owner,
    calls.c.started_at,
    calls.c.id,
    sqlite_where=IS_ROOT,
)
Index("ix_calls_failed", calls.c.run_id, sqlite_where=HAS_FAILED)

# The answers of sub-agents while they work, part by part, by the call in which each works.
subagent_parts = Table(
    "subagent_parts",
    metadata,
    Column("call_id", Text, primary_key=True, nullable=False),
    Column("position", Integer, primary_key=True, autoincrement=False, nullable=False),
    Column("body", Text, nullable=False),
)

# Results that are too large for a model's context.
artifacts = Table(
    "artifacts",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("media_type", TEXT, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("operation", TEXT),
    Column("call_id", TEXT),
    Column("run_id", TEXT),
    Column("session_id", TEXT),
    Column("body", LargeBinary, nullable=False),
    Index(None, "owner", "created_at"),
    Index(None, "session_id"),
)

# MCP servers added at run time, and each server's tool definitions as they were approved.
mcp_servers = Table(
    "mcp_servers",
    metadata,
    Column("name", TEXT, primary_key=True, nullable=False),
    Column("body", TEXT, nullable=False),
    Column("created_at", Double, nullable=False),
)

# Namespaces that spokes have registered in: each stays with its first owner.
spoke_namespaces = Table(
    "spoke_namespaces",
    metadata,
    Column("namespace", TEXT, primary_key=True, nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("created_at", Double, nullable=False),
)

definitions = Table(
    "definitions",
    metadata,
    Column("server", TEXT, primary_key=True, nullable=False),
    Column("name", TEXT, primary_key=True, nullable=False),
    Column("hash", TEXT, nullable=False),
    Column("body", TEXT, nullable=False),
    Column("approved_at", Double, nullable=False),
    Column("approved_by", TEXT),
)

usage = Table(
    "usage",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("run_id", TEXT),
    Column("session_id", TEXT),
    Column("owner", TEXT, nullable=False),
    Column("key_id", TEXT),
    Column("step", INTEGER),
    Column("provider", TEXT),
    Column("model_asked", TEXT),
    Column("model_served", TEXT),
    Column("input_tokens", INTEGER),
    Column("output_tokens", INTEGER),
    Column("total_tokens", INTEGER),
    Column("reasoning_tokens", INTEGER),
    Column("cached_input_tokens", INTEGER),
    Column("cache_write_tokens", INTEGER),
    Column("estimated", Boolean, nullable=False),
    Column("cost", Double),
    Column("status", TEXT, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("duration", Double),
    Column("finish_reason", TEXT),
    Column("request_id", TEXT),
    Column("door", TEXT),
    Column("key_name", TEXT),
    Column("first_byte", Double),
    Column("upstream_status", INTEGER),
    Column("error", TEXT),
    Column("price_model", TEXT),
    Column("call_id", TEXT),
    Index(None, "owner", "started_at"),
    Index(None, "key_id", "started_at"),
    Index(None, "started_at", "id"),
    Index(None, "session_id"),
)

Index("ix_usage_of_run", usage.c.run_id, sqlite_where=IS_OF_RUN)
Index("ix_usage_call_id", usage.c.call_id, sqlite_where=HAS_CALL)
