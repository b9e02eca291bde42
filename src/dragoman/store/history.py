"""What was said, found again: search over the messages of an owner's sessions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from msgspec.structs import replace
from sqlalchemy import bindparam, func, literal_column, select

from dragoman.errors import NotFound
from dragoman.messages import DataPart, Message, Part, decode_part
from dragoman.operations.history import Found, Matched, Passage, Piece, Said, told
from dragoman.store.connection import Compiler, Connection, Row
from dragoman.store.database import Database
from dragoman.store.full_text import (
    CLOSE,
    GAP,
    OPEN,
    ByWords,
    by_text,
    match_of,
    pattern_of,
    vector_of,
    words_in,
)
from dragoman.store.passages import Passages
from dragoman.store.tables import messages, parts, sessions

CONTEXT = "data-context"
PATIENCE = 5.0  # seconds for which a search looks at what is new
PATIENCE_OF_MODELS = 20.0  # in their own session
PARTS = 5  # that are looked at for each message that is wanted: one may have many that fit
AMONG = 20_000  # passages in which a text is looked for that is no words
LONGEST_QUERY = 1_000
WAYS: tuple[Matched, ...] = ("all", "some")
LAST = 2**31 - 1  # no message has a position beyond
LONGEST_PIECE = 160  # characters of a snippet on each side of a hit, and of the hit
HITS = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")
SPACE = re.compile(r"\s+")


class Bounds(NamedTuple):
    """Up to which position messages are searched, and which one is not: the question being answered."""

    until: int = LAST
    asked: int = -1


class HistoryStatements:
    """The SQL of `History`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        here = messages.c.session_id == bindparam("session_id")
        joined = (parts.c.session_id == messages.c.session_id) & (parts.c.message_id == messages.c.id)
        cuts = select(parts.c.body).select_from(messages.join(parts, joined))
        cuts = cuts.where(
            here,
            messages.c.role == literal_column("'assistant'"),
            parts.c.body.like(literal_column(f"""'{{"type":"{CONTEXT}"%'""")),
        )
        asked = select(func.max(messages.c.position)).where(here, messages.c.role == literal_column("'user'"))
        this = here, messages.c.id == bindparam("id")
        mine = sessions.c.id == messages.c.session_id, sessions.c.owner == bindparam("owner")
        bodies = select(parts.c.body).where(
            parts.c.session_id == bindparam("session_id"), parts.c.message_id == bindparam("id")
        )
        self.cuts = compiler.compile(cuts.order_by(messages.c.position.desc(), parts.c.position.desc()))
        self.asked = compiler.compile(asked)
        self.place = compiler.compile(select(messages.c.position).where(*this))
        self.head = compiler.compile(select(messages.c.role, messages.c.created_at).where(*this, *mine))
        self.bodies = compiler.compile(bodies.order_by(parts.c.position))
        self.by_words = compiler.compile(ByWords())
        self.by_text = compiler.compile(by_text())


class History:
    """What was said in all sessions; each owner finds his own only."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._passages = Passages(database)
        self.patience = PATIENCE
        self.patience_of_models = PATIENCE_OF_MODELS

    @cached_property
    def _sql(self) -> HistoryStatements:
        return self._database.statements(HistoryStatements)

    async def search(
        self, query: str, *, owner: str, session_id: str | None = None, unseen: bool = False, limit: int = 20
    ) -> Found:
        """What was said in the owner's sessions, or in that one of them: what holds all the words, or some
        of them if nothing does, or else the text as it stands. Of a long question the beginning counts.

        A word of three letters or more finds longer ones that begin with it; case and accents do not matter.
        What is being said just now is found once that part of it is complete. What is new since the last
        search is indexed first, for `patience` seconds; where that is not enough, the answer says what is
        left, and the next search goes on. `unseen` is for a session's own model: only what it is not shown
        any more, and while nothing was dropped, what was said before the question that it answers.
        """
        seconds = self.patience_of_models if unseen else self.patience
        indexing = await self._passages.catch_up(owner, session_id=session_id, seconds=seconds)
        asked = query[:LONGEST_QUERY]
        scope = {"owner": owner, "session_id": session_id, "limit": limit * PARTS}

        def look(connection: Connection) -> Found:
            bounds = self._bounds(connection, session_id) if unseen and session_id else Bounds()
            params = {**scope, **bounds._asdict()}
            return self._look(connection, asked, params=params, limit=limit)

        return replace(await self._database.read(look), indexing=indexing)

    async def read(self, session_id: str, message_id: str, *, owner: str) -> Said:
        """A message of one of the owner's sessions in words. NotFound, also for another's."""
        this = {"session_id": session_id, "id": message_id, "owner": owner}

        def query(connection: Connection) -> tuple[Row | None, Sequence[Row]]:
            return connection.one(self._sql.head, this), connection.all(self._sql.bodies, this)

        head, bodies = await self._database.read(query)
        if head is None:
            raise NotFound(f"there is no message {message_id!r} in this session")
        role, created_at = head
        parts = tuple(decode_part(body) for (body,) in bodies)
        return Said(role, created_at, told(Message(message_id, role, parts)))

    def _look(self, connection: Connection, asked: str, *, params: dict[str, Any], limit: int) -> Found:
        words = words_in(asked)
        owner, session_id = params["owner"], params["session_id"]
        ways: Sequence[Matched] = WAYS[: len(words)]
        for matched in ways:
            every = matched == "all"
            match = match_of(words, owner=owner, session_id=session_id, every=every)
            said = {**params, "match": match, "words": vector_of(words, every=every)}
            if rows := connection.all(self._sql.by_words, said):
                return Found(matched, passages_of(rows, limit))
        pattern = pattern_of(asked)
        if pattern == "%%":
            return Found("text")
        rows = connection.all(self._sql.by_text, {**params, "pattern": pattern, "among": AMONG})
        return Found("text", passages_of([(*row[:-1], mark(row[-1], asked.strip())) for row in rows], limit))

    def _bounds(self, connection: Connection, session_id: str) -> Bounds:
        """The latest cut that there still is says what was dropped; without one, nothing was."""
        this = {"session_id": session_id}
        row = connection.one(self._sql.asked, this)
        asked = row[0] if row is not None and row[0] is not None else LAST
        for (body,) in connection.all(self._sql.cuts, this):
            place = connection.one(self._sql.place, {**this, "id": end_of(decode_part(body))})
            if place is not None:
                return Bounds(until=place[0], asked=asked)
        return Bounds(until=asked - 1)


def end_of(part: Part) -> str:
    """The last message that a cut took away; no id when the part is somebody else's."""
    data = part.data if isinstance(part, DataPart) else None
    return str(data.get("to", "")) if isinstance(data, Mapping) else ""


def passages_of(rows: Sequence[Row], limit: int) -> tuple[Passage, ...]:
    """The first passage of each message, in the order of the rows."""
    best: dict[tuple[str, str], Passage] = {}
    for session_id, title, message_id, role, created_at, snippet in rows:
        passage = Passage(
            session_id=session_id,
            title=title,
            message_id=message_id,
            role=role,
            created_at=created_at,
            snippet=pieces(snippet),
        )
        best.setdefault((session_id, message_id), passage)
    return tuple(best.values())[:limit]


def pieces(snippet: str) -> tuple[Piece, ...]:
    """A snippet whose hits are marked, as pieces of bounded length on one line."""
    said = HITS.split(SPACE.sub(" ", snippet))
    cut: list[Piece] = []
    for at, text in enumerate(said):
        if at % 2:
            cut.append(Piece(text[:LONGEST_PIECE], hit=True))
        elif text:
            first, last = at == 0, at == len(said) - 1
            cut.append(Piece(shorten(text, before=first and not last, after=last)))
    return tuple(cut)


def shorten(text: str, *, before: bool, after: bool) -> str:
    """What stands next to a hit or between two, without what is farthest from them."""
    if len(text) <= LONGEST_PIECE:
        return text
    if before:
        return GAP + text[-LONGEST_PIECE:]
    if after:
        return text[:LONGEST_PIECE] + GAP
    half = LONGEST_PIECE // 2
    return text[:half] + GAP + text[-half:]


def mark(text: str, asked: str) -> str:
    """Some of a text around the first place where it says what was asked for, which is marked."""
    found = re.search(re.escape(asked), text, re.IGNORECASE)
    if found is None:  # the database folds other letters than we do
        return text[: 2 * LONGEST_PIECE]
    start, end = found.span()
    left, right = text[max(0, start - LONGEST_PIECE) : start], text[end : end + LONGEST_PIECE]
    before = GAP if start > LONGEST_PIECE else ""
    after = GAP if end + LONGEST_PIECE < len(text) else ""
    return f"{before}{left}{OPEN}{found[0]}{CLOSE}{right}{after}"
