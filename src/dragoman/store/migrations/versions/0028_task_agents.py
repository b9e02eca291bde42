"""Tasks of sub-agents, their steps, and the notices of tasks that stall."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("team_tasks", sa.Column("subagent", TEXT))
    op.add_column("team_tasks", sa.Column("max_steps", INTEGER))
    op.add_column("team_tasks", sa.Column("stall_level", INTEGER))


def downgrade() -> None:
    op.drop_column("team_tasks", "stall_level")
    op.drop_column("team_tasks", "max_steps")
    op.drop_column("team_tasks", "subagent")
