"""Full-text search over the messages of an owner's sessions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from msgspec.structs import replace
from sqlalchemy import bindparam, func, literal_column, select

from dragoman.errors import NotFound
from dragoman.messages import DataPart, Message, Part, decode_part
from dragoman.operations.message_search import (
    IndexingProgress,
    MatchKind,
    MessageSearchResult,
    MessageText,
    Passage,
    SnippetPiece,
    message_text,
)
from dragoman.store.connection import Compiler, DatabaseConnection, Row
from dragoman.store.database import Database
from dragoman.store.sessions.full_text import (
    ELLIPSIS,
    HIT_END,
    HIT_START,
    FullTextSearch,
    fts5_query,
    like_pattern,
    mark_words,
    owner_token,
    query_terms,
    query_words,
    select_by_text,
    session_token,
)
from dragoman.store.sessions.message_index import MessageIndex
from dragoman.store.sessions.message_paths import (
    MAX_POSITION,
    MessagePaths,
    MessagePathStatements,
    active_path,
    contains,
    in_path,
)
from dragoman.store.sessions.part_tails import PartKey, PartTailStatements, read_tails, with_tail
from dragoman.store.sessions.postgres_words import QueryWord, scoped_query, text_query
from dragoman.store.tables.core import branches, messages, parts, passages, sessions

CONTEXT_PART = "data-context"
INDEXING_SECONDS = 5.0  # for which a search indexes new messages first
MODEL_INDEXING_SECONDS = 20.0  # the same, for a model that searches its own session
ROWS_PER_MESSAGE = 5  # rows that are read for each message wanted: a message may match several times
MAX_SCANNED_PASSAGES = 20_000  # of a search for a text without words
MAX_QUERY_LENGTH = 1_000
WORD_MATCHES: tuple[MatchKind, ...] = ("all", "some")
MAX_FORKS = 20  # forks of a deleted session that are checked for one message
MAX_PIECE_LENGTH = 160  # characters of a hit, and of the text on each side of it
HIT_PATTERN = re.compile(f"{HIT_START}([^{HIT_START}{HIT_END}]*){HIT_END}")
WHITESPACE = re.compile(r"\s+")


class SearchBounds(NamedTuple):
    """The last position that is searched, and the position of the question being answered, which is not.

    The depths are those of their segments in the path: 0 for the last one.
    """

    until_depth: int = -1
    until: int = MAX_POSITION
    question_depth: int = -1
    question: int = -1


class HistoryStatements:
    """The SQL of `MessageSearchRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        path = active_path()
        mine = path.join(messages, in_path(path))
        joined = (parts.c.session_id == messages.c.session_id) & (parts.c.message_id == messages.c.id)
        newest = path.c.depth, messages.c.position.desc()
        cuts = select(parts.c.body).select_from(mine.join(parts, joined))
        cuts = cuts.where(
            messages.c.role == literal_column("'assistant'"),
            parts.c.body.like(literal_column(f"""'{{"type":"{CONTEXT_PART}"%'""")),
        )
        place = select(path.c.depth, messages.c.position).select_from(mine)
        last_question = place.where(messages.c.role == literal_column("'user'")).order_by(*newest)
        last_question = last_question.limit(literal_column("1")).offset(literal_column("0"))
        this = messages.c.session_id == bindparam("session_id"), messages.c.id == bindparam("id")
        of_owner = sessions.c.id == messages.c.session_id, sessions.c.owner == bindparam("owner")
        bodies = select(parts.c.position, parts.c.body).where(
            parts.c.session_id == bindparam("session_id"), parts.c.message_id == bindparam("id")
        )
        forks = (
            select(sessions.c.id, sessions.c.title)
            .select_from(branches.join(sessions, sessions.c.id == branches.c.session_id))
            .where(
                branches.c.parent_session_id == bindparam("id"),
                branches.c.parent_position >= bindparam("position"),
                sessions.c.kind.is_(None),
            )
        )
        self.list_truncations = compiler.compile(cuts.order_by(*newest, parts.c.position.desc()))
        self.last_question = compiler.compile(last_question)
        self.message_position = compiler.compile(
            place.where(func.coalesce(messages.c.client_id, messages.c.id) == bindparam("id"))
        )
        self.head = compiler.compile(select(messages.c.role, messages.c.created_at).where(*this, *of_owner))
        self.bodies = compiler.compile(bodies.order_by(parts.c.position))
        self.has_vectors = compiler.name == "postgresql"
        self.search_words = {
            of_session: compiler.compile(FullTextSearch(of_session=of_session))
            for of_session in (False, True)
        }
        self.search_text = {
            of_session: compiler.compile(select_by_text(of_session=of_session))
            for of_session in (False, True)
        }
        self.passage_text = compiler.compile(select(passages.c.text).where(passages.c.id == bindparam("id")))
        self.title = compiler.compile(select(sessions.c.title).where(sessions.c.id == bindparam("id")))
        self.list_forks = compiler.compile(forks.order_by(sessions.c.updated_at.desc(), sessions.c.id))


class MessageSearchRepository:
    """Searches the messages of all sessions; each owner finds only their own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._index = MessageIndex(database)
        self.indexing_seconds = INDEXING_SECONDS
        self.model_indexing_seconds = MODEL_INDEXING_SECONDS

    @cached_property
    def _sql(self) -> HistoryStatements:
        return self._database.statements(HistoryStatements)

    @cached_property
    def _paths_sql(self) -> MessagePathStatements:
        return self._database.statements(MessagePathStatements)

    @cached_property
    def _tails_sql(self) -> PartTailStatements:
        return self._database.statements(PartTailStatements)

    async def search(
        self,
        query: str,
        *,
        owner: str,
        session_id: str | None = None,
        truncated_only: bool = False,
        limit: int = 20,
    ) -> MessageSearchResult:
        """Search the owner's sessions, or one of them: for all words, else some, else the literal text.

        A word of three letters or more also matches longer words that begin with it; case and accents do not
        matter. Only the first `MAX_QUERY_LENGTH` characters of a query count. New messages are indexed first,
        for at most `indexing_seconds`; if that is not enough, the result's `indexing` is the progress, and
        the next search continues. The parts of an active run are found once they are complete.
        `truncated_only` is for a session's own model: it finds only messages that were truncated from the
        model's context or, if none was, those before the question being answered.
        """
        seconds = self.model_indexing_seconds if truncated_only else self.indexing_seconds
        indexing = await self._catch_up(owner, session_id=session_id, seconds=seconds)
        query = query[:MAX_QUERY_LENGTH]
        params: dict[str, Any] = {"owner": owner, "limit": limit * ROWS_PER_MESSAGE}

        def find(connection: DatabaseConnection) -> MessageSearchResult:
            if session_id is None:
                return self._search(connection, query, params=params, scope=owner_token(owner))
            bounds = self._search_bounds(connection, session_id) if truncated_only else SearchBounds()
            here = {**params, "session_id": session_id, **bounds._asdict()}
            path = MessagePaths(connection, self._paths_sql).read(session_id)
            is_shared = any(segment.session_id != session_id for segment in path)
            scope = owner_token(owner) if is_shared else session_token(session_id)
            return self._search(connection, query, params=here, scope=scope)

        return replace(await self._database.read(find), indexing=indexing)

    async def _catch_up(
        self, owner: str, *, session_id: str | None, seconds: float
    ) -> IndexingProgress | None:
        """Index new messages of the owner's sessions, or of one and those that it shares messages with."""
        if session_id is None:
            return await self._index.catch_up(owner, session_id=None, seconds=seconds)
        path = await self._database.read(
            lambda connection: MessagePaths(connection, self._paths_sql).read(session_id)
        )
        for id in dict.fromkeys(segment.session_id for segment in reversed(path)):
            progress = await self._index.catch_up(owner, session_id=id, seconds=seconds)
            if progress is not None:
                return progress
        return None

    async def read(self, session_id: str, message_id: str, *, owner: str) -> MessageText:
        """Return a message of one of the owner's sessions as text. Raises NotFound, also for another's."""

        def query(connection: DatabaseConnection) -> tuple[Row | None, Sequence[Row], Mapping[PartKey, str]]:
            path = MessagePaths(connection, self._paths_sql).read(session_id)
            place = MessagePaths(connection, self._paths_sql).find(path, message_id)
            if place is None:
                return None, (), {}
            this = {"session_id": place.session_id, "id": place.id, "owner": owner}
            head, bodies = (
                connection.fetch_one(self._sql.head, this),
                connection.fetch_all(self._sql.bodies, this),
            )
            return head, bodies, read_tails(connection, self._tails_sql.of_message, params=this)

        head, bodies, tails = await self._database.read(query)
        if head is None:
            raise NotFound(f"there is no message {message_id!r} in this session")
        role, created_at = head
        tails_at = {position: tail for (_, position), tail in tails.items()}
        parts = tuple(with_tail(decode_part(body), tails_at.get(position)) for position, body in bodies)
        return MessageText(role, created_at, message_text(Message(message_id, role, parts)))

    def _search(
        self, connection: DatabaseConnection, query: str, *, params: dict[str, Any], scope: str
    ) -> MessageSearchResult:
        words = query_words(query)
        match_kinds: Sequence[MatchKind] = WORD_MATCHES[: len(words)]
        for matched in match_kinds:
            match_all = matched == "all"
            if found := self._search_words(
                connection, words, params=params, scope=scope, match_all=match_all
            ):
                return MessageSearchResult(matched, found)
        pattern = like_pattern(query)
        if pattern == "%%":
            return MessageSearchResult("text")
        sql = self._sql.search_text["session_id" in params]
        rows = connection.fetch_all(sql, {**params, "pattern": pattern, "among": MAX_SCANNED_PASSAGES})
        marked = [(*row[:-1], mark_match(row[-1], query.strip())) for row in rows]
        return MessageSearchResult(
            "text", first_passages(self._shown(connection, marked, params=params), params)
        )

    def _search_words(
        self,
        connection: DatabaseConnection,
        words: Sequence[str],
        *,
        params: dict[str, Any],
        scope: str,
        match_all: bool,
    ) -> tuple[Passage, ...]:
        """Return the passages with all of these words, or some of them, best first."""
        sql = self._sql.search_words["session_id" in params]
        if not self._sql.has_vectors:
            match = fts5_query(words, scope=scope, match_all=match_all)
            rows = connection.fetch_all(sql, {**params, "match": match})
            return first_passages(self._shown(connection, rows, params=params), params)
        terms = query_terms(words)
        if not terms:
            return ()
        match = scoped_query(text_query(terms, match_all=match_all), scope=scope)
        exact = text_query([QueryWord(term.words, is_prefix=False) for term in terms], match_all=False)
        ranking = {"exact": exact, "similar": text_query(terms, match_all=False)}
        rows = connection.fetch_all(sql, {**params, "match": match, **ranking})

        def marked_text(id: int) -> str:
            text = connection.fetch_one(self._sql.passage_text, {"id": id})
            return mark_words(text[0] if text else "", terms)

        return first_passages(self._shown(connection, rows, params=params), params, snippet_of=marked_text)

    def _shown(
        self, connection: DatabaseConnection, rows: Sequence[Row], *, params: Mapping[str, Any]
    ) -> Iterator[Row]:
        """Yield rows with the session that has the message for clients: the one searched, or a fork."""
        searched = params.get("session_id")
        title = None
        if searched is not None and rows:
            found = connection.fetch_one(self._sql.title, {"id": searched})
            title = found[0] if found else None
        for row in rows:
            session: Row | None = row[:2]
            if searched is not None:
                session = searched, title
            elif row[5] is not None:
                session = self._find_fork(connection, row[0], position=row[6])
            if session is not None:
                yield (*session, *row[2:5], row[-1])

    def _find_fork(self, connection: DatabaseConnection, id: str, *, position: int) -> Row | None:
        """Return the id and the title of a session whose active branch has a message of a deleted one."""
        forks = connection.fetch_all(self._sql.list_forks, {"id": id, "position": position})
        for fork in forks[:MAX_FORKS]:
            if contains(MessagePaths(connection, self._paths_sql).read(fork[0]), id, position=position):
                return fork
        return None

    def _search_bounds(self, connection: DatabaseConnection, session_id: str) -> SearchBounds:
        """Return the bounds of `truncated_only`, from the last truncation that still exists."""
        this = {"session_id": session_id}
        row = connection.fetch_one(self._sql.last_question, this)
        depth, question = row or (-1, MAX_POSITION)
        for (body,) in connection.fetch_all(self._sql.list_truncations, this):
            place = connection.fetch_one(
                self._sql.message_position, {**this, "id": truncation_end(decode_part(body))}
            )
            if place is not None:
                return SearchBounds(place[0], place[1], depth, question)
        return SearchBounds(until_depth=depth, until=question - 1)


def truncation_end(part: Part) -> str:
    """Return the id of the last message that a truncation dropped; "" for a part of another kind."""
    data = part.data if isinstance(part, DataPart) else None
    return str(data.get("to", "")) if isinstance(data, Mapping) else ""


def first_passages(
    rows: Iterable[Row], params: Mapping[str, Any], *, snippet_of: Callable[[Any], str] = str
) -> tuple[Passage, ...]:
    """Return the first passage of each message, in the order of the rows, as many as the search wants.

    `snippet_of` returns the marked snippet for the last column of a row.
    """
    best: dict[tuple[str, str], Row] = {}
    limit = params["limit"] // ROWS_PER_MESSAGE
    for row in rows:
        best.setdefault((row[0], row[2]), row)
    return tuple(
        Passage(
            session_id=session_id,
            title=title,
            message_id=message_id,
            role=role,
            created_at=created_at,
            snippet=split_snippet(snippet_of(last)),
        )
        for session_id, title, message_id, role, created_at, last in list(best.values())[:limit]
    )


def split_snippet(snippet: str) -> tuple[SnippetPiece, ...]:
    """Split a snippet at its marked hits into pieces of bounded length, without line breaks."""
    texts = HIT_PATTERN.split(WHITESPACE.sub(" ", snippet))
    pieces: list[SnippetPiece] = []
    for index, text in enumerate(texts):
        if index % 2:  # the texts between HIT_START and HIT_END
            pieces.append(SnippetPiece(text[:MAX_PIECE_LENGTH], hit=True))
        elif text:
            first, last = index == 0, index == len(texts) - 1
            pieces.append(SnippetPiece(shorten_piece(text, before=first and not last, after=last)))
    return tuple(pieces)


def shorten_piece(text: str, *, before: bool, after: bool) -> str:
    """Shorten the text next to a hit, or between two, at the end farthest from them."""
    if len(text) <= MAX_PIECE_LENGTH:
        return text
    if before:
        return ELLIPSIS + text[-MAX_PIECE_LENGTH:]
    if after:
        return text[:MAX_PIECE_LENGTH] + ELLIPSIS
    half = MAX_PIECE_LENGTH // 2
    return text[:half] + ELLIPSIS + text[-half:]


def mark_match(text: str, query: str) -> str:
    """Return an excerpt of a text around its first match of the query, with the match marked."""
    match = re.search(re.escape(query), text, re.IGNORECASE)
    if match is None:  # the database folds the case of other letters than Python does
        return text[: 2 * MAX_PIECE_LENGTH]
    start, end = match.span()
    left, right = text[max(0, start - MAX_PIECE_LENGTH) : start], text[end : end + MAX_PIECE_LENGTH]
    before = ELLIPSIS if start > MAX_PIECE_LENGTH else ""
    after = ELLIPSIS if end + MAX_PIECE_LENGTH < len(text) else ""
    return f"{before}{left}{HIT_START}{match[0]}{HIT_END}{right}{after}"
