"""Generated files of teams, for hosts with folders of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.types import TEXT

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "generated_files",
        sa.Column("path", TEXT, nullable=False),
        sa.Column("content", TEXT),
        sa.Column("hash", TEXT, nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("path", name="pk_generated_files"),
    )


def downgrade() -> None:
    op.drop_table("generated_files")
