"""Sessions that a runner answers, and what the runners of active runs have sent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("runner", INTEGER))
    op.add_column("sessions", sa.Column("runner_host", TEXT))
    op.create_table(
        "runner_frames",
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "position", name="pk_runner_frames"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name="fk_runner_frames_run_id_runs", ondelete="CASCADE"
        ),
    )


def downgrade() -> None:
    op.drop_table("runner_frames")
    op.drop_column("sessions", "runner_host")
    op.drop_column("sessions", "runner")
