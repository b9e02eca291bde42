"""Passages: what was said in words, to be searched. They are made of messages when somebody searches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

PLACE = ("session_id", "message_id", "position")


def upgrade() -> None:
    op.create_table(
        "passages",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("message_id", TEXT, nullable=False),
        sa.Column("position", INTEGER, nullable=False),
        sa.Column("scope", TEXT, nullable=False),
        sa.Column("text", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_passages"),
        sa.ForeignKeyConstraint(
            PLACE,
            [f"parts.{name}" for name in PLACE],
            name="fk_passages_session_id_message_id_position_parts",
            ondelete="CASCADE",
        ),
    )
    op.create_index(f"ix_passages_{'_'.join(PLACE)}", "passages", list(PLACE), unique=True)
    marks()


def marks() -> None:
    """What there are passages of."""
    op.create_table(
        "indexed_sessions",
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("runs", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("session_id", name="pk_indexed_sessions"),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
            name="fk_indexed_sessions_session_id_sessions",
            ondelete="CASCADE",
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "indexed_messages",
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("message_id", TEXT, nullable=False),
        sa.Column("runs", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("session_id", "message_id", name="pk_indexed_messages"),
        sa.ForeignKeyConstraint(
            ["session_id", "message_id"],
            ["messages.session_id", "messages.id"],
            name="fk_indexed_messages_session_id_message_id_messages",
            ondelete="CASCADE",
        ),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("indexed_messages")
    op.drop_table("indexed_sessions")
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TABLE IF EXISTS passage_index")
    op.drop_table("passages")  # and its triggers
