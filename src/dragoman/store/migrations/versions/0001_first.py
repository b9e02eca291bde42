"""The first tables: sessions, messages, parts, runs, calls, usage, keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_sessions()
    create_messages()
    create_runs()
    create_calls()
    create_usage()
    create_keys()


def downgrade() -> None:
    for table in ("keys", "usage", "calls", "runs", "parts", "messages", "sessions"):
        op.drop_table(table)


def create_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("title", TEXT),
        sa.Column("agent", TEXT),
        sa.Column("model", TEXT),
        sa.Column("max_steps", INTEGER),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
    )
    op.create_index("ix_sessions_owner_updated_at_id", "sessions", ["owner", "updated_at", "id"])


def create_messages() -> None:
    op.create_table(
        "messages",
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("position", INTEGER, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("metadata", TEXT),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "id", name="pk_messages"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_messages_session_id_sessions", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_messages_session_id_position", "messages", ["session_id", "position"], unique=True)
    op.create_table(
        "parts",
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
        sqlite_with_rowid=False,
    )


def create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("message_id", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("finish_reason", TEXT),
        sa.Column("error", TEXT),
        sa.Column("agent", TEXT),
        sa.Column("model", TEXT),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.Column("steps", INTEGER, nullable=False),
        sa.Column("usage", TEXT),
        sa.Column("cost", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_runs_session_id_sessions", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_runs_session_id_started_at", "runs", ["session_id", "started_at"])
    running = sa.text("status = 'running'")
    op.create_index(
        "uq_runs_active",
        "runs",
        ["session_id"],
        unique=True,
        sqlite_where=running,
        postgresql_where=running,
    )


def create_calls() -> None:
    op.create_table(
        "calls",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("parent_id", TEXT),
        sa.Column("run_id", TEXT),
        sa.Column("session_id", TEXT),
        sa.Column("tool_call_id", TEXT),
        sa.Column("operation", TEXT, nullable=False),
        sa.Column("effect", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("input", TEXT),
        sa.Column("input_hash", TEXT, nullable=False),
        sa.Column("idempotency_key", TEXT),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("result", TEXT),
        sa.Column("error", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_calls"),
    )
    op.create_index("ix_calls_run_id", "calls", ["run_id"])
    op.create_index("ix_calls_session_id", "calls", ["session_id"])


def create_usage() -> None:
    op.create_table(
        "usage",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("run_id", TEXT),
        sa.Column("session_id", TEXT),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("key_id", TEXT),
        sa.Column("step", INTEGER),
        sa.Column("provider", TEXT),
        sa.Column("model_asked", TEXT),
        sa.Column("model_served", TEXT),
        sa.Column("input_tokens", INTEGER),
        sa.Column("output_tokens", INTEGER),
        sa.Column("total_tokens", INTEGER),
        sa.Column("reasoning_tokens", INTEGER),
        sa.Column("cached_input_tokens", INTEGER),
        sa.Column("cache_write_tokens", INTEGER),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        sa.Column("cost", sa.Double()),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("duration", sa.Double()),
        sa.Column("finish_reason", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_usage"),
    )
    op.create_index("ix_usage_owner_started_at", "usage", ["owner", "started_at"])
    op.create_index("ix_usage_run_id", "usage", ["run_id"])
    op.create_index("ix_usage_session_id", "usage", ["session_id"])


def create_keys() -> None:
    op.create_table(
        "keys",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("hash", TEXT, nullable=False),
        sa.Column("prefix", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("name", TEXT),
        sa.Column("scopes", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double()),
        sa.Column("last_used_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.UniqueConstraint("hash", name="uq_keys_hash"),
    )
