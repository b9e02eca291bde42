"""The tables of events of sessions, and of grants, by which sessions are shared."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, ForeignKey, Index, Integer, Table

from dragoman.store.tables.types import TEXT, metadata

# What happened in sessions and to hosts, for those who follow it and for the audit log. `actor` is the owner
# who did it. `xid` is the transaction on Postgres, where ids are not in the order of commits; 0 on SQLite.
hub_events = Table(
    "hub_events",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, nullable=False),
    Column("xid", BigInteger, nullable=False),
    Column("session_id", TEXT),
    Column("owner", TEXT, nullable=False),
    Column("name", TEXT, nullable=False),
    Column("data", TEXT, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("actor", TEXT),
    Column("key_id", TEXT),
    Index(None, "xid", "id"),
    Index(None, "session_id", "id"),
)

# Who else may use a session: `grantee` is an owner, or the id of a key.
session_grants = Table(
    "session_grants",
    metadata,
    Column("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("kind", TEXT, primary_key=True, nullable=False),
    Column("grantee", TEXT, primary_key=True, nullable=False),
    Column("role", TEXT, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", TEXT, nullable=False),
    Index(None, "kind", "grantee"),
)
