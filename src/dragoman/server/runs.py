"""HTTP handlers of runs: list them, read the outcome of one, stop it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from dragoman.errors import BadRequest, NotFound
from dragoman.http.asgi_exchange import Exchange
from dragoman.identity import Identity
from dragoman.messages import Message, encode
from dragoman.operations.authorization import is_visible, restrict_owner, visible_owner
from dragoman.server.call_trees.run_prompt import PromptReader
from dragoman.server.http.query_parameters import parse_limit
from dragoman.server.sessions.session_lookup import resolve_session_filter
from dragoman.session_ids import session_id_for
from dragoman.store.hosts.queued_runs import QueuedRun, QueueStatus
from dragoman.store.runs import RunRecord, RunStatus
from dragoman.store.sessions.sessions import is_of_others
from dragoman.store.store import Store

if TYPE_CHECKING:
    from dragoman.runs.registry import RunRegistry

Json: TypeAlias = dict[str, Any]
Abort: TypeAlias = Callable[[str], Awaitable[bool]]
RunState: TypeAlias = Literal["queued", "running", "waiting", "done", "failed", "aborted", "interrupted"]
MAX_PAGE = 200
STATES: Mapping[RunStatus, RunState] = {
    "running": "running",
    "finished": "done",
    "failed": "failed",
    "stopped": "aborted",
    "interrupted": "interrupted",
}
QUEUED_STATES: Mapping[QueueStatus, RunState] = {
    "queued": "queued",
    "withdrawn": "aborted",
    "failed": "failed",
}
STATUSES: Mapping[str, RunStatus] = {
    **{state: status for status, state in STATES.items()},
    "waiting": "finished",
}
FILTERS: Mapping[str, str] = {"session": "session_id", "owner": "owner"}
LIST_HINT = "`dragoman runs list` shows the last ones"


class AnswerState(NamedTuple):
    """The last run of an answer, and whether it has ended but the answer waits for a person."""

    run: RunRecord
    is_waiting: bool


class RunReader:
    """Reads the outcomes of runs, for one caller.

    An answer that waited for a person continues in another run. Whoever reads the first run wants to know the
    state of the answer, so that of the last run of its message is returned.
    """

    def __init__(self, store: Store, runs: RunRegistry | None, *, caller: Identity) -> None:
        """`runs` None: for an app beside a hub, which has no active runs."""
        self._store = store
        self._runs = runs
        self._caller = caller

    async def find(self, id: str) -> RunRecord:
        """Return a run that the caller may see. NotFound, the same for another owner's run as for none."""
        row = await self._store.runs.get(id)
        if row is None or not is_visible(row.owner, to=visible_owner(self._caller)):
            raise NotFound(f"there is no run {id!r}", hint=LIST_HINT)
        return row

    async def find_readable(self, id: str) -> RunRecord:
        """Return a run whose session the caller may still read: a grant may have been removed. NotFound."""
        row, caller = await self.find(id), self._caller
        is_shared = row.owner == caller.owner and is_of_others(row.session_id, caller.owner)
        if is_shared and visible_owner(caller) is not None:
            session = await self._store.sessions.get_shared(row.session_id, caller=caller)
            if session is None:
                raise NotFound(f"there is no run {id!r}", hint=LIST_HINT)
        return row

    async def find_queued(self, id: str) -> QueuedRun | None:
        """Return a run that waits, or has ended without beginning, if the caller may see it."""
        queued = await self._store.queued_runs.get(id)
        is_seen = queued is not None and is_visible(queued.owner, to=visible_owner(self._caller))
        return queued if is_seen else None

    async def read(self, id: str) -> Json:
        """Return one run with its answer so far. NotFound."""
        queued = await self.find_queued(id)
        if queued is not None:
            return self._queued_to_json(queued) | {"message": None, "webhook": None}
        row = await self.find_readable(id)
        answer, message = await self._read_current(row)
        body = self._to_json(row, answer)
        body |= {"webhook": await self._read_delivery(row)}
        return body | {"message": None if message is None else msgspec.Raw(encode(message))}

    async def list(self, query: Mapping[str, str]) -> Json:
        """Return matching runs, newest first; `next` is the next page's cursor. BadRequest, NotFound."""
        filters: Mapping[str, str] = {
            column: query[parameter] for parameter, column in FILTERS.items() if parameter in query
        }
        filters = await resolve_session_filter(
            self._store.sessions, restrict_owner(filters, visible_owner(self._caller)), caller=self._caller
        )
        state = query.get("state")
        limit = parse_limit(query.get("limit", "50"), maximum=MAX_PAGE)
        if state is not None:
            if state not in get_args(RunState):
                states = ", ".join(get_args(RunState))
                raise BadRequest(f"there is no state {state!r}; there are {states}", field="state")
            if state == "queued":
                return {"runs": await self._list_queued(filters, limit=limit), "next": None}
            filters = {**filters, "status": STATUSES[state]}
        before = await self.find(query["before"]) if "before" in query else None
        rows = await self._store.runs.list_page(filters, before=before, limit=limit)
        waits = await self._store.waiting_runs.of_runs([row.id for row in rows])
        found = [self._to_json(row, await self._read_state(row, waits=waits)) for row in rows]
        matching = [run for run in found if state in (None, run["state"])]
        return {"runs": matching, "next": rows[-1].id if len(rows) == limit else None}

    async def _read_current(self, row: RunRecord) -> tuple[AnswerState, Message | None]:
        """Return the state of the answer and its message as of one moment: it may continue meanwhile."""
        answer = await self._read_answer(row)
        while True:
            message = await self._read_message(answer.run)
            now = await self._read_answer(row)
            if (now.run.id, now.run.status) == (answer.run.id, answer.run.status):
                return now, message
            answer = now

    async def _read_state(self, row: RunRecord, *, waits: Collection[str]) -> AnswerState:
        """Return the state of the answer; `waits` has the ids of the waiting runs among those of a page."""
        if row.finish_reason == "tool-calls":  # another run may have continued it
            return await self._read_answer(row)
        return AnswerState(row, row.id in waits)

    async def _read_answer(self, row: RunRecord) -> AnswerState:
        last = await self._read_last(row)
        while True:
            waits = await self._store.waiting_runs.of_runs([last.id])
            now = await self._read_last(row)
            if (now.id, now.status) == (last.id, last.status):
                return AnswerState(now, now.id in waits)
            last = now

    async def _read_last(self, row: RunRecord) -> RunRecord:
        """Return the last run that continued the answer after an approval, or the run itself."""
        if row.finish_reason != "tool-calls":
            return await self._store.runs.get(row.id) or row
        return await self._store.runs.get_last(row.session_id, message_id=row.message_id) or row

    async def _list_queued(self, filters: Mapping[str, str], *, limit: int) -> Sequence[Json]:
        """Return queued runs, newest first; those of one session in the order in which they begin."""
        session_id, owner = filters.get("session_id"), filters.get("owner")
        if session_id is None:
            found = await self._store.queued_runs.list_page(owner=owner, limit=limit)
        else:
            found = (await self._store.queued_runs.list(session_id))[:limit]
        visible = visible_owner(self._caller)
        return [self._queued_to_json(each) for each in found if is_visible(each.owner, to=visible)]

    def _queued_to_json(self, queued: QueuedRun) -> Json:
        return {
            "id": queued.id,
            "sessionId": session_id_for(self._caller.owner, queued.session_id),
            "owner": queued.owner,
            "state": QUEUED_STATES[queued.status],
            "messageId": None,
            "agent": None,
            "model": None,
            "background": queued.background,
            "startedAt": None,
            "finishedAt": queued.ended_at,
            "finishReason": None,
            "error": queued.error,
            "steps": 0,
            "usage": None,
            "cost": None,
            "continuedBy": None,
        }

    async def _read_delivery(self, row: RunRecord) -> Json | None:
        """Return the state of the delivery to the run's webhook; None without one."""
        if row.webhook is None:
            return None
        delivery = await self._store.webhooks.get_of_run(row.id)
        if delivery is None:
            return {"status": "pending", "attempts": 0, "error": None}
        return {"status": delivery.status, "attempts": delivery.attempts, "error": delivery.error}

    async def _read_message(self, row: RunRecord) -> Message | None:
        """Return the run's answer; of an active run, with the parts that are not stored yet."""
        if row.status == "running" and self._runs is not None:
            current = await self._runs.current_message(row.session_id)
            if current is not None and current.id == row.message_id:
                return current
        return await self._store.messages.get(row.session_id, row.message_id)

    def _to_json(self, row: RunRecord, answer: AnswerState) -> Json:
        last = answer.run
        return {
            "id": row.id,
            "sessionId": session_id_for(self._caller.owner, row.session_id),
            "owner": row.owner,
            "state": "waiting" if answer.is_waiting else STATES[last.status],
            "messageId": row.message_id,
            "agent": row.agent,
            "model": row.model,
            "background": row.background,
            "startedAt": row.started_at,
            "finishedAt": last.finished_at,
            "finishReason": last.finish_reason,
            "error": last.error,
            "steps": last.steps,
            "usage": msgspec.to_builtins(last.usage),
            "cost": last.cost,
            "continuedBy": None if last.id == row.id else last.id,
        }


class RunHandlers:
    """Handlers of `/api/runs`. A key sees its owner's runs; with the scope "admin" it sees all."""

    def __init__(self, store: Store, *, runs: RunRegistry | None, abort: Abort) -> None:
        """`abort` stops a run and returns whether it was active."""
        self._store = store
        self._runs = runs
        self._abort = abort

    async def list(self, exchange: Exchange) -> None:
        """List runs, newest first; `?session`, `?state` and `?owner` filter, `?limit` and `?before` page."""
        await exchange.respond(200, await self._reader(exchange).list(exchange.query))

    async def get(self, exchange: Exchange) -> None:
        """Return one run with its answer so far."""
        body = await self._reader(exchange).read(exchange.path_params["id"])
        await exchange.respond(200, body)

    async def prompt(self, exchange: Exchange) -> None:
        """Return what the model calls of a run consist of: instructions, tools and messages."""
        row = await self._reader(exchange).find_readable(exchange.path_params["id"])
        factory = None if self._runs is None else self._runs.factory
        reader = PromptReader(self._store, factory, caller=exchange.identity)
        await exchange.respond(200, await reader.read(row))

    async def stop(self, exchange: Exchange) -> None:
        """Stop a run; the response is sent after it is closed and stored."""
        reader = self._reader(exchange)
        queued = await reader.find_queued(exchange.path_params["id"])
        if queued is not None:
            stopped = self._runs is not None and await self._runs.queue.withdraw(queued)
            if stopped or queued.status != "queued":
                await exchange.respond(200, {"stopped": stopped, "runId": queued.id})
                return
        row = await reader.find(exchange.path_params["id"])
        last = await self._store.runs.get_last(row.session_id, message_id=row.message_id) or row
        stopped = last.status == "running" and await self._abort(last.id)
        await exchange.respond(200, {"stopped": stopped, "runId": row.id})

    def _reader(self, exchange: Exchange) -> RunReader:
        return RunReader(self._store, self._runs, caller=exchange.identity)
