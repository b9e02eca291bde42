"""An index of session tokens by id: a single one can be revoked."""

from __future__ import annotations

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_session_tokens_id", "session_tokens", ["id"])


def downgrade() -> None:
    op.drop_index("ix_session_tokens_id", "session_tokens")
