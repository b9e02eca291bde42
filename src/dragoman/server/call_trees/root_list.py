"""The list of root runs and calls, which were started from outside: `/api/calls?roots=1`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, get_args

import msgspec

from dragoman.errors import BadRequest
from dragoman.identity import Identity
from dragoman.operations.authorization import restrict_owner, visible_owner
from dragoman.operations.call_tree import CallTreeNode, elapsed
from dragoman.operations.outcome import CallStatus
from dragoman.server.http.query_parameters import parse_limit
from dragoman.server.http.time_expressions import parse_past, parse_span
from dragoman.server.sessions.session_lookup import resolve_session_filter
from dragoman.session_ids import session_id_for
from dragoman.store.call_trees.roots import (
    KINDS,
    MAX_COUNTED,
    MAX_IDS,
    MODEL_STATUSES,
    RUN_STATUSES,
    RootKind,
    RootPlace,
    RootQuery,
    RootRow,
)
from dragoman.store.store import Store

Json: TypeAlias = dict[str, Any]
MAX_PAGE = 200
MAX_TEXT = 200  # characters
STATUSES: tuple[CallStatus, ...] = get_args(CallStatus)
TEXTS: Mapping[str, str] = {
    "session": "session_id",
    "owner": "owner",
    "operation": "operation",
    "model": "model",
    "door": "door",
    "text": "text",
}
LIST_HINT = "`dragoman calls list` shows the last ones"
FLAGS = {"1": True, "true": True, "0": False, "false": False}


class RootLister:
    """Lists roots for one caller."""

    def __init__(self, store: Store, *, caller: Identity, now: float) -> None:
        self._store = store
        self._caller = caller
        self._now = now

    async def list(self, parameters: Mapping[str, str]) -> Json:
        """Return a page of matching roots, newest first, and with `counts=1` how many there are.

        BadRequest, Forbidden, NotFound.
        """
        query = await self._query(parameters)
        limit = parse_limit(parameters.get("limit", "50"), maximum=MAX_PAGE)
        before = parse_place(parameters["before"]) if "before" in parameters else None
        rows = await self._store.roots.list(query, before=before, limit=limit)
        body: Json = {
            "calls": [self.to_json(row) for row in rows],
            "next": format_place(rows[-1]) if len(rows) == limit else None,
            "now": self._now,
        }
        if parse_flag(parameters, "counts"):
            everything = msgspec.structs.replace(query, statuses=(), kinds=KINDS)
            body["counts"] = summarise_counts(await self._store.roots.count(everything), query)
        return body

    def to_json(self, row: RootRow) -> Json:
        """Return a root as JSON."""
        sums = row.sums
        name = f"{row.provider}/{row.name}" if row.provider and row.name else row.name
        return {
            "id": row.id,
            "kind": row.kind,
            "name": name or row.kind,
            "status": shown_status(row.kind, row.status),
            "owner": row.owner,
            "startedAt": row.started_at,
            "endedAt": row.ended_at,
            "duration": elapsed(row.started_at, row.ended_at),
            "sessionId": session_id_for(self._caller.owner, row.session_id),
            "sessionTitle": row.session_title,
            "agent": row.agent,
            "door": row.door,
            "error": row.error,
            "waitsFor": msgspec.to_builtins(row.waits),
            "effect": row.effect,
            "input": row.input,
            "calls": sums.calls,
            "failed": sums.failed,
            "modelCalls": sums.model_calls,
            "unpriced": sums.model_calls - sums.priced,
            "cost": sums.cost,
            "inputTokens": sums.input_tokens,
            "outputTokens": sums.output_tokens,
            "firstByte": sums.first_byte,
            "complete": sums.is_complete,
        }

    async def _query(self, parameters: Mapping[str, str]) -> RootQuery:
        texts = {field: parameters[name] for name, field in TEXTS.items() if parameters.get(name)}
        if len(texts.get("text", "")) > MAX_TEXT:
            raise BadRequest(f"text has more than {MAX_TEXT} characters", field="text")
        restricted = restrict_owner(texts, visible_owner(self._caller))
        filters = await resolve_session_filter(self._store.sessions, restricted, caller=self._caller)
        since, until = parameters.get("since"), parameters.get("until")
        shortest = parameters.get("min_duration")
        return RootQuery(
            kinds=parse_words(parameters, "kind", allowed=KINDS) or KINDS,
            ids=parse_ids(parameters.get("ids", "")),
            statuses=parse_words(parameters, "status", allowed=STATUSES),
            since=parse_past(since, self._now, field="since") if since else None,
            until=parse_past(until, self._now, field="until") if until else None,
            min_duration=parse_duration(shortest) if shortest else None,
            has_error=parse_flag(parameters, "error"),
            **filters,
        )


def path_step(node: CallTreeNode) -> Json:
    """Return a node as an element of a path."""
    return {"id": node.id, "kind": node.kind, "name": node.name, "status": node.status}


def parse_words(parameters: Mapping[str, str], name: str, *, allowed: Sequence[Any]) -> tuple[Any, ...]:
    """Parse words separated by commas. BadRequest for one that is not allowed."""
    words = tuple(dict.fromkeys(word for word in parameters.get(name, "").split(",") if word))
    for word in words:
        if word not in allowed:
            raise BadRequest(f"there is no {name} {word[:40]!r}; there are {', '.join(allowed)}", field=name)
    return words


def parse_ids(text: str) -> tuple[str, ...]:
    """Parse ids separated by commas. BadRequest for more than MAX_IDS."""
    ids = tuple(dict.fromkeys(id for id in text.split(",") if id))
    if len(ids) > MAX_IDS:
        raise BadRequest(f"ids lists {len(ids)} ids, and the hub takes {MAX_IDS}", field="ids")
    return ids


def parse_flag(parameters: Mapping[str, str], name: str) -> bool:
    """Parse `1` or `0`; False without it. BadRequest."""
    text = parameters.get(name, "0") or "0"
    if text not in FLAGS:
        raise BadRequest(f"{name} must be 1 or 0, not {text[:20]!r}", field=name)
    return FLAGS[text]


def parse_duration(text: str) -> float:
    """Parse a number of seconds, or a span such as `5min`. BadRequest."""
    try:
        seconds = float(text)
    except ValueError:
        return parse_span(text, field="min_duration")
    if not 0 <= seconds < float("inf"):
        raise BadRequest(f"min_duration must be a number of seconds, not {text[:20]!r}", field="min_duration")
    return seconds


def parse_place(text: str) -> RootPlace:
    """Parse a cursor, `next` of the page before. BadRequest."""
    moment, _, id = text.partition("~")
    try:
        return float(moment), id
    except ValueError:
        raise BadRequest(f"{text[:40]!r} is not `next` of a page", field="before") from None


def format_place(row: RootRow) -> str:
    return f"{row.started_at!r}~{row.id}"


def shown_status(kind: RootKind, stored: str) -> CallStatus:
    """Return the status of a root as calls have it."""
    for status in STATUSES:
        if kind == "call" and status == stored:
            return status
        if stored in (RUN_STATUSES if kind == "run" else MODEL_STATUSES).get(status, ()):
            return status
    return "failed"


def summarise_counts(counted: Mapping[str, int], query: RootQuery) -> Json:
    """Return the counts by status of the wanted kinds, and by kind of the wanted statuses."""
    statuses: dict[str, int] = dict.fromkeys(STATUSES, 0)
    kinds: dict[str, int] = dict.fromkeys(KINDS, 0)
    sizes: dict[str, int] = dict.fromkeys(KINDS, 0)
    for name, count in counted.items():
        kind, _, stored = name.partition("/")
        status = shown_status(as_kind(kind), stored)
        sizes[kind] += count
        if kind in query.kinds:
            statuses[status] += count
        if not query.statuses or status in query.statuses:
            kinds[kind] += count
    total = sum(statuses[status] for status in query.statuses or STATUSES)
    capped = any(size >= MAX_COUNTED for size in sizes.values())
    return {"status": statuses, "kind": kinds, "total": total, "capped": capped}


def as_kind(text: str) -> RootKind:
    return next(kind for kind in KINDS if kind == text)
