"""The tables of approval requests, and of standing rules."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Double, Index, LargeBinary, Table

from dragoman.store.tables.types import TEXT, metadata

# Approval requests and their answers.
approvals = Table(
    "approvals",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("operation", TEXT, nullable=False),
    Column("input", TEXT),
    Column("input_hash", TEXT, nullable=False),
    Column("items", TEXT, nullable=False),
    Column("answerers", TEXT, nullable=False),
    Column("status", TEXT, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("call_id", TEXT),
    Column("run_id", TEXT),
    Column("session_id", TEXT),
    Column("tool_call_id", TEXT),
    Column("agent", TEXT),
    Column("key_id", TEXT),
    Column("answered_at", Double),
    Column("answered_by", TEXT),
    Column("reason", TEXT),
    Column("state", LargeBinary),
    Index(None, "owner", "created_at"),
    Index(None, "owner", "input_hash", "created_at"),
    Index(None, "status", "created_at"),
    Index(None, "session_id"),
    Index(None, "call_id"),
)

# Standing rules: calls of an operation by its provider that are always allowed for an owner and an agent.
policy_rules = Table(
    "policy_rules",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("operation", TEXT, nullable=False),
    Column("provider", TEXT, nullable=False),
    Column("agent", TEXT),
    Column("created_at", Double, nullable=False),
    Column("created_by", TEXT, nullable=False),
    Column("key_id", TEXT),
    Column("approval_id", TEXT),
    Column("by_admin", Boolean),
    Index(None, "owner", "created_at"),
)
