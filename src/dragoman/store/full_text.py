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


def scope_of(session_id: str, *, owner: str) -> str:
    """The scope of what was said in a session."""
    return f"{owner_word(owner)} {session_word(session_id)}"


def owner_word(owner: str) -> str:
    return f"o{_digest(owner)}"


def session_word(session_id: str) -> str:
    return f"s{_digest(session_id)}"


def _digest(name: str) -> str:
    return blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()


OPEN, CLOSE = "\x02", "\x03"  # around a hit; `spoken` leaves no such characters
GAP = "…"
AROUND = 24  # words of a snippet
MOST_WORDS = 32
LONGEST_WORD = 100
LEAST_PREFIX = 3  # characters of a word that finds longer ones too

# Made when somebody searches for the first time: some SQLites have no FTS5, and serve all the rest.
CREATE = (
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
CREATE_VECTORS = (
    "CREATE INDEX IF NOT EXISTS ix_passages_words ON passages USING gin (to_tsvector('simple', text))"
)

HEAD = (
    passages.c.session_id,
    sessions.c.title,
    passages.c.message_id,
    messages.c.role,
    messages.c.created_at,
)


class ByWords(ClauseElement):
    """The statement that finds passages by words, the best first. It takes `match` on SQLite, `words` on
    Postgres, and `owner`, `session_id` (or None), `until`, `asked` and `limit`.
    """

    inherit_cache: bool | None = False


def by_index(_: ByWords, compiler: SQLCompiler, **options: Any) -> str:
    """For SQLite: FTS5 ranks by bm25, in which the scope does not count."""
    index = table("passage_index", column("rowid"), column("rank"))
    snippet = f"snippet(passage_index, 1, char(2), char(3), '{GAP}', {AROUND})"
    found = select(*HEAD, literal_column(snippet)).select_from(
        index.join(passages, passages.c.id == index.c.rowid)
    )
    found = found.where(
        literal_column("passage_index").op("MATCH")(bindparam("match")),
        index.c.rank.op("MATCH")(literal_column("'bm25(0.0, 1.0)'")),
    )
    return compiler.process(theirs(found).order_by(index.c.rank), **options)


def by_vector(_: ByWords, compiler: SQLCompiler, **options: Any) -> str:
    """For Postgres."""
    simple: ColumnElement[str] = literal_column("'simple'")
    words = func.to_tsquery(simple, bindparam("words"))
    vector = func.to_tsvector(simple, passages.c.text)
    marks: ColumnElement[str] = literal_column(
        f"'StartSel={OPEN}, StopSel={CLOSE}, MaxWords={AROUND}, MinWords=8'"
    )
    found = select(*HEAD, func.ts_headline(simple, passages.c.text, words, marks)).select_from(passages)
    found = found.where(vector.op("@@")(words))
    return compiler.process(theirs(found).order_by(func.ts_rank(vector, words).desc()), **options)


compiles(ByWords, "sqlite")(by_index)
compiles(ByWords, "postgresql")(by_vector)


class Creation(ClauseElement):
    """A statement that makes a piece of the index, where there is none; to be said of each in CREATE."""

    inherit_cache: bool | None = False

    def __init__(self, sql: str) -> None:
        self.sql = sql


def for_words(creation: Creation, _: SQLCompiler, **__: Any) -> str:
    return creation.sql


def for_vectors(_: Creation, __: SQLCompiler, **___: Any) -> str:
    return CREATE_VECTORS


compiles(Creation, "sqlite")(for_words)
compiles(Creation, "postgresql")(for_vectors)


def by_text() -> Select[Any]:
    """The statement that finds a text in the newest passages, wherever it stands; `pattern` is for LIKE.

    It looks at so many as `among` says.
    """
    newest = theirs(select(*HEAD, passages.c.text, passages.c.id).select_from(passages), limit="among")
    held = newest.order_by(passages.c.id.desc()).subquery()
    kept = [held.c[each.name] for each in (*HEAD, passages.c.text)]
    found = select(*kept).where(held.c.text.ilike(bindparam("pattern"), escape="!"))
    return found.order_by(held.c.id.desc()).limit(bindparam("limit")).offset(literal_column("0"))


def theirs(found: Select[Any], *, limit: str = "limit") -> Select[Any]:
    """Only passages of the owner, and of the messages that are asked about."""
    said = (messages.c.session_id == passages.c.session_id) & (messages.c.id == passages.c.message_id)
    return (
        found.join(messages, said)
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


def words_in(query: str) -> list[str]:
    """The words of a question; signs alone are none."""
    plain = query.replace("\0", " ").encode(errors="replace").decode()
    return [word[:LONGEST_WORD] for word in plain.split() if any(map(str.isalnum, word[:LONGEST_WORD]))][
        :MOST_WORDS
    ]


def match_of(words: Sequence[str], *, owner: str, session_id: str | None, every: bool) -> str:
    """The question for FTS5. Each word is quoted, so that it is a word and nothing else; the word itself
    counts for more than longer ones that begin with it.
    """
    scope = owner_word(owner) if session_id is None else session_word(session_id)
    terms = [_term('"' + word.replace('"', '""') + '"', whole=len(word) < LEAST_PREFIX) for word in words]
    return f'scope : "{scope}" AND text : ({(" AND " if every else " OR ").join(terms)})'


def _term(quoted: str, *, whole: bool) -> str:
    return quoted if whole else f"({quoted} OR {quoted} *)"


def vector_of(words: Sequence[str], *, every: bool) -> str:
    """The same for Postgres."""
    quoted = ["'" + word.replace("\\", "\\\\").replace("'", "''") + "'" for word in words]
    return (" & " if every else " | ").join(f"{word}:*" for word in quoted)


def pattern_of(query: str) -> str:
    """The pattern for LIKE that holds for every text with the question in it."""
    text = query.replace("\0", "").encode(errors="replace").decode().strip()
    for sign in "!%_":
        text = text.replace(sign, f"!{sign}")
    return f"%{text}%"
