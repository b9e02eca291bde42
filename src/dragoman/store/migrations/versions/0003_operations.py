"""Operations: approvals, artifacts, MCP servers with their pinned definitions, and more of each call."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

CALLS: dict[str, TypeEngine[Any]] = {
    "agent": TEXT,
    "step": INTEGER,
    "cost": sa.Double(),
    "attempts": INTEGER,
    "notes": TEXT,
}
INDEXES = {
    "calls": (("parent_id",), ("owner", "started_at")),
    "approvals": (("owner", "created_at"), ("status", "created_at"), ("session_id",), ("call_id",)),
    "artifacts": (("owner", "created_at"), ("session_id",)),
}


def upgrade() -> None:
    for name, kind in CALLS.items():
        op.add_column("calls", sa.Column(name, kind))
    create_approvals()
    create_artifacts()
    create_mcp()
    for table, columns in INDEXES.items():
        for each in columns:
            op.create_index(f"ix_{table}_{'_'.join(each)}", table, list(each))
    running = sa.text("status = 'running'")
    op.create_index("ix_calls_running", "calls", ["id"], sqlite_where=running, postgresql_where=running)


def downgrade() -> None:
    op.drop_index("ix_calls_running", "calls")
    for table, columns in INDEXES.items():
        for each in columns:
            op.drop_index(f"ix_{table}_{'_'.join(each)}", table)
    for table in ("definitions", "mcp_servers", "artifacts", "approvals"):
        op.drop_table(table)
    for name in CALLS:
        op.drop_column("calls", name)


def create_approvals() -> None:
    op.create_table(
        "approvals",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("operation", TEXT, nullable=False),
        sa.Column("input", TEXT),
        sa.Column("input_hash", TEXT, nullable=False),
        sa.Column("items", TEXT, nullable=False),
        sa.Column("answerers", TEXT, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        *(
            sa.Column(name, TEXT)
            for name in ("call_id", "run_id", "session_id", "tool_call_id", "agent", "key_id")
        ),
        sa.Column("answered_at", sa.Double()),
        sa.Column("answered_by", TEXT),
        sa.Column("reason", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_approvals"),
    )


def create_artifacts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("media_type", TEXT, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        *(sa.Column(name, TEXT) for name in ("operation", "call_id", "run_id", "session_id")),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_artifacts"),
    )


def create_mcp() -> None:
    op.create_table(
        "mcp_servers",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_mcp_servers"),
    )
    op.create_table(
        "definitions",
        sa.Column("server", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("hash", TEXT, nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.Column("approved_at", sa.Double(), nullable=False),
        sa.Column("approved_by", TEXT),
        sa.PrimaryKeyConstraint("server", "name", name="pk_definitions"),
    )
