"""What a run needs to continue after a crash, and the answers of sub-agents while they work."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

COLUMNS = (("key_id", sa.Text), ("tools", sa.Text), ("crashes", sa.Integer), ("settled_parts", sa.Integer))


def upgrade() -> None:
    for name, type in COLUMNS:
        op.add_column("runs", sa.Column(name, type()))
    op.create_table(
        "subagent_parts",
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("call_id", "position", name="pk_subagent_parts"),
    )


def downgrade() -> None:
    op.drop_table("subagent_parts")
    for name, _ in reversed(COLUMNS):
        op.drop_column("runs", name)
