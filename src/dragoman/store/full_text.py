"""SQL of the full-text search over messages: FTS5 on SQLite, tsvector on Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from sqlalchemy import (
    ClauseElement,
    ColumnElement,
    Select,
    bindparam,
    column,
    func,
    literal_column,
    select,
    table,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from dragoman.store.tables import messages, passages, sessions

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
    "CREATE INDEX IF NOT EXISTS ix_passages_words ON passages USING gin (to_tsvector('simple', text))"
)

RESULT_COLUMNS = (
    passages.c.session_id,
    sessions.c.title,
    passages.c.message_id,
    messages.c.role,
    messages.c.created_at,
)


class FullTextSearch(ClauseElement):
    """The query for passages by words, best first.

    Parameters: `match` (SQLite) or `words` (Postgres), `owner`, `session_id` or None, `until`, `question` and
    `limit`.
    """

    inherit_cache: bool | None = False


def compile_sqlite_search(_: FullTextSearch, compiler: SQLCompiler, **options: Any) -> str:
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
    return compiler.process(restrict_to_owner(found).order_by(index.c.rank), **options)


def compile_postgres_search(_: FullTextSearch, compiler: SQLCompiler, **options: Any) -> str:
    """Compile for Postgres."""
    simple: ColumnElement[str] = literal_column("'simple'")
    words = func.to_tsquery(simple, bindparam("words"))
    vector = func.to_tsvector(simple, passages.c.text)
    marks: ColumnElement[str] = literal_column(
        f"'StartSel={HIT_START}, StopSel={HIT_END}, MaxWords={SNIPPET_WORDS}, MinWords=8'"
    )
    found = select(*RESULT_COLUMNS, func.ts_headline(simple, passages.c.text, words, marks)).select_from(
        passages
    )
    found = found.where(vector.op("@@")(words))
    return compiler.process(restrict_to_owner(found).order_by(func.ts_rank(vector, words).desc()), **options)


compiles(FullTextSearch, "sqlite")(compile_sqlite_search)
compiles(FullTextSearch, "postgresql")(compile_postgres_search)


class CreateIndexStatement(ClauseElement):
    """A statement of `CREATE_SQLITE_INDEX`, which on Postgres compiles to `CREATE_POSTGRES_INDEX`."""

    inherit_cache: bool | None = False

    def __init__(self, sql: str) -> None:
        self.sql = sql


def compile_sqlite_create(statement: CreateIndexStatement, _: SQLCompiler, **__: Any) -> str:
    return statement.sql


def compile_postgres_create(_: CreateIndexStatement, __: SQLCompiler, **___: Any) -> str:
    return CREATE_POSTGRES_INDEX


compiles(CreateIndexStatement, "sqlite")(compile_sqlite_create)
compiles(CreateIndexStatement, "postgresql")(compile_postgres_create)


def select_by_text() -> Select[Any]:
    """Return the query for a substring in the newest passages; `among` is how many it scans.

    `pattern` is a LIKE pattern.
    """
    newest = restrict_to_owner(
        select(*RESULT_COLUMNS, passages.c.text, passages.c.id).select_from(passages), limit="among"
    )
    scanned = newest.order_by(passages.c.id.desc()).subquery()
    columns = [scanned.c[column.name] for column in (*RESULT_COLUMNS, passages.c.text)]
    found = select(*columns).where(scanned.c.text.ilike(bindparam("pattern"), escape="!"))
    return found.order_by(scanned.c.id.desc()).limit(bindparam("limit")).offset(literal_column("0"))


def restrict_to_owner(query: Select[Any], *, limit: str = "limit") -> Select[Any]:
    """Restrict a query to the owner's passages, and to the messages to be searched."""
    of_message = (messages.c.session_id == passages.c.session_id) & (messages.c.id == passages.c.message_id)
    return (
        query.join(messages, of_message)
        .join(sessions, sessions.c.id == passages.c.session_id)
        .where(
            sessions.c.owner == bindparam("owner"),
            passages.c.session_id == func.coalesce(bindparam("session_id"), passages.c.session_id),
            messages.c.position <= bindparam("until"),
            messages.c.position != bindparam("question"),
        )
        .limit(bindparam(limit))
        .offset(literal_column("0"))
    )


def query_words(query: str) -> list[str]:
    """Return the words of a query; punctuation alone is not a word."""
    plain = query.replace("\0", " ").encode(errors="replace").decode()
    return [
        word[:MAX_WORD_LENGTH] for word in plain.split() if any(map(str.isalnum, word[:MAX_WORD_LENGTH]))
    ][:MAX_QUERY_WORDS]


def fts5_query(words: Sequence[str], *, owner: str, session_id: str | None, match_all: bool) -> str:
    """Return the FTS5 query for the words.

    Words are quoted, so that none is read as an operator. A word matches itself and, with a lower rank,
    longer words that begin with it.
    """
    scope = owner_token(owner) if session_id is None else session_token(session_id)
    terms = [
        _fts5_term('"' + word.replace('"', '""') + '"', exact=len(word) < MIN_PREFIX_LENGTH) for word in words
    ]
    return f'scope : "{scope}" AND text : ({(" AND " if match_all else " OR ").join(terms)})'


def _fts5_term(quoted: str, *, exact: bool) -> str:
    return quoted if exact else f"({quoted} OR {quoted} *)"


def tsquery(words: Sequence[str], *, match_all: bool) -> str:
    """Return the Postgres tsquery for the words."""
    quoted = ["'" + word.replace("\\", "\\\\").replace("'", "''") + "'" for word in words]
    return (" & " if match_all else " | ").join(f"{word}:*" for word in quoted)


def like_pattern(query: str) -> str:
    """Return the LIKE pattern (escape `!`) of texts that contain the query."""
    text = query.replace("\0", "").encode(errors="replace").decode().strip()
    for sign in "!%_":
        text = text.replace(sign, f"!{sign}")
    return f"%{text}%"
