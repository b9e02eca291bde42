"""Budgets that tasks share with what gave them, wherever they run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import TEXT

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("budgets", sa.Column("opened_at", sa.Double))
    op.add_column("team_tasks", sa.Column("shared_budgets", TEXT))


def downgrade() -> None:
    op.execute("DELETE FROM budgets WHERE opened_at IS NOT NULL")
    op.drop_column("team_tasks", "shared_budgets")
    op.drop_column("budgets", "opened_at")
