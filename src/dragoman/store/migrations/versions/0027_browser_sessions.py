"""Sign-ins of browsers: sessions of the console, and links that open one once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.types import TEXT

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "browser_sessions",
        sa.Column("hash", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("secret_id", TEXT),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_browser_sessions"),
        sa.ForeignKeyConstraint(
            ["key_id"], ["keys.id"], name="fk_browser_sessions_key_id_keys", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_browser_sessions_key_id_created_at", "browser_sessions", ["key_id", "created_at"])


def downgrade() -> None:
    op.drop_table("browser_sessions")
