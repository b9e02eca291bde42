"""What was said and is not indexed yet, in SQL: which sessions, which messages of one, and their parts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, case, func, literal_column, select

from dragoman.store.tables import indexed_messages, indexed_sessions, messages, parts, runs, sessions

AT_ONCE = 32  # parts

RUNNING: ColumnElement[bool] = runs.c.status == literal_column("'running'")
NONE: ColumnElement[int] = literal_column("0")


def sessions_of_owner() -> Select[Any]:
    """The owner's sessions in which something was said since they were indexed, the last changed first."""
    begun = select(func.count()).where(runs.c.session_id == sessions.c.id).scalar_subquery()
    marked = sessions.outerjoin(indexed_sessions, indexed_sessions.c.session_id == sessions.c.id)
    found = select(sessions.c.id).select_from(marked)
    found = found.where(
        sessions.c.owner == bindparam("owner"), begun != func.coalesce(indexed_sessions.c.runs, NONE)
    )
    return found.order_by(sessions.c.updated_at.desc(), sessions.c.id)


def session_of_owner() -> Select[Any]:
    """The same of one session."""
    return sessions_of_owner().where(sessions.c.id == bindparam("id"))


def known() -> Select[int, int]:
    """How many messages there are, and how many of them are indexed."""
    mark = (indexed_messages.c.session_id == messages.c.session_id) & (
        indexed_messages.c.message_id == messages.c.id
    )
    marked = messages.join(sessions, sessions.c.id == messages.c.session_id).outerjoin(indexed_messages, mark)
    found = select(func.count(), func.count(indexed_messages.c.message_id)).select_from(marked)
    return found.where(
        sessions.c.owner == bindparam("owner"),
        sessions.c.id == func.coalesce(bindparam("id"), sessions.c.id),
    )


def head() -> Select[Any]:
    """Whose a session is, how many runs it has, and how many of them have ended."""
    theirs = sessions.outerjoin(runs, runs.c.session_id == sessions.c.id)
    found = select(sessions.c.owner, func.count(runs.c.id), ended()).select_from(theirs)
    return found.where(sessions.c.id == bindparam("session_id")).group_by(sessions.c.owner)


def begun() -> Select[Any]:
    """How many runs a session has."""
    found: Select[Any] = select(func.count()).where(runs.c.session_id == bindparam("session_id"))
    return found


def ended() -> ColumnElement[int]:
    return func.sum(case((runs.c.status.is_(None) | RUNNING, NONE), else_=literal_column("1")))


def messages_of_session() -> Select[Any]:
    """Messages that are not indexed as they are now, each with how many of its runs have ended."""
    counted = select(runs.c.message_id, func.count().label("begun"), ended().label("ended"))
    counted = counted.where(runs.c.session_id == bindparam("session_id")).group_by(runs.c.message_id)
    theirs = counted.subquery()
    mark = (indexed_messages.c.session_id == messages.c.session_id) & (
        indexed_messages.c.message_id == messages.c.id
    )
    joined = messages.outerjoin(indexed_messages, mark).outerjoin(
        theirs, theirs.c.message_id == messages.c.id
    )
    found = select(messages.c.id, func.coalesce(theirs.c.ended, NONE)).select_from(joined)
    changed = indexed_messages.c.runs != func.coalesce(theirs.c.begun, NONE)
    found = found.where(
        messages.c.session_id == bindparam("session_id"), indexed_messages.c.runs.is_(None) | changed
    )
    return found.order_by(messages.c.position)


def bodies() -> Select[Any]:
    """Some of a message's parts, from one on."""
    found = select(parts.c.position, parts.c.body).where(
        parts.c.session_id == bindparam("session_id"),
        parts.c.message_id == bindparam("message_id"),
        parts.c.position >= bindparam("start"),
    )
    return found.order_by(parts.c.position).limit(literal_column(str(AT_ONCE))).offset(NONE)
