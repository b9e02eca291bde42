"""Trees of calls as JSON lines: nodes for a page that draws them, and whole subtrees for an export.

Both are sent page by page as they are read, so that a tree of any size costs the hub little memory. The last
line is marked as the end; without it the response is incomplete.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

import msgspec

from dragoman.errors import BadRequest, NotFound
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.disconnect import DisconnectWatch
from dragoman.identity import Identity
from dragoman.operations.authorization import RUN_DATA_SCOPES, is_visible, require_scope, visible_owner
from dragoman.operations.call_tree import call_node, elapsed
from dragoman.server.accounts.usage_report import record_to_json
from dragoman.server.call_trees.root_list import (
    LIST_HINT,
    RootLister,
    parse_place,
    path_step,
    shown_status,
)
from dragoman.server.http.query_parameters import parse_limit
from dragoman.server.teams.call_tree_tasks import STATUS, TaskList
from dragoman.session_ids import session_id_for
from dragoman.store.call_trees.nodes import (
    CHUNK,
    MAX_DETAIL,
    NODE_FIELDS,
    PARENTS,
    START,
    NodePage,
    NodePlace,
    RootOf,
)
from dragoman.store.call_trees.roots import WAITING, RootRow
from dragoman.store.runs import RunRecord
from dragoman.store.store import Store
from dragoman.store.teams.task_records import TeamTask

Json: TypeAlias = dict[str, Any]
Lines: TypeAlias = AsyncGenerator[bytes, None]
MAX_NODES = 200_000
DEFAULT_NODES = "100000"
FIRST_PAGE = 1_000  # nodes; small, so that a page can begin to draw soon
PAGE = 5_000
USAGE_PAGE = 500
HEADERS = {"content-type": "application/x-ndjson", "cache-control": "no-store"}
encode = msgspec.json.Encoder().encode


class CallStreamHandlers:
    """Handlers of `/api/calls/{id}/nodes` and `/api/calls/{id}/export`."""

    def __init__(
        self,
        store: Store,
        *,
        flush_usage: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`flush_usage` writes pending usage records, so that the response includes them."""
        self._store = store
        self._flush_usage = flush_usage
        self._clock = clock

    async def nodes(self, exchange: Exchange) -> None:
        """Stream the nodes of a run or below a call, without inputs and results."""
        query = exchange.query
        limit = parse_limit(query.get("limit", DEFAULT_NODES), maximum=MAX_NODES)
        after = parse_place(query["after"]) if "after" in query else START
        since = parse_time(query["since"]) if "since" in query else None
        root = await self._find(exchange)
        reader = SubtreeReader(self._store, root, caller=exchange.identity)
        lines = reader.nodes(after, limit=limit, since=since, now=self._clock())
        await send_lines(exchange, lines, headers=HEADERS)

    async def export(self, exchange: Exchange) -> None:
        """Stream a run or a call with all that is below it, with inputs and results."""
        root = await self._find(exchange)
        reader = SubtreeReader(self._store, root, caller=exchange.identity)
        name = "".join(sign for sign in root.id if sign.isalnum() or sign in "_-")[:80]
        headers = {**HEADERS, "content-disposition": f'attachment; filename="{name}.jsonl"'}
        await send_lines(exchange, reader.export(now=self._clock()), headers=headers)

    async def _find(self, exchange: Exchange) -> RootRow:
        """Return the run or the call. Raises NotFound, also for one of another owner."""
        caller, id = exchange.identity, exchange.path_params["id"]
        require_scope(caller, *RUN_DATA_SCOPES)
        if self._flush_usage is not None and self._store.database.is_up:
            await self._flush_usage()
        root = await self._store.roots.get(id)
        if root is None or not is_visible(root.owner, to=visible_owner(caller)):
            raise NotFound(f"there is no run or call {id!r}", hint=LIST_HINT)
        return root


class SubtreeReader:
    """Reads what is below a run or a call, for one caller."""

    def __init__(self, store: Store, root: RootRow, *, caller: Identity) -> None:
        self._store = store
        self._root = root
        self._caller = caller
        self._of: RootOf = "run" if root.kind == "run" else "call"
        # The owner of a run may see all its calls; below a call there may be calls by another owner's spoke.
        self._owner = None if self._of == "run" else visible_owner(caller)
        visible = visible_owner(caller)
        self._tasks = TaskList(store, may_see=lambda owner: is_visible(owner, to=visible))

    async def nodes(self, after: NodePlace, *, limit: int, since: float | None, now: float) -> Lines:
        """Yield the head, the nodes in batches, and the end with the place where they stopped."""
        yield line({"head": await self._head(now)})
        models = None
        if self._of == "run" and after == START:
            models = await self._model_calls(since)
            yield models.text
            yield batch(encode(await self._task_rows(since)))
        if self._of == "call" and since is None:
            pages = self._branch(limit)
        else:
            pages = self._pages(after, limit=limit, since=since)
        count, place = 0, None
        async with aclosing(pages):
            async for page in pages:
                count += page.count
                place = page.last
                if page.count:
                    yield batch(page.text)
        if self._of == "call":
            yield (await self._model_calls(since)).text
        more = place is not None if self._of == "run" or since is not None else count >= limit
        next = None if place is None else f"{place[0]!r}~{place[1]}"
        yield line({"end": {"calls": count, "next": next, "complete": not more}})

    async def _task_rows(self, since: float | None) -> list[Sequence[Any]]:
        """Return the rows of the tasks that the run gave to teams and of their runs, without their calls."""
        run = await self._store.runs.get(self._root.id)
        tasks = [] if run is None else await self._tasks.list(run)
        changed = [
            (task, await self._tasks.runs(task))
            for task in tasks
            if since is None or task.ended_at is None or task.ended_at >= since
        ]
        waits = await self._store.waiting_runs.of_runs([each.id for _, runs in changed for each in runs])
        rows: list[Sequence[Any]] = []
        for task, runs in changed:
            rows.append(task_row(task))
            rows += [run_row(each, task, waits=each.id in waits) for each in runs]
        return rows

    async def _model_calls(self, since: float | None) -> NodePage:
        page = await self._store.call_nodes.model_calls(
            self._root.id, self._of, owner=self._owner, since=since
        )
        return NodePage(batch(page.text), page.count, None)

    async def _pages(
        self, after: NodePlace, *, limit: int, since: float | None
    ) -> AsyncGenerator[NodePage, None]:
        """Yield calls by their start; the first few soon, so that a page can begin to draw."""
        size = FIRST_PAGE if after == START else PAGE
        last: NodePlace | None = after
        while last is not None and limit > 0:
            page = await self._store.call_nodes.page(
                self._root.id, self._of, after=last, limit=min(size, limit), owner=self._owner, since=since
            )
            yield page
            size, last = PAGE, page.last
            limit -= page.count

    async def _branch(self, limit: int) -> AsyncGenerator[NodePage, None]:
        """Yield a call and its descendants, level by level: without a run no column selects them all."""
        nodes = self._store.call_nodes
        yield await nodes.one(self._root.id)
        level: list[str] = [self._root.id]
        limit -= 1
        while level and limit > 0:
            below: list[str] = []
            for place in range(0, len(level), PARENTS):
                after: str | None = ""
                while after is not None and limit > 0:
                    page = await nodes.children(
                        level[place : place + PARENTS], after=after, limit=min(PAGE, limit), owner=self._owner
                    )
                    yield NodePage(page.text, len(page.ids), None)
                    below += page.ids
                    after = page.last
                    limit -= len(page.ids)
            level = below

    async def export(self, *, now: float) -> Lines:
        """Yield the root, its model calls and its calls, each in a line, and the end."""
        id, owner = self._root.id, self._caller.owner
        head = await self._head(now)
        yield line({"kind": "root", **{name: head[name] for name in ("root", "path")}, "exportedAt": now})
        count = 0
        filters = {"run_id": id} if self._of == "run" else {"call_id": id}
        after: tuple[float, str] | None = None
        while True:
            records = await self._store.usage.list(filters=filters, after=after, limit=USAGE_PAGE)
            if records:
                yield b"".join(line({"kind": "model", **record_to_json(each, owner)}) for each in records)
            if len(records) < USAGE_PAGE:
                break
            after = (records[-1].started_at, records[-1].id)
        ids = await self._store.call_nodes.list_ids(id, self._of, limit=MAX_NODES)
        for place in range(0, len(ids), CHUNK):
            chunk = ids[place : place + CHUNK]
            yield await self._store.call_nodes.export(
                chunk, owner=self._owner, session_id=lambda found: session_id_for(owner, found)
            )
            count += len(chunk)
        yield line({"kind": "end", "calls": count, "complete": len(ids) < MAX_NODES})

    async def _head(self, now: float) -> Json:
        """Return the data that a page shows above the tree."""
        lister = RootLister(self._store, caller=self._caller, now=now)
        root = lister.to_json(self._root)
        path: list[Json] = []
        if self._of == "run":
            run = await self._store.runs.get(self._root.id)
            if run is not None:
                root |= {"messageId": run.message_id, "finishReason": run.finish_reason, "steps": run.steps}
                path += await self._tasks.path(run)
        else:
            above = await self._store.calls.list_ancestors(self._root.id)
            visible = visible_owner(self._caller)
            path = [path_step(call_node(row)) for row in above[:-1] if is_visible(row.owner, to=visible)]
            run_id = above[-1].run_id if above else None
            run_row = await self._store.roots.get(run_id) if run_id else None
            if run_row is not None and is_visible(run_row.owner, to=visible):
                run_json = lister.to_json(run_row)
                path.insert(0, {name: run_json[name] for name in ("id", "kind", "name", "status")})
        return {"root": root, "path": path, "fields": NODE_FIELDS, "now": now}


async def send_lines(exchange: Exchange, lines: Lines, *, headers: Mapping[str, str]) -> None:
    """Send lines as they are made, until the client disconnects."""
    with DisconnectWatch(exchange) as watch:
        async with aclosing(lines):
            first = await anext(lines)  # an error of the first one has its own status
            await exchange.start_response(200, headers)
            await exchange.send_chunk(first)
            async for part in lines:
                await exchange.send_chunk(part)
        watch.response_complete = True
        await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})


def task_row(task: TeamTask) -> Sequence[Any]:
    """Return the node of a task, in the order of `NODE_FIELDS`."""
    duration = elapsed(task.created_at, task.ended_at)
    described = (task.id, task.parent_call, "task", task.team, STATUS[task.state], task.created_at, duration)
    return (*described, None, task.text[:MAX_DETAIL], task.state if task.error else None)


def run_row(run: RunRecord, task: TeamTask, *, waits: bool) -> Sequence[Any]:
    """Return the node of a run of a task, in the order of `NODE_FIELDS`; `waits`: its answer does."""
    name, status = run.agent or run.model or "run", shown_status("run", WAITING if waits else run.status)
    described = (run.id, task.id, "run", name, status, run.started_at)
    return (*described, elapsed(run.started_at, run.finished_at), None, None, run.error, None, None, run.cost)


def batch(rows: bytes) -> bytes:
    return b'{"nodes":' + rows + b"}\n"


def line(value: Json) -> bytes:
    return encode(value) + b"\n"


def parse_time(text: str) -> float:
    """Parse unix seconds. BadRequest."""
    try:
        return float(text)
    except ValueError:
        raise BadRequest(f"since must be unix seconds, not {text[:40]!r}", field="since") from None
