"""Accounts: limits and rotation of keys, sealed secrets, budgets, and more that is known of usage."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

KEYS: dict[str, TypeEngine[Any]] = {"models": TEXT, "limits": TEXT, "expires_at": sa.Double()}
USAGE: dict[str, TypeEngine[Any]] = {
    "request_id": TEXT,
    "door": TEXT,
    "key_name": TEXT,
    "first_byte": sa.Double(),
    "upstream_status": INTEGER,
    "error": TEXT,
    "price_model": TEXT,
}


def upgrade() -> None:
    for name, kind in KEYS.items():
        op.add_column("keys", sa.Column(name, kind))
    for name, kind in USAGE.items():
        op.add_column("usage", sa.Column(name, kind))
    op.create_index("ix_usage_key_id_started_at", "usage", ["key_id", "started_at"])
    op.create_index("ix_usage_started_at_id", "usage", ["started_at", "id"])
    create_former_secrets()
    create_secrets()
    create_budgets()


def downgrade() -> None:
    for table in ("budgets", "secrets", "former_secrets"):
        op.drop_table(table)
    op.drop_index("ix_usage_started_at_id", "usage")
    op.drop_index("ix_usage_key_id_started_at", "usage")
    for name in USAGE:
        op.drop_column("usage", name)
    for name in KEYS:
        op.drop_column("keys", name)


def create_former_secrets() -> None:
    op.create_table(
        "former_secrets",
        sa.Column("hash", TEXT, nullable=False),
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("valid_until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_former_secrets"),
        sa.ForeignKeyConstraint(
            ["key_id"], ["keys.id"], name="fk_former_secrets_key_id_keys", ondelete="CASCADE"
        ),
    )


def create_secrets() -> None:
    op.create_table(
        "secrets",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("nonce", sa.LargeBinary(), nullable=False),
        sa.Column("ciphertext", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_secrets"),
    )


def create_budgets() -> None:
    op.create_table(
        "budgets",
        sa.Column("scope", TEXT, nullable=False),
        sa.Column("window", TEXT, nullable=False),
        sa.Column("spent", sa.BigInteger(), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "window", name="pk_budgets"),
    )
