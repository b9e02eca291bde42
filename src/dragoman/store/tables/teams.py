"""The tables of teams' memories, vault entries and generated files."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Double, Index, LargeBinary, Table
from sqlalchemy.sql import text

from dragoman.store.tables.types import TEXT, metadata

# The memories of a team, separate for each owner. One row of a key is active; earlier ones are its history.
# `words` are the words of key and content as a search compares them. `sources` is JSON.
memories = Table(
    "memories",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("team", TEXT, nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("key", TEXT, nullable=False),
    Column("kind", TEXT, nullable=False),
    Column("content", TEXT, nullable=False),
    Column("words", TEXT, nullable=False),
    Column("is_active", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", TEXT),
    Column("ended_at", Double),
    Column("supersedes", TEXT),
    Column("reason", TEXT),
    Column("confidence", TEXT),
    Column("sources", TEXT),
    Index(
        None,
        "team",
        "owner",
        "key",
        unique=True,
        sqlite_where=text("is_active"),
    ),
    Index(None, "team", "owner", "created_at"),
)

# Secrets of teams. The owner is empty for those that the operator manages. `receivers` is JSON: patterns of
# the operations that may receive the value; `plain`: whether the team's model may read it; `origins`: JSON,
# where it may be sent if an input names the address.
vault_entries = Table(
    "vault_entries",
    metadata,
    Column("team", TEXT, primary_key=True, nullable=False),
    Column("owner", TEXT, primary_key=True, nullable=False),
    Column("name", TEXT, primary_key=True, nullable=False),
    Column("nonce", LargeBinary, nullable=False),
    Column("ciphertext", LargeBinary, nullable=False),
    Column("key_id", TEXT, nullable=False),
    Column("receivers", TEXT, nullable=False),
    Column("plain", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("origins", TEXT),
)

# The files that hosts write for agents, by path below the folder of teams. Without content it was removed.
generated_files = Table(
    "generated_files",
    metadata,
    Column("path", TEXT, primary_key=True, nullable=False),
    Column("content", TEXT),
    Column("hash", TEXT, nullable=False),
    Column("changed_at", Double, nullable=False),
)
