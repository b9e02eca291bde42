"""Parts in an ordinary table of SQLite, with half the pages; an index for the list of all owners' calls.

In a table WITHOUT ROWID a row of more than a quarter of a page takes pages of its own.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

COPY = (
    "INSERT INTO parts_copy (session_id, message_id, position, body) "
    "SELECT session_id, message_id, position, body FROM parts ORDER BY session_id, message_id, position"
)


def upgrade() -> None:
    op.create_index("ix_calls_started_at_id", "calls", ["started_at", "id"])
    make_parts_again(with_rowid=True)


def downgrade() -> None:
    make_parts_again(with_rowid=False)
    op.drop_index("ix_calls_started_at_id", "calls")


def make_parts_again(*, with_rowid: bool) -> None:
    """Copy the parts of SQLite into another kind of table, and put that in the place of the first."""
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        return
    if connection.exec_driver_sql("PRAGMA foreign_keys").scalar():
        raise RuntimeError("with foreign keys on, dropping the table would delete what refers to it")
    op.create_table(
        "parts_copy",
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("message_id", TEXT, nullable=False),
        sa.Column("position", INTEGER, autoincrement=False, nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("session_id", "message_id", "position", name="pk_parts"),
        sa.ForeignKeyConstraint(
            ["session_id", "message_id"],
            ["messages.session_id", "messages.id"],
            name="fk_parts_session_id_message_id_messages",
            ondelete="CASCADE",
        ),
        sqlite_with_rowid=with_rowid,
    )
    op.execute(COPY)
    op.drop_table("parts")
    op.rename_table("parts_copy", "parts")
