"""Branches of sessions, forks that share messages, labels, archived sessions, and shared links."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

HAS_CLIENT_ID = sa.text("client_id IS NOT NULL")


def upgrade() -> None:
    op.add_column("sessions", sa.Column("kind", TEXT))
    op.add_column("sessions", sa.Column("labels", TEXT))
    op.add_column("sessions", sa.Column("archived_at", sa.Double()))
    op.add_column("messages", sa.Column("client_id", TEXT))
    op.create_index(
        "ix_messages_session_id_client_id",
        "messages",
        ["session_id", "client_id"],
        sqlite_where=HAS_CLIENT_ID,
        postgresql_where=HAS_CLIENT_ID,
    )
    op.create_table(
        "branches",
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("start", INTEGER, autoincrement=False, nullable=False),
        sa.Column("parent_session_id", TEXT),
        sa.Column("parent_start", INTEGER),
        sa.Column("parent_position", INTEGER),
        sa.PrimaryKeyConstraint("session_id", "start", name="pk_branches"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_branches_session_id_sessions", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_branches_parent_session_id", "branches", ["parent_session_id"])
    op.create_table(
        "shares",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("hash", TEXT, nullable=False),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("tools", sa.Boolean(), nullable=False),
        sa.Column("branch_session_id", TEXT, nullable=False),
        sa.Column("branch_start", INTEGER, nullable=False),
        sa.Column("position", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_shares"),
        sa.UniqueConstraint("hash", name="uq_shares_hash"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_shares_session_id_sessions", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_shares_session_id", "shares", ["session_id"])
    op.create_index("ix_shares_branch_session_id", "shares", ["branch_session_id"])


def downgrade() -> None:
    """Without branches a session has all its messages in one list, and none of those that it shared."""
    op.drop_table("shares")
    op.drop_table("branches")
    op.drop_index("ix_messages_session_id_client_id", "messages")
    op.drop_column("messages", "client_id")
    op.drop_column("sessions", "archived_at")
    op.drop_column("sessions", "labels")
    op.drop_column("sessions", "kind")
