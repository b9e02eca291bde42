"""Who has sessions open at which host."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "session_people",
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("host", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("sockets", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("session_id", "host", "owner", name="pk_session_people"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_session_people_session_id_sessions", ondelete="CASCADE"
        ),
    )


def downgrade() -> None:
    op.drop_table("session_people")
