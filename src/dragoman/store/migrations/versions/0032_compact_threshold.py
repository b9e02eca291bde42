"""The length above which the conversation of a run is compacted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("compact_threshold", INTEGER))


def downgrade() -> None:
    op.drop_column("runs", "compact_threshold")
