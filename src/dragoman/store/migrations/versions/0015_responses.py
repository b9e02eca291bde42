"""Responses of the Responses API, their items, and the events of those in the background."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "responses",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("root_id", TEXT, nullable=False),
        sa.Column("previous_id", TEXT),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("background", sa.Boolean, nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("size", INTEGER, nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.Column("input", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_responses"),
    )
    op.create_index("ix_responses_owner_created_at_id", "responses", ["owner", "created_at", "id"])
    op.create_index("ix_responses_root_id_created_at", "responses", ["root_id", "created_at"])
    op.create_table(
        "response_items",
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("response_id", TEXT, nullable=False),
        sa.Column("position", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("owner", "id", name="pk_response_items"),
        sa.ForeignKeyConstraint(
            ["response_id"],
            ["responses.id"],
            name="fk_response_items_response_id_responses",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_response_items_response_id", "response_items", ["response_id"])
    op.create_table(
        "response_events",
        sa.Column("response_id", TEXT, nullable=False),
        sa.Column("first", INTEGER, autoincrement=False, nullable=False),
        sa.Column("last", INTEGER, nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("response_id", "first", name="pk_response_events"),
        sa.ForeignKeyConstraint(
            ["response_id"],
            ["responses.id"],
            name="fk_response_events_response_id_responses",
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    op.drop_table("response_events")
    op.drop_table("response_items")
    op.drop_table("responses")
