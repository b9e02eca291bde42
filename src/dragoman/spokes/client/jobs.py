"""The calls that a spoke serves, across all its connections to the hub."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Hashable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from dragoman.errors import DragomanError, NotFound, RateLimited, TooLarge, Unavailable
from dragoman.identity import Identity
from dragoman.large_json import SMALL, encode_large, measure
from dragoman.offload import offload
from dragoman.operations.budget import Budget
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallOutcome, to_failure, to_jsonable
from dragoman.operations.registry import Registry
from dragoman.spokes.protocol import (
    AbortedFrame,
    CallFrame,
    ErrorFrame,
    ProgressFrame,
    PublishFrame,
    ResultFrame,
    SpokeFailure,
)
from dragoman.spokes.send_queue import Outbox

# ---- A cache of results.

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """A cache bounded in entries and bytes; the oldest entries are dropped first."""

    def __init__(self, *, max_count: int, max_size: int) -> None:
        self._values: dict[K, tuple[V, int]] = {}
        self._max_count = max_count
        self._max_size = max_size
        self._free = max_size

    def keys(self) -> Sequence[K]:
        """Return the keys, oldest first."""
        return tuple(self._values)

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        entry = self._values.get(key)
        return None if entry is None else entry[0]

    def put(self, key: K, value: V, *, size: int) -> None:
        """Store a value of `size` bytes, dropping older ones; a value over the bound is not stored."""
        self.discard(key)
        if size > self._max_size:
            return
        self._values[key] = (value, size)
        self._free -= size
        while self._free < 0 or len(self._values) > self._max_count:
            self.discard(next(iter(self._values)))

    def discard(self, key: K) -> None:
        """Remove a key."""
        entry = self._values.pop(key, None)
        if entry is not None:
            self._free += entry[1]


log = logging.getLogger(__name__)

MAX_RESULTS = 2_000  # results by idempotency key
MAX_UNCONFIRMED = 1_000  # replies that the hub has not confirmed
MAX_BYTES = 16_000_000  # of the results, and of the replies
MAX_PARTS = 20  # names of data parts that a call puts into the answer
ORPHAN_SECONDS = 1.0  # that a call runs on although the hub no longer waits for it: it may be repeated
JobKey: TypeAlias = tuple[str, str, str]
FinalFrame: TypeAlias = ResultFrame | ErrorFrame


class SentReply(NamedTuple):
    """A reply. `sequence` numbers replies in the order of sending; it is infinite before that.

    `parts` are the data parts that its call has put into the answer, the newest of each name.
    """

    sequence: float
    reply: FinalFrame
    size: int
    parts: Sequence[PublishFrame] = ()


class Job:
    """A call that is being served. `id` is the hub's; `previous` must end before it starts."""

    def __init__(self, call: CallFrame, key: JobKey, *, previous: Job | None) -> None:
        self.id = call.id
        self.call = call
        self.key = key
        self.previous = previous
        self.budget = Budget()
        self.stopped = False
        self.parts: dict[str, PublishFrame] = {}
        """The data parts that it has put into the answer, the newest of each name."""
        self.task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Abort the job."""
        self.stopped = True
        if self.task is not None:
            self.task.cancel("aborted by the hub")


current_job: ContextVar[Job] = ContextVar("dragoman_spoke_job")
"""The job that the current task serves."""


class JobRunner:
    """Runs the calls of the hub and makes sure that the replies arrive.

    A call whose idempotency key was served lately gets the same result without running again. A reply is
    stored until the hub has confirmed it, and is sent again over the next connection. `limit` is how many
    calls may run at a time.
    """

    def __init__(self, calls: Calls, registry: Registry, *, limit: int) -> None:
        self._calls = calls
        self._registry = registry
        self._limit = limit
        self._jobs: dict[str, Job] = {}
        self._by_key: dict[JobKey, Job] = {}
        self._results: BoundedCache[JobKey, msgspec.Raw] = BoundedCache(
            max_count=MAX_RESULTS, max_size=MAX_BYTES
        )
        self._unconfirmed: BoundedCache[str, SentReply] = BoundedCache(
            max_count=MAX_UNCONFIRMED, max_size=MAX_BYTES
        )
        self._sent_count = 0
        self._outbox: Outbox | None = None
        self._hub_publishes = True
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def sent_count(self) -> int:
        """The number of replies that were sent."""
        return self._sent_count

    def open_call_ids(self) -> tuple[str, ...]:
        """Return the calls that run here or whose reply is not confirmed."""
        return tuple(dict.fromkeys([*self._jobs, *self._unconfirmed.keys()]))

    async def connect(self, outbox: Outbox, waiting: tuple[str, ...], *, hub_publishes: bool) -> None:
        """Use a new connection. `waiting` are the ids of open calls that the hub still waits for.

        `hub_publishes`: it accepts `publish` frames.
        """
        self._outbox, self._hub_publishes = outbox, hub_publishes
        if hub_publishes:
            for job in [job for id, job in self._jobs.items() if id in waiting]:
                await send_parts(outbox, list(job.parts.values()), call_id=job.id)
        orphans = set(self._jobs) - set(waiting)
        asyncio.get_running_loop().call_later(ORPHAN_SECONDS, self._stop_all, orphans)
        for id in list(self._unconfirmed.keys()):
            sent = self._unconfirmed.get(id)
            if sent is not None and id in waiting:
                await send_parts(outbox, sent.parts if hub_publishes else (), call_id=id)
                await outbox.send(sent.reply)
                self._sent_count += 1
                self._unconfirmed.put(id, sent._replace(sequence=self._sent_count), size=sent.size)
            else:
                self._unconfirmed.discard(id)

    def disconnect(self) -> None:
        """Forget the connection, which is closed; running jobs continue."""
        self._outbox = None

    def confirm(self, count: int) -> None:
        """Mark the first `count` replies as received by the hub."""
        for id in list(self._unconfirmed.keys()):
            sent = self._unconfirmed.get(id)
            if sent is not None and sent.sequence <= count:
                self._unconfirmed.discard(id)

    def start(self, call: CallFrame) -> None:
        """Start a call, or let one with the same key that still runs answer it."""
        key = (call.operation, call.owner, call.idempotency_key)
        current = self._by_key.get(key)
        if current is not None and not current.stopped:
            self._jobs.pop(current.id, None)
            current.id = call.id
            self._jobs[call.id] = current
            return
        job = Job(call, key, previous=current)
        self._jobs[call.id] = job
        self._by_key[key] = job
        job.task = asyncio.create_task(self._serve(job))
        self._tasks.add(job.task)
        job.task.add_done_callback(partial(self._task_done, job))

    def abort(self, id: str) -> None:
        """Stop a call; the hub is told when it has stopped."""
        job = self._jobs.get(id)
        if job is not None:
            job.stop()
        elif self._outbox is not None and self._unconfirmed.get(id) is None:
            self._outbox.send_urgent(AbortedFrame(id=id), key=f"aborted {id}")

    async def drain(self, seconds: float) -> None:
        """Wait up to `seconds` for the jobs to end, then stop the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        await self.stop()

    async def stop(self) -> None:
        """Stop all jobs and wait for their end."""
        self.stop_all()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ORPHAN_SECONDS)

    def stop_all(self) -> None:
        """Stop all jobs without waiting."""
        self._stop_all(set(self._jobs))

    def _stop_all(self, ids: set[str]) -> None:
        for id in ids:
            job = self._jobs.get(id)
            if job is not None:
                job.stop()

    async def _serve(self, job: Job) -> None:
        current_job.set(job)
        if job.previous is not None and job.previous.task is not None:
            await asyncio.wait([job.previous.task])
            job.previous = None
        reply = await self._result_or_failure(job)
        self._forget_job(job)
        if isinstance(reply, SpokeFailure):
            await self._send_reply(
                job,
                ErrorFrame(id=job.id, error=reply, cost=job.budget.spent or None),
                size=len(reply.message),
            )
        else:
            size = memoryview(reply).nbytes
            await self._send_reply(
                job, ResultFrame(id=job.id, result=reply, cost=job.budget.spent or None), size=size
            )

    async def _result_or_failure(self, job: Job) -> msgspec.Raw | SpokeFailure:
        result = self._results.get(job.key)
        if result is not None:
            return result
        try:
            outcome = await self._run(job)
        except Exception as error:
            if not isinstance(error, DragomanError):
                log.exception("the call of %s could not be served", job.call.operation)
            return SpokeFailure.from_call_failure(to_failure(error))
        if outcome.error is not None:
            return SpokeFailure.from_call_failure(outcome.error)
        size = measure(outcome.result)
        encode = encode_large if size > SMALL else msgspec.json.encode
        encoded = await offload(size, partial(encode, outcome.result))
        self._results.put(job.key, msgspec.Raw(encoded), size=len(encoded))
        return msgspec.Raw(encoded)

    async def _run(self, job: Job) -> CallOutcome:
        call = job.call
        if len(self._jobs) > self._limit:
            raise RateLimited(f"this spoke already runs {self._limit} calls, its limit", retry_after=1.0)
        deadline = None
        if call.remaining is not None:
            deadline = asyncio.get_running_loop().time() + call.remaining
        context = Context(
            identity=Identity(owner=call.owner),
            parent_id=call.call_id,
            run_id=call.run_id,
            session_id=call.session_id,
            agent=call.agent,
            deadline=deadline,
            idempotency_key=call.idempotency_key,
            budget=job.budget,
        )
        return await self._calls.call(
            self._find_operation(call.operation),
            call.input,
            context=context,
            on_progress=partial(self._send_progress, job),
        )

    def _find_operation(self, id: str) -> Operation:
        """Return the operation to run, without its approval: the hub has asked for that already."""
        operation = self._registry.get(id)
        if operation.id.lower() != id.lower():
            raise NotFound(f"this spoke does not serve {id!r}")
        return replace(operation, approval=False) if operation.approval else operation

    def _send_progress(self, job: Job, value: object) -> None:
        if self._outbox is None:
            return
        try:
            self._outbox.send_progress(ProgressFrame(id=job.id, value=to_jsonable(value)))
        except DragomanError as error:
            log.debug("cannot send the progress of %s to the hub: %s", job.call.operation, error.message)

    def publish(self, job: Job, name: str, *, data: dict[str, Any], in_answer: bool) -> None:
        """Publish an event in the session of a call. A data part is sent again after a reconnection.

        Raises TooLarge, RateLimited, and Unavailable for an event while the hub cannot be reached.
        """
        if not self._hub_publishes:
            log.debug("the hub has an earlier version, which does not accept events of spokes")
            return
        frame = PublishFrame(id=job.id, name=name, data=data, in_answer=in_answer)
        if in_answer:
            if name not in job.parts and len(job.parts) >= MAX_PARTS:
                raise TooLarge(f"a call of a spoke may put {MAX_PARTS} data parts into the answer")
            job.parts[name] = frame
        if self._outbox is not None:
            self._outbox.send_now(frame)
        elif not in_answer:
            raise Unavailable(f"the event {name!r} was not published: the hub cannot be reached now")

    def _task_done(self, job: Job, task: asyncio.Task[None]) -> None:
        """Tell the hub that a job was stopped, perhaps before it started."""
        self._tasks.discard(task)
        self._forget_job(job)
        if task.cancelled():
            if self._outbox is not None:
                self._outbox.send_urgent(AbortedFrame(id=job.id), key=f"aborted {job.id}")
        elif error := task.exception():
            log.error("the reply to a call of %s was not sent", job.call.operation, exc_info=error)

    def _forget_job(self, job: Job) -> None:
        self._jobs.pop(job.id, None)
        if self._by_key.get(job.key) is job:
            del self._by_key[job.key]

    async def _send_reply(self, job: Job, reply: FinalFrame, *, size: int) -> None:
        parts = tuple(job.parts.values())
        self._unconfirmed.put(reply.id, SentReply(math.inf, reply, size, parts), size=size)
        outbox = self._outbox
        if outbox is None:
            return
        try:
            await outbox.send(reply)
        except TooLarge as error:
            reply = ErrorFrame(id=reply.id, error=SpokeFailure.from_call_failure(to_failure(error)))
            await outbox.send(reply)
        self._sent_count += 1
        if outbox is self._outbox:  # otherwise the next connection sends it again
            sent = SentReply(self._sent_count, reply, size, parts)
            self._unconfirmed.put(reply.id, sent, size=size)


async def send_parts(outbox: Outbox, parts: Sequence[PublishFrame], *, call_id: str) -> None:
    """Send the data parts of a call again, over a new connection."""
    for part in parts:
        await outbox.send(replace(part, id=call_id, again=True))
