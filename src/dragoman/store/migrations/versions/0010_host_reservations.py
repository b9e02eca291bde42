"""What each host has reserved of the budgets, to give it back when the host dies."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import TEXT

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "host_reservations",
        sa.Column("host", TEXT, nullable=False),
        sa.Column("scope", TEXT, nullable=False),
        sa.Column("window", TEXT, nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("host", "scope", "window", name="pk_host_reservations"),
    )


def downgrade() -> None:
    op.drop_table("host_reservations")
