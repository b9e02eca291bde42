"""An index of approvals by their call: each call that may wait for one looks for it."""

from __future__ import annotations

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None
COLUMNS = ("owner", "input_hash", "created_at")
NAME = f"ix_approvals_{'_'.join(COLUMNS)}"


def upgrade() -> None:
    op.create_index(NAME, "approvals", list(COLUMNS))


def downgrade() -> None:
    op.drop_index(NAME, "approvals")
