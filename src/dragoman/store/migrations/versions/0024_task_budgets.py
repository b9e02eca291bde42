"""What the call that gave a task had left to spend."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("team_tasks", sa.Column("budget_left", sa.Double()))


def downgrade() -> None:
    op.drop_column("team_tasks", "budget_left")
