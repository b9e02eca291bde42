"""The tables, as SQLAlchemy Core, for SQLite and Postgres.

Times are unix seconds. JSON is stored as text. An unknown value is NULL, never a made-up zero.
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
    MetaData,
    Table,
    Text,
)
from sqlalchemy.sql import text

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Text, primary_key=True, nullable=False),
    Column("owner", Text, nullable=False),
    Column("title", Text),
    Column("agent", Text),
    Column("model", Text),
    Column("max_steps", Integer),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Index(None, "owner", "updated_at", "id"),
)

messages = Table(
    "messages",
    metadata,
    Column("session_id", Text, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("id", Text, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("role", Text, nullable=False),
    Column("metadata", Text),
    Column("created_at", Double, nullable=False),
    Index(None, "session_id", "position", unique=True),
)

parts = Table(
    "parts",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("message_id", Text, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
    ForeignKeyConstraint(
        ["session_id", "message_id"], ["messages.session_id", "messages.id"], ondelete="CASCADE"
    ),
    sqlite_with_rowid=False,
)

# What a long part has grown by since its row was written: `start` is a position in its text.
part_tails = Table(
    "part_tails",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("message_id", Text, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("text", Text, nullable=False),
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
    Column("session_id", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("scope", Text, nullable=False),
    Column("text", Text, nullable=False),
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
    Column("session_id", Text, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("runs", Integer, nullable=False),
    sqlite_with_rowid=False,
)

indexed_messages = Table(
    "indexed_messages",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("message_id", Text, primary_key=True),
    Column("runs", Integer, nullable=False),
    ForeignKeyConstraint(
        ["session_id", "message_id"], ["messages.session_id", "messages.id"], ondelete="CASCADE"
    ),
    sqlite_with_rowid=False,
)

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True, nullable=False),
    Column("session_id", Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("message_id", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("finish_reason", Text),
    Column("error", Text),
    Column("agent", Text),
    Column("model", Text),
    Column("started_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("steps", Integer, nullable=False),
    Column("usage", Text),
    Column("cost", Double),
    Index(None, "session_id", "started_at"),
)

# A session has one active run at a time; the database enforces it.
IS_RUNNING = text("status = 'running'")
HAS_CALL = text("call_id IS NOT NULL")
Index("uq_runs_active", runs.c.session_id, unique=True, sqlite_where=IS_RUNNING, postgresql_where=IS_RUNNING)

# Calls and usage have no foreign keys: calls exist without sessions too, and usage outlives them.
calls = Table(
    "calls",
    metadata,
    Column("id", Text, primary_key=True, nullable=False),
    Column("parent_id", Text),
    Column("run_id", Text),
    Column("session_id", Text),
    Column("tool_call_id", Text),
    Column("operation", Text, nullable=False),
    Column("effect", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("input", Text),
    Column("input_hash", Text, nullable=False),
    Column("idempotency_key", Text),
    Column("status", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("result", Text),
    Column("error", Text),
    Column("agent", Text),
    Column("step", Integer),
    Column("cost", Double),
    Column("attempts", Integer),
    Column("notes", Text),
    Index(None, "run_id"),
    Index(None, "session_id"),
    Index(None, "parent_id"),
    Index(None, "owner", "started_at"),
)

# At startup the few running calls are looked up among very many.
Index("ix_calls_running", calls.c.id, sqlite_where=IS_RUNNING, postgresql_where=IS_RUNNING)

# Approval requests and their answers.
approvals = Table(
    "approvals",
    metadata,
    Column("id", Text, primary_key=True, nullable=False),
    Column("owner", Text, nullable=False),
    Column("operation", Text, nullable=False),
    Column("input", Text),
    Column("input_hash", Text, nullable=False),
    Column("items", Text, nullable=False),
    Column("answerers", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("call_id", Text),
    Column("run_id", Text),
    Column("session_id", Text),
    Column("tool_call_id", Text),
    Column("agent", Text),
    Column("key_id", Text),
    Column("answered_at", Double),
    Column("answered_by", Text),
    Column("reason", Text),
    Column("state", LargeBinary),
    Index(None, "owner", "created_at"),
    Index(None, "status", "created_at"),
    Index(None, "session_id"),
    Index(None, "call_id"),
)

# Results that are too large for a model's context.
artifacts = Table(
    "artifacts",
    metadata,
    Column("id", Text, primary_key=True, nullable=False),
    Column("owner", Text, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("operation", Text),
    Column("call_id", Text),
    Column("run_id", Text),
    Column("session_id", Text),
    Column("body", LargeBinary, nullable=False),
    Index(None, "owner", "created_at"),
    Index(None, "session_id"),
)

# MCP servers added at run time, and each server's tool definitions as they were approved.
mcp_servers = Table(
    "mcp_servers",
    metadata,
    Column("name", Text, primary_key=True, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)

# Namespaces that spokes have registered in: each stays with its first owner.
spoke_namespaces = Table(
    "spoke_namespaces",
    metadata,
    Column("namespace", Text, primary_key=True, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)

definitions = Table(
    "definitions",
    metadata,
    Column("server", Text, primary_key=True, nullable=False),
    Column("name", Text, primary_key=True, nullable=False),
    Column("hash", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("approved_at", Double, nullable=False),
    Column("approved_by", Text),
)

usage = Table(
    "usage",
    metadata,
    Column("id", Text, primary_key=True, nullable=False),
    Column("run_id", Text),
    Column("session_id", Text),
    Column("owner", Text, nullable=False),
    Column("key_id", Text),
    Column("step", Integer),
    Column("provider", Text),
    Column("model_asked", Text),
    Column("model_served", Text),
    Column("input_tokens", Integer),
    Column("output_tokens", Integer),
    Column("total_tokens", Integer),
    Column("reasoning_tokens", Integer),
    Column("cached_input_tokens", Integer),
    Column("cache_write_tokens", Integer),
    Column("estimated", Boolean, nullable=False),
    Column("cost", Double),
    Column("status", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("duration", Double),
    Column("finish_reason", Text),
    Column("request_id", Text),
    Column("door", Text),
    Column("key_name", Text),
    Column("first_byte", Double),
    Column("upstream_status", Integer),
    Column("error", Text),
    Column("price_model", Text),
    Column("call_id", Text),
    Index(None, "owner", "started_at"),
    Index(None, "key_id", "started_at"),
    Index(None, "started_at", "id"),
    Index(None, "session_id"),
    Index(None, "run_id"),
)

Index("ix_usage_call_id", usage.c.call_id, sqlite_where=HAS_CALL, postgresql_where=HAS_CALL)

keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True, nullable=False),
    Column("hash", Text, nullable=False, unique=True),
    Column("prefix", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("name", Text),
    Column("scopes", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
    Column("last_used_at", Double),
    Column("models", Text),
    Column("limits", Text),
    Column("expires_at", Double),
)

# Secrets that were rotated; each stays valid until its grace period ends.
former_secrets = Table(
    "former_secrets",
    metadata,
    Column("hash", Text, primary_key=True, nullable=False),
    Column("key_id", Text, ForeignKey("keys.id", ondelete="CASCADE"), nullable=False),
    Column("valid_until", Double, nullable=False),
)

secrets = Table(
    "secrets",
    metadata,
    Column("name", Text, primary_key=True, nullable=False),
    Column("nonce", LargeBinary, nullable=False),
    Column("ciphertext", LargeBinary, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
)

# Money in billionths of a US dollar: whole numbers add up without rounding.
budgets = Table(
    "budgets",
    metadata,
    Column("scope", Text, primary_key=True, nullable=False),
    Column("window", Text, primary_key=True, nullable=False),
    Column("spent", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
)
