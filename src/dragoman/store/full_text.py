"""The full-text index over passages: what SQLite has for it, and how each backend is asked."""

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

# ---- Scopes: whose words they are, as words in an index, which then looks only at what one of them said.


def search_scope(session_id: str, *, owner: str) -> str:
    """The scope of what was said in a session."""
    return f"{owner_token(owner)} {session_token(session_id)}"


def owner_token(owner: str) -> str:
    return f"o{_hash_name(owner)}"


def session_token(session_id: str) -> str:
    return f"s{_hash_name(session_id)}"


def _hash_name(name: str) -> str:
    return blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()


HIT_START, HIT_END = "\x02", "\x03"  # around a hit; `spoken` leaves no such characters
ELLIPSIS = "…"
SNIPPET_WORDS = 24  # words of a snippet
MAX_QUERY_WORDS = 32
MAX_WORD_LENGTH = 100
MIN_PREFIX_LENGTH = 3  # characters of a word that finds longer ones too

# Made when somebody searches for the first time: some SQLites have no FTS5, and serve all the rest.
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
    """The statement that finds passages by words, the best first. It takes `match` on SQLite, `words` on
    Postgres, and `owner`, `session_id` (or None), `until`, `asked` and `limit`.
    """

    inherit_cache: bool | None = False


def compile_sqlite_search(_: FullTextSearch, compiler: SQLCompiler, **options: Any) -> str:
    """For SQLite: FTS5 ranks by bm25, in which the scope does not count."""
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
    """For Postgres."""
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
    """A statement that makes a piece of the index, where there is none; to be said of each in CREATE."""

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
    """The statement that finds a text in the newest passages, wherever it stands; `pattern` is for LIKE.

    It looks at so many as `among` says.
    """
    newest = restrict_to_owner(
        select(*RESULT_COLUMNS, passages.c.text, passages.c.id).select_from(passages), limit="among"
    )
    held = newest.order_by(passages.c.id.desc()).subquery()
    kept = [held.c[each.name] for each in (*RESULT_COLUMNS, passages.c.text)]
    found = select(*kept).where(held.c.text.ilike(bindparam("pattern"), escape="!"))
    return found.order_by(held.c.id.desc()).limit(bindparam("limit")).offset(literal_column("0"))


def restrict_to_owner(query: Select[Any], *, limit: str = "limit") -> Select[Any]:
    """Only passages of the owner, and of the messages that are asked about."""
    said = (messages.c.session_id == passages.c.session_id) & (messages.c.id == passages.c.message_id)
    return (
        query.join(messages, said)
        .join(sessions, sessions.c.id == passages.c.session_id)
        .where(
            sessions.c.owner == bindparam("owner"),
            passages.c.session_id == func.coalesce(bindparam("session_id"), passages.c.session_id),
            messages.c.position <= bindparam("until"),
            messages.c.position != bindparam("asked"),
        )
        .limit(bindparam(limit))
        .offset(literal_column("0"))
    )


def query_words(query: str) -> list[str]:
    """The words of a question; signs alone are none."""
    plain = query.replace("\0", " ").encode(errors="replace").decode()
    return [
        word[:MAX_WORD_LENGTH] for word in plain.split() if any(map(str.isalnum, word[:MAX_WORD_LENGTH]))
    ][:MAX_QUERY_WORDS]


def fts5_query(words: Sequence[str], *, owner: str, session_id: str | None, match_all: bool) -> str:
    """The question for FTS5. Each word is quoted, so that it is a word and nothing else; the word itself
    counts for more than longer ones that begin with it.
    """
    scope = owner_token(owner) if session_id is None else session_token(session_id)
    terms = [
        _fts5_term('"' + word.replace('"', '""') + '"', exact=len(word) < MIN_PREFIX_LENGTH) for word in words
    ]
    return f'scope : "{scope}" AND text : ({(" AND " if match_all else " OR ").join(terms)})'


def _fts5_term(quoted: str, *, exact: bool) -> str:
    return quoted if exact else f"({quoted} OR {quoted} *)"


def tsquery(words: Sequence[str], *, match_all: bool) -> str:
    """The same for Postgres."""
    quoted = ["'" + word.replace("\\", "\\\\").replace("'", "''") + "'" for word in words]
    return (" & " if match_all else " | ").join(f"{word}:*" for word in quoted)


def like_pattern(query: str) -> str:
    """The pattern for LIKE that holds for every text with the question in it."""
    text = query.replace("\0", "").encode(errors="replace").decode().strip()
    for sign in "!%_":
        text = text.replace(sign, f"!{sign}")
    return f"%{text}%"
