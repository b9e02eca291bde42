"""Where the states of A2A tasks are posted to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "push_configs",
        sa.Column("task_id", TEXT, nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("message_id", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("agent", TEXT, nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("delivered", sa.Double(), nullable=False),
        sa.Column("attempts", INTEGER, nullable=False),
        sa.Column("next_at", sa.Double(), nullable=False),
        sa.Column("error", TEXT),
        sa.PrimaryKeyConstraint("task_id", "id", name="pk_push_configs"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_push_configs_session_id_sessions", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_push_configs_owner", "push_configs", ["owner"])
    op.create_index("ix_push_configs_session_id", "push_configs", ["session_id"])


def downgrade() -> None:
    op.drop_table("push_configs")
