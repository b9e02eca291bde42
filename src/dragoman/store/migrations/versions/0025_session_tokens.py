"""Session tokens: what an app gives to the browsers of its users."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import TEXT

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "session_tokens",
        sa.Column("hash", TEXT, nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("secret_id", TEXT),
        sa.Column("session", TEXT),
        sa.Column("prefix", TEXT),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("models", TEXT),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_session_tokens"),
        sa.ForeignKeyConstraint(
            ["key_id"], ["keys.id"], name="fk_session_tokens_key_id_keys", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_session_tokens_key_id_expires_at", "session_tokens", ["key_id", "expires_at"])


def downgrade() -> None:
    op.drop_table("session_tokens")
