"""Lists of runs and calls for the console, decisions of the policy, and standing rules."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.types import TEXT

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

IS_BELOW = sa.text("parent_id IS NOT NULL")
IS_OF_RUN = sa.text("run_id IS NOT NULL")
IS_ROOT = sa.text("parent_id IS NULL AND run_id IS NULL")
HAS_FAILED = sa.text("status = 'failed'")


def upgrade() -> None:
    op.add_column("calls", sa.Column("policy", TEXT))
    op.add_column("calls", sa.Column("door", TEXT))
    op.add_column("runs", sa.Column("door", TEXT))
    op.drop_index("ix_calls_run_id", "calls")
    op.drop_index("ix_calls_parent_id", "calls")
    op.drop_index("ix_usage_run_id", "usage")
    create_partial_index("ix_calls_below", ["parent_id"], where=IS_BELOW)
    create_partial_index("ix_calls_of_run", ["run_id", "started_at", "id"], where=IS_OF_RUN)
    create_partial_index("ix_usage_of_run", ["run_id"], where=IS_OF_RUN, table="usage")
    op.create_index("ix_runs_started_at_id", "runs", ["started_at", "id"])
    create_partial_index("ix_calls_roots", ["started_at", "id"], where=IS_ROOT)
    create_partial_index("ix_calls_owner_roots", ["owner", "started_at", "id"], where=IS_ROOT)
    create_partial_index("ix_calls_failed", ["run_id"], where=HAS_FAILED)
    op.create_table(
        "policy_rules",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("operation", TEXT, nullable=False),
        sa.Column("provider", TEXT, nullable=False),
        sa.Column("agent", TEXT),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", TEXT, nullable=False),
        sa.Column("key_id", TEXT),
        sa.Column("approval_id", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_policy_rules"),
    )
    op.create_index("ix_policy_rules_owner_created_at", "policy_rules", ["owner", "created_at"])


def create_partial_index(
    name: str, columns: list[str], *, where: sa.TextClause, table: str = "calls"
) -> None:
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    op.drop_table("policy_rules")
    for index in (
        "ix_calls_below",
        "ix_calls_failed",
        "ix_calls_owner_roots",
        "ix_calls_roots",
        "ix_calls_of_run",
    ):
        op.drop_index(index, "calls")
    op.drop_index("ix_usage_of_run", "usage")
    op.create_index("ix_usage_run_id", "usage", ["run_id"])
    op.create_index("ix_calls_run_id", "calls", ["run_id"])
    op.create_index("ix_calls_parent_id", "calls", ["parent_id"])
    op.drop_index("ix_runs_started_at_id", "runs")
    op.drop_column("runs", "door")
    op.drop_column("calls", "door")
    op.drop_column("calls", "policy")
