"""The index of open tasks also by owner: counting those that wait reads none that have ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None
NAME = "ix_team_tasks_open"
TABLE = "team_tasks"


def upgrade() -> None:
    replace_index("state", "owner")


def downgrade() -> None:
    replace_index("state")


def replace_index(*columns: str) -> None:
    is_open = sa.text("delivered_at IS NULL")
    op.drop_index(NAME, TABLE)
    op.create_index(NAME, TABLE, list(columns), sqlite_where=is_open, postgresql_where=is_open)
