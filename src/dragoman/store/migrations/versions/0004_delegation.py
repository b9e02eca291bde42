"""Delegation: the progress of calls that wait for an answer, and the call below which a model was asked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import TEXT

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("approvals", sa.Column("state", sa.LargeBinary()))
    op.add_column("usage", sa.Column("call_id", TEXT))
    inside = sa.text("call_id IS NOT NULL")
    op.create_index("ix_usage_call_id", "usage", ["call_id"], sqlite_where=inside, postgresql_where=inside)


def downgrade() -> None:
    op.drop_index("ix_usage_call_id", "usage")
    op.drop_column("usage", "call_id")
    op.drop_column("approvals", "state")
