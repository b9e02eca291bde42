"""Tails of parts: what a long part has grown by, so that it is not written again as a whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from dragoman.store.tables.core import INTEGER, TEXT

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

PLACE = ("session_id", "message_id", "position")


def upgrade() -> None:
    op.create_table(
        "part_tails",
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("message_id", TEXT, nullable=False),
        sa.Column("position", INTEGER, autoincrement=False, nullable=False),
        sa.Column("start", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("text", TEXT, nullable=False),
        sa.PrimaryKeyConstraint(*PLACE, "start", name="pk_part_tails"),
        sa.ForeignKeyConstraint(
            PLACE,
            [f"parts.{name}" for name in PLACE],
            name="fk_part_tails_session_id_message_id_position_parts",
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    """Put each tail at the end of its part: nothing of a long answer is lost."""
    connection = op.get_bind()
    places = connection.execute(sa.text(f"SELECT DISTINCT {', '.join(PLACE)} FROM part_tails")).fetchall()  # noqa: S608 - constants
    for place in places:
        join_tails(connection, place)
    op.drop_table("part_tails")


def join_tails(connection: sa.Connection, place: Sequence[Any]) -> None:
    """Write one part with its tails."""
    here = dict(zip(PLACE, place, strict=True))
    where = " AND ".join(f"{name} = :{name}" for name in PLACE)
    tails = connection.execute(
        sa.text(f"SELECT text FROM part_tails WHERE {where} ORDER BY start"),  # noqa: S608 - constants
        here,
    )
    body = connection.execute(sa.text(f"SELECT body FROM parts WHERE {where}"), here).scalar_one()  # noqa: S608 - constants
    part = json.loads(body)
    field = "text" if "text" in part else "rawInput"
    part[field] = part.get(field, "") + "".join(text for (text,) in tails)
    raw = json.dumps(part, ensure_ascii=False, separators=(",", ":"))
    connection.execute(
        sa.text(f"UPDATE parts SET body = :body WHERE {where}"),  # noqa: S608 - constants
        {**here, "body": raw},
    )
