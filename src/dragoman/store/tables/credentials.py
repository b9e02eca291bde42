"""The tables of keys, of sign-ins with them, and of secrets."""

from __future__ import annotations

from sqlalchemy import Column, Double, ForeignKey, Index, LargeBinary, Table

from dragoman.store.tables.types import TEXT, metadata

keys = Table(
    "keys",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("hash", TEXT, nullable=False, unique=True),
    Column("prefix", TEXT, nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("name", TEXT),
    Column("scopes", TEXT, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
    Column("last_used_at", Double),
    Column("models", TEXT),
    Column("limits", TEXT),
    Column("expires_at", Double),
)

# Secrets that were rotated; each stays valid until its grace period ends.
former_secrets = Table(
    "former_secrets",
    metadata,
    Column("hash", TEXT, primary_key=True, nullable=False),
    Column("key_id", TEXT, ForeignKey("keys.id", ondelete="CASCADE"), nullable=False),
    Column("valid_until", Double, nullable=False),
)

# Session tokens: what an app gives to the browsers of its users. Each stands for the key that made it.
session_tokens = Table(
    "session_tokens",
    metadata,
    Column("hash", TEXT, primary_key=True, nullable=False),
    Column("id", TEXT, nullable=False),
    Column("key_id", TEXT, ForeignKey("keys.id", ondelete="CASCADE"), nullable=False),
    Column("secret_id", TEXT),
    Column("session", TEXT),
    Column("prefix", TEXT),
    Column("role", TEXT, nullable=False),
    Column("models", TEXT),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Index("ix_session_tokens_key_id_expires_at", "key_id", "expires_at"),
    Index("ix_session_tokens_id", "id"),
)

# Sign-ins of browsers: sessions of the console, and links that open one once.
browser_sessions = Table(
    "browser_sessions",
    metadata,
    Column("hash", TEXT, primary_key=True, nullable=False),
    Column("kind", TEXT, nullable=False),
    Column("key_id", TEXT, ForeignKey("keys.id", ondelete="CASCADE"), nullable=False),
    Column("secret_id", TEXT),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Index("ix_browser_sessions_key_id_created_at", "key_id", "created_at"),
)

secrets = Table(
    "secrets",
    metadata,
    Column("name", TEXT, primary_key=True, nullable=False),
    Column("nonce", LargeBinary, nullable=False),
    Column("ciphertext", LargeBinary, nullable=False),
    Column("key_id", TEXT, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
)
