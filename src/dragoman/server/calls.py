"""HTTP handlers of calls: list, tree, single calls, and stopping active ones."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, get_args

import msgspec

from dragoman.errors import BadRequest, NotFound
from dragoman.http.asgi_exchange import Exchange
from dragoman.identity import LOCAL, Identity
from dragoman.operations.approval import ApprovalRequest
from dragoman.operations.authorization import (
    RUN_DATA_SCOPES,
    is_visible,
    require_scope,
    restrict_owner,
    visible_owner,
)
from dragoman.operations.call_tree import (
    CallRow,
    CallTreeBuilder,
    CallTreeNode,
    ModelCallRow,
    RunRow,
    SourceLookup,
    build_run_tree,
    call_node,
    elapsed,
    failure_json,
    is_running,
)
from dragoman.operations.ledger import LedgerEntry
from dragoman.operations.outcome import CallStatus
from dragoman.server.accounts.usage_report import record_to_json
from dragoman.server.call_trees.root_list import LIST_HINT, RootLister, parse_flag, path_step
from dragoman.server.http.query_parameters import parse_limit
from dragoman.server.sessions.session_lookup import resolve_session_filter
from dragoman.server.teams.call_tree_tasks import TaskTrees
from dragoman.session_ids import session_id_for
from dragoman.store.call_trees.root_sums import RootSums
from dragoman.store.runs import RunRecord
from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord

Json: TypeAlias = dict[str, Any]
Abort: TypeAlias = Callable[[str], Awaitable[bool]]

MAX_NODES = 5_000
MAX_PAGE = 200
FILTERS: Mapping[str, str] = {
    "run": "run_id",
    "session": "session_id",
    "status": "status",
    "operation": "operation",
    "owner": "owner",
}
RUN_STATUS: Mapping[str, CallStatus] = {
    "running": "running",
    "finished": "done",
    "failed": "failed",
    "stopped": "aborted",
    "interrupted": "aborted",
}
MODEL_STATUS: Mapping[str, CallStatus] = {"finished": "done", "aborted": "aborted"}


class CallReader:
    """Reads calls and runs from a store, of one owner or of all."""

    def __init__(
        self,
        store: Store,
        *,
        caller: Identity = LOCAL,
        source: SourceLookup = lambda *_: None,
        max_nodes: int = MAX_NODES,
    ) -> None:
        self._store = store
        self._caller = caller
        self._owner = visible_owner(caller)
        self._source = source
        self._max_nodes = max_nodes
        self._tasks = TaskTrees(store, self._read_task_run, may_see=self._may_see)

    async def tree(self, id: str) -> Json:
        """Return the tree of a run or of a call, with its ancestors. NotFound.

        `leftOut` counts the nodes that are not in the response; `version` changes with the tree.
        """
        run = await self._store.runs.get(id)
        if run is not None and self._may_see(run.owner):
            return await self._run_tree(id, run)
        above = [] if run is not None else await self._store.calls.list_ancestors(id)
        if above and self._may_see(above[-1].owner):
            return await self._call_tree(above)
        return await self._run_tree(id, None)

    async def list(self, query: Mapping[str, str]) -> Json:
        """Return matching calls, newest first; `next` is the next page's cursor. BadRequest, NotFound."""
        filters: Mapping[str, str] = {
            column: query[parameter] for parameter, column in FILTERS.items() if parameter in query
        }
        filters = await resolve_session_filter(
            self._store.sessions, restrict_owner(filters, self._owner), caller=self._caller
        )
        if filters.get("status", "done") not in get_args(CallStatus):
            statuses = ", ".join(get_args(CallStatus))
            raise BadRequest(
                f"there is no status {filters['status']!r}; there are {statuses}", field="status"
            )
        limit = parse_limit(query.get("limit", "50"), maximum=MAX_PAGE)
        found = await self._store.calls.list(filters, before=await self._cursor(query), limit=limit)
        nodes = [
            node_to_json(call_node(line, source=self._source(line.operation, line.owner))) for line in found
        ]
        for node, line in zip(nodes, found, strict=True):
            session_id = session_id_for(self._caller.owner, line.session_id)
            node |= {"owner": line.owner, "runId": line.run_id, "sessionId": session_id}
        return {"calls": nodes, "next": found[-1].id if len(found) == limit else None}

    async def call(self, id: str) -> Json:
        """Return one call with its whole input and result, or one model call. NotFound."""
        entry = await self._store.calls.get(id)
        if entry is None:
            return await self._model_call(id)
        if not self._may_see(entry.record.owner):
            raise call_not_found(id)
        approval = await self._store.inbox.find_of_call(id)
        root = await self._store.roots.get(id)
        is_waiting = approval is not None and entry.status == "pending"
        return {
            **call_to_json(entry),
            "sessionId": session_id_for(self._caller.owner, entry.record.session_id),
            "source": self._source(entry.record.operation, entry.record.owner),
            "approvalId": approval.id if approval is not None and is_waiting else None,
            "approval": None if approval is None else answer_to_json(approval),
            "below": None if root is None else sums_to_json(root.sums),
        }

    async def _model_call(self, id: str) -> Json:
        """Return the record of a model call. NotFound."""
        record = await self._store.usage.get(id)
        if record is None or not self._may_see(record.owner):
            raise call_not_found(id)
        return {"kind": "model", **record_to_json(record, self._caller.owner)}

    async def check(self, id: str) -> None:
        """Raise NotFound unless the caller can see a run or a call of this id."""
        run = await self._store.runs.get(id)
        entry = None if run is not None else await self._store.calls.get(id)
        owner = run.owner if run is not None else entry.record.owner if entry is not None else None
        if owner is None or not self._may_see(owner):
            raise NotFound(f"there is no run or call {id!r}", hint=LIST_HINT)

    async def _run_tree(self, id: str, run: RunRecord | None) -> Json:
        """Return a run's tree; for a deleted session, rebuild it from the calls and usage records."""
        tree, left_out = await self._read_run(id, run)
        if run is None:
            return tree_to_json(tree, left_out=left_out)
        tree = await self._tasks.add(tree, run)
        return tree_to_json(tree, left_out=left_out, path=await self._tasks.tasks.path(run))

    async def _read_run(self, id: str, run: RunRecord | None) -> tuple[CallTreeNode, int]:
        """Return a run's tree without tasks, and how many nodes are left out. NotFound."""
        lines, count = await self._store.calls.list_run_calls(id, limit=self._max_nodes)
        records = await self._store.usage.list(filters={"run_id": id}, limit=self._max_nodes)
        owners = {line.owner for line in lines} | {record.owner for record in records}
        if run is None and not (owners and all(map(self._may_see, owners))):
            raise NotFound(f"there is no run or call {id!r}", hint=LIST_HINT)
        root = deleted_run_root(id, lines=lines, records=records) if run is None else await self._root(run)
        answers = [model_call_node(record) for record in records]
        builder = CallTreeBuilder(lines, model_calls=answers, source=self._source)
        return build_run_tree(root, answers, builder=builder), count - len(lines) + builder.omitted_count

    async def _root(self, run: RunRecord) -> RunRow:
        """Return the root of a run's tree; one that has ended while its answer waits is pending."""
        root = run_root(run)
        waits = await self._store.waiting_runs.of_runs([run.id]) if run.status == "finished" else ()
        return msgspec.structs.replace(root, status="pending") if waits else root

    async def _read_task_run(self, run: RunRecord) -> CallTreeNode:
        return (await self._read_run(run.id, run))[0]

    async def _call_tree(self, ancestors: Sequence[CallRow]) -> Json:
        """Return the tree below one call."""
        *parents, this = ancestors
        found, count = await self._store.calls.list_descendants(this.id, limit=self._max_nodes)
        lines = [line for line in found if self._may_see(line.owner)]
        count -= len(found) - len(lines)  # calls that a spoke of another owner made
        parents = [line for line in parents if self._may_see(line.owner)]
        filters = {"run_id": this.run_id} if this.run_id else {"call_id": this.id}
        records = await self._store.usage.list(filters=filters, limit=self._max_nodes)
        builder = CallTreeBuilder(
            lines, model_calls=[model_call_node(record) for record in records], source=self._source
        )
        tree = builder.subtree(this.id) or call_node(this, source=self._source(this.operation, this.owner))
        path: list[Json] = [path_step(call_node(line)) for line in parents]
        if this.run_id:
            run = await self._store.runs.get(this.run_id)
            above = deleted_run_root(this.run_id, lines=ancestors, records=records)
            root = above if run is None else await self._root(run)
            path.insert(0, {"id": this.run_id, "kind": "run", "name": root.name, "status": root.status})
            if run is not None:
                tree = await self._tasks.add(tree, run)
                path = [*await self._tasks.tasks.path(run), *path]
        return tree_to_json(tree, left_out=count - len(lines) + builder.omitted_count, path=path)

    async def _cursor(self, query: Mapping[str, str]) -> tuple[float, str] | None:
        """Return the position in the list where the page begins."""
        if "before" not in query:
            return None
        entry = await self._store.calls.get(query["before"])
        if entry is None or not self._may_see(entry.record.owner):
            raise NotFound(f"there is no call {query['before']!r}", hint=LIST_HINT)
        return entry.record.started_at, entry.record.id

    def _may_see(self, owner: str) -> bool:
        return is_visible(owner, to=self._owner)


class CallHandlers:
    """Handlers of `/api/calls`. A key sees its owner's calls; with the scope "admin" it sees all."""

    def __init__(
        self,
        store: Store,
        *,
        abort: Abort,
        source: SourceLookup = lambda *_: None,
        flush_usage: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`abort` stops a run or call and returns whether it was active; `source` returns where an operation
        comes from; `flush_usage` writes pending usage records, so that the response includes them.
        """
        self._store = store
        self._abort = abort
        self._source = source
        self._flush_usage = flush_usage
        self._clock = clock

    async def tree(self, exchange: Exchange) -> None:
        """Return the tree of a run or of a call; with `?since=VERSION` only if it has changed."""
        if self._flush_usage is not None and self._store.database.is_up:
            await self._flush_usage()
        found = await self._reader(exchange).tree(exchange.path_params["id"])
        found["now"] = self._clock()
        if exchange.query.get("since") == found["version"]:
            found = {name: found[name] for name in ("version", "running", "now")}
        await exchange.respond(200, found)

    async def list(self, exchange: Exchange) -> None:
        """List matching calls (see `FILTERS`), newest first; `?limit` and `?before` page.

        With `?roots=1` list the root runs and calls, see `RootLister`.
        """
        reader = self._reader(exchange)
        if parse_flag(exchange.query, "roots"):
            if self._flush_usage is not None and self._store.database.is_up:
                await self._flush_usage()
            lister = RootLister(self._store, caller=exchange.identity, now=self._clock())
            await exchange.respond(200, await lister.list(exchange.query))
            return
        await exchange.respond(200, await reader.list(exchange.query))

    async def get(self, exchange: Exchange) -> None:
        """Return one call with its whole input and result."""
        await exchange.respond(200, await self._reader(exchange).call(exchange.path_params["id"]))

    async def abort(self, exchange: Exchange) -> None:
        """Stop a run, or a call with all below it; `aborted` is false when it was not active here."""
        id = exchange.path_params["id"]
        await self._reader(exchange).check(id)
        await exchange.respond(200, {"id": id, "aborted": await self._abort(id)})

    def _reader(self, exchange: Exchange) -> CallReader:
        caller = exchange.identity
        require_scope(caller, *RUN_DATA_SCOPES)
        return CallReader(self._store, caller=caller, source=self._source)


def call_not_found(id: str) -> NotFound:
    return NotFound(f"there is no call {id!r}", hint=LIST_HINT)


def answer_to_json(approval: ApprovalRequest) -> Json:
    """Return the approval of a call as JSON, without its content, which `GET /api/approvals/{id}` has."""
    return {
        "id": approval.id,
        "status": approval.status,
        "createdAt": approval.created_at,
        "expiresAt": approval.expires_at,
        "answeredAt": approval.answered_at,
        "answeredBy": approval.answered_by,
        "reason": approval.reason,
    }


def sums_to_json(sums: RootSums) -> Json:
    """Return the sums over a call and all below it as JSON."""
    return {
        "calls": sums.calls,
        "failed": sums.failed,
        "modelCalls": sums.model_calls,
        "cost": sums.cost,
        "inputTokens": sums.input_tokens,
        "outputTokens": sums.output_tokens,
        "complete": sums.is_complete,
    }


def tree_to_json(tree: CallTreeNode, *, left_out: int, path: Sequence[Json] = ()) -> Json:
    """Return a tree as JSON."""
    running = is_running(tree)
    body = {"tree": tree, "path": list(path), "leftOut": left_out, "running": running}
    version = hashlib.sha256(msgspec.json.encode(body)).hexdigest()[:16]
    return {**body, "tree": node_to_json(tree), "version": version}


def node_to_json(node: CallTreeNode) -> Json:
    found: Json = msgspec.to_builtins(node)
    return found


def run_root(run: RunRecord) -> RunRow:
    return RunRow(
        id=run.id,
        name=run.model or run.agent or "run",
        status=RUN_STATUS[run.status],
        started_at=run.started_at,
        ended_at=run.finished_at,
        agent=run.agent,
        error=run.error,
        cost=run.cost,
        usage=run.usage,
    )


def deleted_run_root(id: str, *, lines: Sequence[CallRow], records: Sequence[UsageRecord]) -> RunRow:
    """Rebuild the root of a run whose session was deleted from its calls and usage records."""
    began = [line.started_at for line in lines] + [record.started_at for record in records]
    ends = [line.ended_at for line in lines if line.ended_at is not None]
    ends += [record.started_at + record.duration for record in records if record.duration is not None]
    names = [record.model_asked or record.model_served for record in records]
    name = next((name for name in names if name), "run")
    return RunRow(id=id, name=name, status="done", started_at=min(began), ended_at=max(ends, default=None))


def model_call_node(record: UsageRecord) -> ModelCallRow:
    model = record.model_served or record.model_asked or "a model"
    return ModelCallRow(
        id=record.id,
        name=f"{record.provider}/{model}" if record.provider else model,
        status=MODEL_STATUS.get(record.status, "failed"),
        started_at=record.started_at,
        step=record.step,
        duration=record.duration,
        first_byte=record.first_byte,
        error=record.error,
        cost=record.cost,
        usage=record.tokens,
        call_id=record.call_id,
    )


def call_to_json(entry: LedgerEntry) -> Json:
    """Return a call as JSON, with the hub's id of its session."""
    record = entry.record
    return {
        "id": record.id,
        "operation": record.operation,
        "status": entry.status,
        "effect": record.effect,
        "owner": record.owner,
        "agent": record.agent,
        "parentId": record.parent_id,
        "runId": record.run_id,
        "sessionId": record.session_id,
        "toolCallId": record.tool_call_id,
        "step": record.step,
        "idempotencyKey": record.idempotency_key,
        "inputHash": record.input_hash,
        "input": record.input,
        "result": entry.result,
        "error": failure_json(entry.error),
        "notes": list(entry.notes),
        "attempts": entry.attempts,
        "policy": None if record.policy is None else msgspec.Raw(record.policy.encode()),
        "cost": entry.cost,
        "startedAt": record.started_at,
        "endedAt": entry.ended_at,
        "duration": elapsed(record.started_at, entry.ended_at),
    }
