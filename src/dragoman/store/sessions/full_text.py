"""SQL of the full-text search over messages: FTS5 on SQLite, tsvector on Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from sqlalchemy import (
    ClauseElement,
    Select,
    bindparam,
    cast,
    column,
    func,
    literal_column,
    select,
    table,
)
from sqlalchemy.dialects.sqlite import Insert
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from dragoman.store.sessions.message_paths import active_path, in_path
from dragoman.store.sessions.postgres_words import QueryWord, find_hits, split_words
from dragoman.store.tables.core import messages, passages, sessions

# Scopes: the owner and the session of a passage are terms of the index too, so that a search reads only the
# entries of one owner or session.


def search_scope(session_id: str, *, owner: str) -> str:
    """Return the scope of a session's passages."""
    return f"{owner_token(owner)} {session_token(session_id)}"


def owner_token(owner: str) -> str:
    return f"o{_hash_name(owner)}"


def session_token(session_id: str) -> str:
    return f"s{_hash_name(session_id)}"


def _hash_name(name: str) -> str:
    return blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()


HIT_START, HIT_END = "\x02", "\x03"  # around a hit; plain text has no such characters
ELLIPSIS = "…"
SNIPPET_WORDS = 24  # words of a snippet
MAX_QUERY_WORDS = 32
MAX_WORD_LENGTH = 100
MAX_SNIPPET_LENGTH = 160  # characters of a snippet without a hit, twice
MIN_PREFIX_LENGTH = 3  # characters of a query word that also matches longer words

# Created at the first search: some builds of SQLite have no FTS5, and everything else works without it.
CREATE_SQLITE_INDEX = (
    """
    CREATE VIRTUAL TABLE IF NOT EXISTS passage_index USING fts5(
        scope, text, content='passages', content_rowid='id', tokenize="unicode61 remove_diacritics 2"
    )
    """,
    """
    CREATE TRIGGER IF NOT EXISTS passages_added AFTER INSERT ON passages BEGIN
        INSERT INTO passage_index (rowid, scope, text) VALUES (new.id, new.scope, new.text);
    END
    """,
    """
    CREATE TRIGGER IF NOT EXISTS passages_gone AFTER DELETE ON passages BEGIN
        INSERT INTO passage_index (passage_index, rowid, scope, text)
        VALUES ('delete', old.id, old.scope, old.text);
    END
    """,
    """
    CREATE TRIGGER IF NOT EXISTS passages_changed AFTER UPDATE ON passages BEGIN
        INSERT INTO passage_index (passage_index, rowid, scope, text)
        VALUES ('delete', old.id, old.scope, old.text);
        INSERT INTO passage_index (rowid, scope, text) VALUES (new.id, new.scope, new.text);
    END
    """,
)
CREATE_POSTGRES_INDEX = (
    "SELECT pg_advisory_xact_lock(hashtext('dragoman passage_index'), hashtext(current_schema()))",
    """
    CREATE TABLE IF NOT EXISTS passage_index (
        id BIGINT PRIMARY KEY REFERENCES passages (id) ON DELETE CASCADE, words TSVECTOR NOT NULL
    )
    """,
    "CREATE INDEX IF NOT EXISTS ix_passage_index_words ON passage_index USING gin (words)",
)

PART_KEY = passages.c.session_id, passages.c.message_id, passages.c.position
RESULT_COLUMNS = (
    passages.c.session_id,
    sessions.c.title,
    passages.c.message_id,
    messages.c.role,
    messages.c.created_at,
    sessions.c.kind,
    messages.c.position,
)


class FullTextSearch(ClauseElement):
    """The query for passages by words, best first. Its last column is a snippet, on Postgres the id.

    Parameters: `match`, `owner`, `limit`; with `of_session`, `session_id` and the bounds of its active
    branch; on Postgres the words without a scope to rank by: `exact`, and `similar`, with longer words.
    """

    inherit_cache: bool | None = False

    def __init__(self, *, of_session: bool) -> None:
        self.of_session = of_session


def compile_sqlite_search(search: FullTextSearch, compiler: SQLCompiler, **options: Any) -> str:
    """Compile for SQLite: FTS5 ranks by bm25, with weight 0 for the scope column."""
    index = table("passage_index", column("rowid"), column("rank"))
    snippet = f"snippet(passage_index, 1, char(2), char(3), '{ELLIPSIS}', {SNIPPET_WORDS})"
    found = select(*RESULT_COLUMNS, literal_column(snippet)).select_from(
        index.join(passages, passages.c.id == index.c.rowid)
    )
    found = found.where(
        literal_column("passage_index").op("MATCH")(bindparam("match")),
        index.c.rank.op("MATCH")(literal_column("'bm25(0.0, 1.0)'")),
    )
    found = restrict_search(found, of_session=search.of_session).order_by(index.c.rank)
    return compiler.process(found, **options)


def compile_postgres_search(search: FullTextSearch, compiler: SQLCompiler, **options: Any) -> str:
    """Compile for Postgres: ranked by how often the words occur, for the length of the text."""
    from sqlalchemy.dialects.postgresql import TSQUERY  # late: the dialect, which hubs on SQLite do not need

    index = table("passage_index", column("id"), column("words"))
    match, *terms = (cast(bindparam(name), TSQUERY) for name in ("match", "exact", "similar"))
    exact, similar = (func.ts_rank(index.c.words, query, literal_column("1")) for query in terms)
    found = select(*RESULT_COLUMNS, passages.c.id).select_from(
        index.join(passages, passages.c.id == index.c.id)
    )
    found = found.where(index.c.words.op("@@")(match))
    found = restrict_search(found, of_session=search.of_session)
    return compiler.process(found.order_by((exact + similar).desc(), passages.c.id), **options)


compiles(FullTextSearch, "sqlite")(compile_sqlite_search)
compiles(FullTextSearch, "postgresql")(compile_postgres_search)


class UpsertPassage(ClauseElement):
    """The statement that inserts a passage or updates its text.

    Parameters: the passage's columns and, on Postgres, `words`, the `tsvector` of its text.
    """

    inherit_cache: bool | None = False

    def __init__(self, upsert: Insert) -> None:
        self.upsert = upsert


def compile_sqlite_upsert(statement: UpsertPassage, compiler: SQLCompiler, **_: Any) -> str:
    """Compile for SQLite, whose triggers write the index; a passage that stays the same is not written."""
    upsert = statement.upsert.on_conflict_do_update(
        index_elements=PART_KEY,
        set_={"text": statement.upsert.excluded.text},
        where=passages.c.text != statement.upsert.excluded.text,
    )
    return str(upsert.compile(dialect=compiler.dialect))


def compile_postgres_upsert(statement: UpsertPassage, compiler: SQLCompiler, **options: Any) -> str:
    """Compile for Postgres: the passage and its entry in the index in one statement."""
    from sqlalchemy.dialects.postgresql import TSVECTOR  # late: as above

    upsert = statement.upsert.on_conflict_do_update(
        index_elements=PART_KEY, set_={"text": statement.upsert.excluded.text}
    )
    passage = upsert.returning(passages.c.id).compile(dialect=compiler.dialect)
    words = compiler.process(cast(bindparam("words"), TSVECTOR), **options)
    return (
        f"WITH passage AS ({passage}) INSERT INTO passage_index (id, words) SELECT id, {words} FROM passage "  # noqa: S608 - constants
        "ON CONFLICT (id) DO UPDATE SET words = excluded.words"
    )


compiles(UpsertPassage, "sqlite")(compile_sqlite_upsert)
compiles(UpsertPassage, "postgresql")(compile_postgres_upsert)


def select_by_text(*, of_session: bool) -> Select[Any]:
    """Return the query for a substring in the newest passages; `among` is how many it scans.

    `pattern` is a LIKE pattern.
    """
    newest = restrict_search(
        select(*RESULT_COLUMNS, passages.c.text, passages.c.id).select_from(passages),
        of_session=of_session,
        limit="among",
    )
    scanned = newest.order_by(passages.c.id.desc()).subquery()
    columns = [scanned.c[column.name] for column in (*RESULT_COLUMNS, passages.c.text)]
    found = select(*columns).where(scanned.c.text.ilike(bindparam("pattern"), escape="!"))
    return found.order_by(scanned.c.id.desc()).limit(bindparam("limit")).offset(literal_column("0"))


def restrict_search(query: Select[Any], *, of_session: bool, limit: str = "limit") -> Select[Any]:
    """Restrict a query for passages to the owner's, or to those of the active branch of a session.

    Of a session it finds the messages up to the position `until` of the segment `until_depth`, without the
    one at the position `question`.
    """
    of_message = (messages.c.session_id == passages.c.session_id) & (messages.c.id == passages.c.message_id)
    found = query.join(messages, of_message).join(sessions, sessions.c.id == passages.c.session_id)
    found = found.where(sessions.c.owner == bindparam("owner"))
    if of_session:
        path = active_path()
        is_before = (path.c.depth > bindparam("until_depth")) | (messages.c.position <= bindparam("until"))
        is_question = (path.c.depth == bindparam("question_depth")) & (
            messages.c.position == bindparam("question")
        )
        found = found.join(path, in_path(path)).where(
            path.c.depth >= bindparam("until_depth"), is_before, ~is_question
        )
    return found.limit(bindparam(limit)).offset(literal_column("0"))


def query_words(query: str) -> list[str]:
    """Return the words of a query; punctuation alone is not a word."""
    plain = query.replace("\0", " ").encode(errors="replace").decode()
    return [
        word[:MAX_WORD_LENGTH] for word in plain.split() if any(map(str.isalnum, word[:MAX_WORD_LENGTH]))
    ][:MAX_QUERY_WORDS]


def fts5_query(words: Sequence[str], *, scope: str, match_all: bool) -> str:
    """Return the FTS5 query for the words, among the passages with a term of `search_scope`.

    Words are quoted, so that none is read as an operator. A word matches itself and, with a lower rank,
    longer words that begin with it.
    """
    terms = [
        _fts5_term('"' + word.replace('"', '""') + '"', exact=len(word) < MIN_PREFIX_LENGTH) for word in words
    ]
    return f'scope : "{scope}" AND text : ({(" AND " if match_all else " OR ").join(terms)})'


def _fts5_term(quoted: str, *, exact: bool) -> str:
    return quoted if exact else f"({quoted} OR {quoted} *)"


def query_terms(words: Sequence[str]) -> list[QueryWord]:
    """Return the words of a query as Postgres' index has them; one may be several words there."""
    found = [
        QueryWord(tuple(span.word for span in split_words(word)), len(word) >= MIN_PREFIX_LENGTH)
        for word in words
    ]
    return [term for term in found if term.words]


def mark_words(text: str, terms: Sequence[QueryWord]) -> str:
    """Return an excerpt of a text around its hits, with the hits marked, as SQLite's `snippet` does."""
    spans = list(split_words(text))
    hits = list(find_hits(spans, terms))
    if not hits:
        return text[: 2 * MAX_SNIPPET_LENGTH]
    first, last = snippet_window(hits, len(spans))
    begin = 0 if first == 0 else spans[first].start
    end = len(text) if last == len(spans) - 1 else spans[last].end
    pieces, at = [ELLIPSIS] if begin else [], begin
    for start, stop, _ in hits:
        if first <= start and stop <= last:
            pieces += [
                text[at : spans[start].start],
                HIT_START,
                text[spans[start].start : spans[stop].end],
                HIT_END,
            ]
            at = spans[stop].end
    return "".join([*pieces, text[at:end], ELLIPSIS if end < len(text) else ""])


def snippet_window(hits: Sequence[tuple[int, int, int]], count: int) -> tuple[int, int]:
    """Return the first and last word of the snippet: the place with the most different words of the query."""

    def words_from(start: int) -> int:
        return len({number for at, _, number in hits if start <= at < start + SNIPPET_WORDS})

    start = max((at for at, _, _ in hits), key=words_from)
    first = max(0, min(start - SNIPPET_WORDS // 3, count - SNIPPET_WORDS))
    return first, min(count, first + SNIPPET_WORDS) - 1


def like_pattern(query: str) -> str:
    """Return the LIKE pattern (escape `!`) of texts that contain the query."""
    text = query.replace("\0", "").encode(errors="replace").decode().strip()
    for sign in "!%_":
        text = text.replace(sign, f"!{sign}")
    return f"%{text}%"
