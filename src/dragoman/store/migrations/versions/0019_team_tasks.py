"""The tasks of teams, and the teams that are paused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None
TABLE = "team_tasks"


def upgrade() -> None:
    op.create_table(
        TABLE,
        sa.Column("id", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("key_id", TEXT),
        sa.Column("team", TEXT, nullable=False),
        sa.Column("topic", TEXT),
        sa.Column("text", TEXT, nullable=False),
        sa.Column("hash", TEXT, nullable=False),
        sa.Column("priority", TEXT, nullable=False),
        sa.Column("rank", INTEGER, nullable=False),
        sa.Column("overlap", TEXT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("source", TEXT, nullable=False),
        sa.Column("source_session", TEXT),
        sa.Column("source_message", TEXT),
        sa.Column("parent_call", TEXT),
        sa.Column("chain", TEXT),
        sa.Column("read_only", sa.Boolean(), nullable=False),
        sa.Column("detached", sa.Boolean(), nullable=False),
        sa.Column("correlation_id", TEXT),
        sa.Column("dedup_key", TEXT),
        sa.Column("budget", sa.Double()),
        sa.Column("deadline", sa.Double()),
        sa.Column("deliver", TEXT, nullable=False),
        sa.Column("wake", sa.Boolean(), nullable=False),
        sa.Column("webhook", TEXT),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("run_id", TEXT),
        sa.Column("attempts", INTEGER, nullable=False),
        sa.Column("result", TEXT),
        sa.Column("artifact", TEXT),
        sa.Column("error", TEXT),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("ended_at", sa.Double()),
        sa.Column("delivered_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_team_tasks"),
    )
    create_indexes()
    op.create_table(
        "team_pauses",
        sa.Column("team", TEXT, nullable=False),
        sa.Column("paused_at", sa.Double(), nullable=False),
        sa.Column("paused_by", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("team", name="pk_team_pauses"),
    )


def create_indexes() -> None:
    op.create_index("ix_team_tasks_owner_created_at_id", TABLE, ["owner", "created_at", "id"])
    op.create_index("ix_team_tasks_team_state_rank", TABLE, ["team", "state", "rank"])
    op.create_index("ix_team_tasks_session_id", TABLE, ["session_id"])
    op.create_index("ix_team_tasks_source_session", TABLE, ["source_session"])
    op.create_index("ix_team_tasks_parent_call", TABLE, ["parent_call"])
    has_key, is_open = sa.text("dedup_key IS NOT NULL"), sa.text("delivered_at IS NULL")
    op.create_index(
        "uq_team_tasks_dedup_key",
        TABLE,
        ["owner", "dedup_key"],
        unique=True,
        sqlite_where=has_key,
        postgresql_where=has_key,
    )
    op.create_index("ix_team_tasks_open", TABLE, ["state"], sqlite_where=is_open, postgresql_where=is_open)


def downgrade() -> None:
    op.drop_table("team_pauses")
    op.drop_table(TABLE)
