"""Namespaces of spokes: whose they are since their first use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import TEXT

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "spoke_namespaces",
        sa.Column("namespace", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", name="pk_spoke_namespaces"),
    )


def downgrade() -> None:
    op.drop_table("spoke_namespaces")
