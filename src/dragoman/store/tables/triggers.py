"""The tables of triggers of teams, and of what they fired."""

from __future__ import annotations

from sqlalchemy import Column, Double, ForeignKey, Index, Table
from sqlalchemy.sql import text

from dragoman.store.tables.types import INTEGER, TEXT, metadata

# `body` is the definition as JSON, `secret` what signs webhooks, encrypted. `next_at` is when it is due,
# `progress` how far messages and files were read, `cursor` what its tasks pass to the next.
triggers = Table(
    "triggers",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("key_id", TEXT),
    Column("team", TEXT, nullable=False),
    Column("name", TEXT, nullable=False),
    Column("type", TEXT, nullable=False),
    Column("source", TEXT, nullable=False),
    Column("body", TEXT, nullable=False),
    Column("hash", TEXT, nullable=False),
    Column("secret", TEXT),
    Column("state", TEXT, nullable=False),
    Column("reason", TEXT),
    Column("approval_id", TEXT),
    Column("session_id", TEXT),
    Column("next_at", Double),
    Column("cursor", TEXT),
    Column("progress", TEXT),
    Column("failures", INTEGER, nullable=False),
    Column("overlaps", INTEGER, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("fired_at", Double),
    Column("result_at", Double),
    Index(None, "owner", "team", "name", unique=True),
    Index(None, "state", "type"),
)

IS_TIMED = text("next_at IS NOT NULL")
Index("ix_triggers_next_at", triggers.c.next_at, sqlite_where=IS_TIMED)

# One row for each occurrence of a trigger, whichever host notices it. `next_at` is when to handle it again.
occurrences = Table(
    "trigger_occurrences",
    metadata,
    Column(
        "trigger_id", TEXT, ForeignKey("triggers.id", ondelete="CASCADE"), primary_key=True, nullable=False
    ),
    Column("key", TEXT, primary_key=True, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("state", TEXT, nullable=False),
    Column("period", TEXT),
    Column("input", TEXT, nullable=False),
    Column("task_id", TEXT),
    Column("approval_id", TEXT),
    Column("next_at", Double),
    Column("usd_limit", Double),
    Column("tokens", INTEGER),
    Column("cost", Double),
    Column("result", TEXT),
    Column("error", TEXT),
    Column("ended_at", Double),
    Index(None, "trigger_id", "created_at"),
)

Index("ix_trigger_occurrences_next_at", occurrences.c.next_at, sqlite_where=IS_TIMED)
