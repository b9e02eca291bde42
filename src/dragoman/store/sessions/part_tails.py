"""Tails of long parts in the database: the text that was added to an open part since its row was written.

A growing part is not rewritten as a whole, which would take time quadratic in its length. Its first
characters are in its row; the rest is in rows of `part_tails`, which are only appended, in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from msgspec import UNSET
from msgspec.structs import replace
from sqlalchemy import bindparam, delete, select

from dragoman.messages import Part, ReasoningPart, TextPart, ToolPart
from dragoman.store.connection import Compiler, DatabaseConnection, Params
from dragoman.store.tables.core import part_tails

PartKey: TypeAlias = tuple[str, int]
"""The id of a message, and the position of a part in it."""


class PartTail(NamedTuple):
    """A piece of the text of the part at `position`, from the character `start` on."""

    position: int
    start: int
    text: str


class PartTailStatements:
    """The SQL of tails; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        columns = part_tails.c
        here = columns.session_id == bindparam("session_id")
        message = here, columns.message_id == bindparam("id")
        part = *message, columns.position == bindparam("position")
        put = compiler.insert(part_tails)
        put = put.on_conflict_do_update(
            index_elements=part_tails.primary_key, set_={"text": put.excluded.text}
        )
        found = select(columns.message_id, columns.position, columns.text).order_by(
            columns.message_id, columns.position, columns.start
        )
        self.upsert = compiler.compile(put)
        self.delete = compiler.compile(delete(part_tails).where(*part))
        self.of_session = compiler.compile(found.where(here))
        self.of_message = compiler.compile(found.where(*message))
        self.of_part = compiler.compile(found.where(*part))


def read_tails(connection: DatabaseConnection, sql: str, *, params: Params) -> Mapping[PartKey, str]:
    """In a query: return the tails that a statement of `PartTailStatements` selects, joined by part."""
    pieces: dict[PartKey, list[str]] = {}
    for message_id, position, text in connection.fetch_all(sql, params):
        pieces.setdefault((message_id, position), []).append(text)
    return {key: "".join(texts) for key, texts in pieces.items()}


def with_tail(part: Part, tail: str | None) -> Part:
    """Return the part with its tail: more of its text or, of a tool call, of the text of its arguments."""
    if not tail:
        return part
    match part:
        case TextPart(text=text) | ReasoningPart(text=text):
            return replace(part, text=text + tail)
        case ToolPart(raw_input=raw) if part.state == "input-streaming":
            return replace(part, raw_input=tail if raw is UNSET else f"{raw}{tail}")
        case _:
            return part
