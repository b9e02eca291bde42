"""What each host has counted and leased of the rates that hosts share."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import TEXT

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "host_rates",
        sa.Column("scope", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("host", TEXT, nullable=False),
        sa.Column("counts", TEXT, nullable=False),
        sa.Column("lease", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "kind", "host", name="pk_host_rates"),
    )


def downgrade() -> None:
    op.drop_table("host_rates")
