"""What the request of a run says of its answer: the most tool calls, and its format."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.types import INTEGER, TEXT

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("max_tool_calls", INTEGER))
    op.add_column("runs", sa.Column("output_format", TEXT))


def downgrade() -> None:
    op.drop_column("runs", "output_format")
    op.drop_column("runs", "max_tool_calls")
