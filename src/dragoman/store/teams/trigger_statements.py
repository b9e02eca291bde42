"""The SQL of `TriggerRepository`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    bindparam,
    case,
    delete,
    func,
    literal_column,
    null,
    or_,
    select,
    tuple_,
    update,
)

from dragoman.store.call_trees.roots import escape_like
from dragoman.store.connection import Compiler, select_fields
from dragoman.store.tables.core import occurrences, team_tasks, triggers
from dragoman.store.teams.trigger_records import TriggerOccurrence, TriggerRecord


def one_of(column: ColumnElement[Any], *values: str) -> ColumnElement[bool]:
    """Return the condition that a column has one of these values, written into the SQL."""
    return column.in_([literal_column(f"'{value}'") for value in values])


def page_params(
    filters: Mapping[str, str | None], *, after: TriggerRecord | None, limit: int
) -> Mapping[str, Any]:
    """Return the parameters of a page of triggers, after the last one of another page.

    `filters` are an `owner`, a `team`, and a `text` in the name or the definition; None does not filter.
    """
    params: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    if "text" in params:
        params["text"] = f"%{escape_like(params['text'].lower())}%"
    if after is not None:
        params |= {"after_team": after.team, "after_name": after.name, "after_id": after.id}
    return {**params, "limit": limit}


def select_page(names: frozenset[str]) -> Select[Any]:
    """Return the query for a page of triggers, by team and name, with these parameters."""
    columns = triggers.c
    place = columns.team, columns.name, columns.id
    found = select_fields(TriggerRecord, triggers)
    for column in (columns.owner, columns.team):
        if column.name in names:
            found = found.where(column == bindparam(column.name))
    if "text" in names:
        pattern: ColumnElement[str] = bindparam("text")
        is_named, has_words = (
            func.lower(column).like(pattern, escape="/") for column in (columns.name, columns.body)
        )
        found = found.where(or_(is_named, has_words))
    if "after_id" in names:
        after: list[ColumnElement[str]] = [bindparam(f"after_{column.name}") for column in place]
        found = found.where(tuple_(*place) > tuple_(*after))
    return found.order_by(*place).limit(bindparam("limit")).offset(literal_column("0"))


class TriggerStatements:
    """The SQL of `TriggerRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self.update = cache(self._compile_update)
        self.update_seen = cache(self._compile_update_seen)
        self.move = cache(self._compile_move)
        self.change = cache(self._compile_change)
        self._add_triggers(compiler)
        self._add_lists(compiler)
        self._add_occurrences(compiler)
        self._add_repetitions(compiler)

    def _add_triggers(self, compiler: Compiler) -> None:
        columns = triggers.c
        this = columns.id == bindparam("id")
        found = select_fields(TriggerRecord, triggers)
        named = found.where(columns.team == bindparam("team"), columns.name == bindparam("name"))
        is_active = one_of(columns.state, "active")
        unless_there = compiler.insert(triggers).on_conflict_do_nothing(
            index_elements=["owner", "team", "name"]
        )
        due = found.where(is_active, columns.next_at <= bindparam("now")).order_by(columns.next_at)
        self.insert = compiler.compile(unless_there)
        self.get = compiler.compile(found.where(this))
        self.find = compiler.compile(named)
        self.find_owned = compiler.compile(named.where(columns.owner == bindparam("owner")))
        self.delete = compiler.compile(delete(triggers).where(this))
        self.due = compiler.compile(due.limit(bindparam("limit")).offset(literal_column("0")))
        earliest = select(func.min(columns.next_at)).where(is_active, columns.next_at.is_not(None))
        self.next_trigger = compiler.compile(earliest)
        self.overlaps = compiler.compile(
            select(columns.overlaps).where(columns.id == bindparam("trigger_id"))
        )
        self.failures = compiler.compile(select(columns.failures, columns.state).where(this))
        self.secrets = compiler.compile(select(columns.id, columns.secret).where(columns.secret.is_not(None)))

    def _add_lists(self, compiler: Compiler) -> None:
        columns = triggers.c
        found = select_fields(TriggerRecord, triggers)
        owned = columns.owner == bindparam("owner")
        self.of_files = compiler.compile(found.where(columns.source == literal_column("'file'")))
        active = found.where(one_of(columns.state, "active"), columns.type == bindparam("type"))
        self.active = compiler.compile(active.order_by(columns.id))
        for_approval = one_of(columns.state, "pending"), columns.approval_id.is_not(None)
        self.for_approval = compiler.compile(found.where(*for_approval).order_by(columns.id))
        self.count = compiler.compile(select(func.count()).select_from(triggers).where(owned))

    def _add_occurrences(self, compiler: Compiler) -> None:
        columns = occurrences.c
        here = columns.trigger_id == bindparam("trigger_id")
        this = here, columns.key == bindparam("key")
        found = select_fields(TriggerOccurrence, occurrences)
        zero: ColumnElement[int] = literal_column("0")
        oldest = columns.created_at, columns.due_at, columns.key
        newest = columns.created_at.desc(), columns.due_at.desc(), columns.key.desc()
        is_active = one_of(columns.state, "starting", "running")
        delivered: dict[str, Any] = {"deliver": literal_column("'session'"), "delivered_at": null()}
        self.deliver_task = compiler.compile(
            update(team_tasks).where(team_tasks.c.id == bindparam("task_id")).values(delivered)
        )
        self.insert_occurrence = compiler.compile(
            compiler.insert(occurrences).on_conflict_do_nothing(index_elements=["trigger_id", "key"])
        )
        self.occurrence = compiler.compile(found.where(*this))
        self.of_task = compiler.compile(found.where(columns.task_id == bindparam("task_id")))
        others = found.where(here, columns.key != bindparam("key"), is_active)
        self.active_occurrences = compiler.compile(others.order_by(*oldest))
        had_task = columns.task_id.is_not(None)
        is_recent = or_(columns.ended_at.is_(None), columns.ended_at >= bindparam("since"))
        self.working = compiler.compile(found.where(here, had_task, is_recent).order_by(*oldest))
        is_queued = one_of(columns.state, "queued")
        self.count_queued = compiler.compile(
            select(func.count()).select_from(occurrences).where(here, is_queued)
        )
        one: ColumnElement[int] = literal_column("1")
        first = found.where(here, is_queued).order_by(*oldest).limit(one).offset(zero)
        self.queued = compiler.compile(first)
        due = found.where(columns.next_at <= bindparam("now")).order_by(columns.next_at)
        is_too_late = columns.next_at > bindparam("latest")
        self.realign = compiler.compile(
            update(occurrences).where(is_too_late).values(next_at=bindparam("now"))
        )
        self.open = compiler.compile(due.limit(bindparam("limit")).offset(zero))
        self.next_open = compiler.compile(
            select(func.min(columns.next_at)).where(columns.next_at.is_not(None))
        )
        older = found.where(here, columns.created_at < bindparam("before")).order_by(*newest)
        self.history = compiler.compile(older.limit(bindparam("limit")).offset(zero))
        self.purge = compiler.compile(delete(occurrences).where(columns.ended_at < bindparam("before")))
        is_open = columns.ended_at.is_(None)
        nothing: ColumnElement[float] = literal_column("0.0")
        reserved = case((is_open, func.coalesce(columns.usd_limit, nothing)), else_=nothing)
        sums = (func.sum(columns.tokens), func.sum(columns.cost), func.sum(reserved))
        use = select(func.count(), *sums).select_from(occurrences)
        counted = use.where(here, columns.period == bindparam("period"), ~one_of(columns.state, "skipped"))
        self.use = compiler.compile(counted)

    def _add_repetitions(self, compiler: Compiler) -> None:
        columns = occurrences.c
        here = columns.trigger_id == bindparam("trigger_id")
        found = select_fields(TriggerOccurrence, occurrences)
        zero: ColumnElement[int] = literal_column("0")
        one: ColumnElement[int] = literal_column("1")
        recent = here, columns.period == bindparam("period"), columns.created_at > bindparam("since")
        self.recent = compiler.compile(
            found.where(*recent).order_by(columns.created_at.desc()).limit(one).offset(zero)
        )
        ended = {
            "state": literal_column("'cancelled'"),
            "error": bindparam("why"),
            "ended_at": bindparam("now"),
            "next_at": null(),
        }
        others_queued = here, one_of(columns.state, "queued"), columns.key != bindparam("key")
        self.replace_queued = compiler.compile(update(occurrences).where(*others_queued).values(ended))

    def _compile_update(self, names: tuple[str, ...]) -> str:
        values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names}
        return self._compiler.compile(update(triggers).where(triggers.c.id == bindparam("id")).values(values))

    def _compile_update_seen(self, names: tuple[str, ...]) -> str:
        """An update of a trigger, if its definition, state and approval are those that were seen."""
        values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names}
        is_seen = [triggers.c[name] == bindparam(name) for name in ("id", "hash", "state")]
        none: ColumnElement[str] = literal_column("''")
        is_seen.append(func.coalesce(triggers.c.approval_id, none) == bindparam("approval"))
        return self._compiler.compile(update(triggers).where(*is_seen).values(values))

    def _compile_move(self, names: tuple[str, ...]) -> str:
        """An update of a trigger as it was seen, if it is active. Without columns it changes nothing."""
        values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names}
        values = values or {"state": literal_column("'active'")}
        is_seen = triggers.c.id == bindparam("id"), triggers.c.hash == bindparam("hash")
        next_at = func.coalesce(triggers.c.next_at, literal_column("0.0"))
        is_due = next_at == bindparam("seen")
        moved = update(triggers).where(*is_seen, is_due, one_of(triggers.c.state, "active"))
        return self._compiler.compile(moved.values(values))

    def _compile_change(self, names: tuple[str, ...]) -> str:
        columns = occurrences.c
        values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names}
        this = columns.trigger_id == bindparam("trigger_id"), columns.key == bindparam("key")
        changed = update(occurrences).where(*this, columns.state == bindparam("state"))
        return self._compiler.compile(changed.values(values))
