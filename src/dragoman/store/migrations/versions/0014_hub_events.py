"""Events of sessions, which clients follow and the audit log shows; grants, by which sessions are shared."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import TEXT

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "hub_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("xid", sa.BigInteger(), nullable=False),
        sa.Column("session_id", TEXT),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("data", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("actor", TEXT),
        sa.Column("key_id", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_hub_events"),
    )
    op.create_index("ix_hub_events_xid_id", "hub_events", ["xid", "id"])
    op.create_index("ix_hub_events_session_id_id", "hub_events", ["session_id", "id"])
    op.create_table(
        "session_grants",
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("grantee", TEXT, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("session_id", "kind", "grantee", name="pk_session_grants"),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
            name="fk_session_grants_session_id_sessions",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_session_grants_kind_grantee", "session_grants", ["kind", "grantee"])


def downgrade() -> None:
    op.drop_index("ix_session_grants_kind_grantee", "session_grants")
    op.drop_table("session_grants")
    op.drop_index("ix_hub_events_session_id_id", "hub_events")
    op.drop_index("ix_hub_events_xid_id", "hub_events")
    op.drop_table("hub_events")
