"""The hosts that share a database, and which of them executes each run and call."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "hosts",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("url", TEXT),
        sa.Column("token", TEXT),
        sa.Column("version", TEXT, nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("draining_at", sa.Double()),
        sa.Column("fenced_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_hosts"),
    )
    op.add_column("runs", sa.Column("host", TEXT))
    op.add_column("runs", sa.Column("epoch", INTEGER))
    op.add_column("calls", sa.Column("host", TEXT))


def downgrade() -> None:
    op.drop_column("calls", "host")
    op.drop_column("runs", "epoch")
    op.drop_column("runs", "host")
    op.drop_table("hosts")
