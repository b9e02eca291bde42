"""Triggers of teams, and what they fired."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

IS_TIMED = sa.text("next_at IS NOT NULL")


def upgrade() -> None:
    create_triggers()
    create_occurrences()


def create_triggers() -> None:
    op.create_table(
        "triggers",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("key_id", TEXT),
        sa.Column("team", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("source", TEXT, nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.Column("hash", TEXT, nullable=False),
        sa.Column("secret", TEXT),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("reason", TEXT),
        sa.Column("approval_id", TEXT),
        sa.Column("session_id", TEXT),
        sa.Column("next_at", sa.Double()),
        sa.Column("cursor", TEXT),
        sa.Column("progress", TEXT),
        sa.Column("failures", INTEGER, nullable=False),
        sa.Column("overlaps", INTEGER, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("fired_at", sa.Double()),
        sa.Column("result_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_triggers"),
    )
    op.create_index("ix_triggers_owner_team_name", "triggers", ["owner", "team", "name"], unique=True)
    op.create_index("ix_triggers_state_type", "triggers", ["state", "type"])
    create_partial_index("triggers")


def create_occurrences() -> None:
    op.create_table(
        "trigger_occurrences",
        sa.Column("trigger_id", TEXT, nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("period", TEXT),
        sa.Column("input", TEXT, nullable=False),
        sa.Column("task_id", TEXT),
        sa.Column("approval_id", TEXT),
        sa.Column("next_at", sa.Double()),
        sa.Column("usd_limit", sa.Double()),
        sa.Column("tokens", INTEGER),
        sa.Column("cost", sa.Double()),
        sa.Column("result", TEXT),
        sa.Column("error", TEXT),
        sa.Column("ended_at", sa.Double()),
        sa.PrimaryKeyConstraint("trigger_id", "key", name="pk_trigger_occurrences"),
        sa.ForeignKeyConstraint(
            ["trigger_id"],
            ["triggers.id"],
            name="fk_trigger_occurrences_trigger_id_triggers",
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "ix_trigger_occurrences_trigger_id_created_at", "trigger_occurrences", ["trigger_id", "created_at"]
    )
    create_partial_index("trigger_occurrences")


def create_partial_index(table: str) -> None:
    op.create_index(
        f"ix_{table}_next_at", table, ["next_at"], sqlite_where=IS_TIMED, postgresql_where=IS_TIMED
    )


def downgrade() -> None:
    op.drop_table("trigger_occurrences")
    op.drop_table("triggers")
