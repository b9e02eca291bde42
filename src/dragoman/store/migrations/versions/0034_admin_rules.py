"""Whether who made a standing rule did so as an admin."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("policy_rules", sa.Column("by_admin", sa.Boolean()))


def downgrade() -> None:
    op.drop_column("policy_rules", "by_admin")
