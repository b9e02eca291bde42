"""Operations: approvals, artifacts, MCP servers with their pinned definitions, and more of each call."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

CALLS: dict[str, TypeEngine[Any]] = {
    "agent": sa.Text(),
    "step": sa.Integer(),
    "cost": sa.Double(),
    "attempts": sa.Integer(),
    "notes": sa.Text(),
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
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("input", sa.Text()),
        sa.Column("input_hash", sa.Text(), nullable=False),
        sa.Column("items", sa.Text(), nullable=False),
        sa.Column("answerers", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        *(
            sa.Column(name, sa.Text())
            for name in ("call_id", "run_id", "session_id", "tool_call_id", "agent", "key_id")
        ),
        sa.Column("answered_at", sa.Double()),
        sa.Column("answered_by", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_approvals"),
    )


def create_artifacts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        *(sa.Column(name, sa.Text()) for name in ("operation", "call_id", "run_id", "session_id")),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_artifacts"),
    )


def create_mcp() -> None:
    op.create_table(
        "mcp_servers",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_mcp_servers"),
    )
    op.create_table(
        "definitions",
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("approved_at", sa.Double(), nullable=False),
        sa.Column("approved_by", sa.Text()),
        sa.PrimaryKeyConstraint("server", "name", name="pk_definitions"),
    )
