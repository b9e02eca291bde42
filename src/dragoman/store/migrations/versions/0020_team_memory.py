"""Memories of teams, and the entries of their vaults."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import TEXT

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "memories",
        sa.Column("id", TEXT, nullable=False),
        *(
            sa.Column(name, TEXT, nullable=False)
            for name in ("team", "owner", "key", "kind", "content", "words")
        ),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", TEXT),
        sa.Column("ended_at", sa.Double()),
        *(sa.Column(name, TEXT) for name in ("supersedes", "reason", "confidence", "sources")),
        sa.PrimaryKeyConstraint("id", name="pk_memories"),
    )
    is_active = sa.text("is_active")
    op.create_index(
        "ix_memories_team_owner_key",
        "memories",
        ["team", "owner", "key"],
        unique=True,
        sqlite_where=is_active,
        postgresql_where=is_active,
    )
    op.create_index("ix_memories_team_owner_created_at", "memories", ["team", "owner", "created_at"])
    op.create_table(
        "vault_entries",
        *(sa.Column(name, TEXT, nullable=False) for name in ("team", "owner", "name")),
        sa.Column("nonce", sa.LargeBinary(), nullable=False),
        sa.Column("ciphertext", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("receivers", TEXT, nullable=False),
        sa.Column("plain", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("team", "owner", "name", name="pk_vault_entries"),
    )


def downgrade() -> None:
    op.drop_table("vault_entries")
    op.drop_table("memories")
