"""Conversations of the Responses API, and their items."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "conversations",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("metadata", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("size", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_conversations"),
    )
    op.create_index("ix_conversations_owner_updated_at", "conversations", ["owner", "updated_at"])
    op.create_table(
        "conversation_items",
        sa.Column("conversation_id", TEXT, nullable=False),
        sa.Column("position", INTEGER, autoincrement=False, nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("conversation_id", "position", name="pk_conversation_items"),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.id"],
            name="fk_conversation_items_conversation_id_conversations",
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "ix_conversation_items_conversation_id_id",
        "conversation_items",
        ["conversation_id", "id"],
        unique=True,
    )


def downgrade() -> None:
    op.drop_table("conversation_items")
    op.drop_table("conversations")
