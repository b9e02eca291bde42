"""The tables of the Responses API."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Double, ForeignKey, Index, Table

from dragoman.store.tables.types import INTEGER, TEXT, metadata

# Responses of the Responses API: `input` are the items that a request added to those of `previous_id`. All
# responses that lead back to one have its `root_id`.
responses = Table(
    "responses",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("root_id", TEXT, nullable=False),
    Column("previous_id", TEXT),
    Column("status", TEXT, nullable=False),
    Column("background", Boolean, nullable=False),
    Column("cancel_requested", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("size", INTEGER, nullable=False),
    Column("body", TEXT, nullable=False),
    Column("input", TEXT, nullable=False),
    Index(None, "owner", "created_at", "id"),
    Index(None, "root_id", "created_at"),
)

# Where an item of a response is: `position` counts its input and then its output.
response_items = Table(
    "response_items",
    metadata,
    Column("owner", TEXT, primary_key=True, nullable=False),
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("response_id", TEXT, ForeignKey("responses.id", ondelete="CASCADE"), nullable=False),
    Column("position", INTEGER, nullable=False),
    Index(None, "response_id"),
)

# The stream events of a response in the background, several to a row: from `first` to `last`.
response_events = Table(
    "response_events",
    metadata,
    Column("response_id", TEXT, ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    Column("first", INTEGER, primary_key=True, autoincrement=False, nullable=False),
    Column("last", INTEGER, nullable=False),
    Column("body", TEXT, nullable=False),
)

# Conversations of the Responses API; `size` is that of the items in bytes.
conversations = Table(
    "conversations",
    metadata,
    Column("id", TEXT, primary_key=True, nullable=False),
    Column("owner", TEXT, nullable=False),
    Column("metadata", TEXT, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("size", INTEGER, nullable=False),
    Index(None, "owner", "updated_at"),
)

conversation_items = Table(
    "conversation_items",
    metadata,
    Column("conversation_id", TEXT, ForeignKey("conversations.id", ondelete="CASCADE"), primary_key=True),
    Column("position", INTEGER, primary_key=True, autoincrement=False, nullable=False),
    Column("id", TEXT, nullable=False),
    Column("body", TEXT, nullable=False),
    Index(None, "conversation_id", "id", unique=True),
)
