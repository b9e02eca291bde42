"""The origins that a secret of a team may be sent to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.types import TEXT

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("vault_entries", sa.Column("origins", TEXT))


def downgrade() -> None:
    op.drop_column("vault_entries", "origins")
