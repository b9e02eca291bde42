"""Runs in the background, messages that wait for a run to end, and the webhooks of runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("background", sa.Boolean()))
    op.add_column("runs", sa.Column("webhook", TEXT))
    op.create_index("ix_runs_owner_started_at_id", "runs", ["owner", "started_at", "id"])
    create_queued_runs()
    create_webhook_deliveries()


def create_queued_runs() -> None:
    is_queued = sa.text("status = 'queued'")
    op.create_table(
        "queued_runs",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("key_id", TEXT),
        sa.Column("message_id", TEXT, nullable=False),
        sa.Column("mode", TEXT, nullable=False),
        sa.Column("rank", INTEGER, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("webhook", TEXT),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("error", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_queued_runs"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_queued_runs_session_id_sessions", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_queued_runs_owner_created_at_id", "queued_runs", ["owner", "created_at", "id"])
    op.create_index(
        "uq_queued_runs_waiting",
        "queued_runs",
        ["session_id", "message_id"],
        unique=True,
        sqlite_where=is_queued,
        postgresql_where=is_queued,
    )


def create_webhook_deliveries() -> None:
    is_pending = sa.text("status = 'pending'")
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("url", TEXT, nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("attempts", INTEGER, nullable=False),
        sa.Column("next_at", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("error", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
    )
    op.create_index("ix_webhook_deliveries_run_id", "webhook_deliveries", ["run_id"])
    op.create_index(
        "ix_webhook_deliveries_pending",
        "webhook_deliveries",
        ["session_id", "created_at"],
        sqlite_where=is_pending,
        postgresql_where=is_pending,
    )


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_table("queued_runs")
    op.drop_index("ix_runs_owner_started_at_id", "runs")
    op.drop_column("runs", "webhook")
    op.drop_column("runs", "background")
