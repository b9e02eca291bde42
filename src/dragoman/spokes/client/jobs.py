"""Jobs: the calls that a spoke serves, over all its connections to the hub."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Hashable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from dragoman.errors import DragomanError, NotFound, RateLimited, TooLarge
from dragoman.operations.budget import Budget
from dragoman.operations.call import Calls
from dragoman.operations.context import Context
from dragoman.operations.identity import Identity
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import Outcome, failure_of, to_jsonable
from dragoman.operations.registry import Registry
from dragoman.spokes.outbox import Outbox
from dragoman.spokes.protocol import Aborted, Call, Error, Failure, Progress, Result

# ---- Kept results: the newest ones by key, within a number and a size.

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Values by key; the oldest are forgotten first."""

    def __init__(self, *, count: int, size: int) -> None:
        self._values: dict[K, tuple[V, int]] = {}
        self._count = count
        self._size = size
        self._room = size

    def all(self) -> Sequence[K]:
        """Those that are kept, oldest first."""
        return tuple(self._values)

    def get(self, key: K) -> V | None:
        """The value of this key."""
        held = self._values.get(key)
        return None if held is None else held[0]

    def keep(self, key: K, value: V, *, size: int) -> None:
        """Keep a value of so many bytes, in the place of older ones; one that fills it all is not kept."""
        self.drop(key)
        if size > self._size:
            return
        self._values[key] = (value, size)
        self._room -= size
        while self._room < 0 or len(self._values) > self._count:
            self.drop(next(iter(self._values)))

    def drop(self, key: K) -> None:
        """Forget this one."""
        held = self._values.pop(key, None)
        if held is not None:
            self._room += held[1]


log = logging.getLogger(__name__)

REPEATS = 2_000
ANSWERS = 1_000
BYTES = 16_000_000
ORPHAN_SECONDS = 1.0  # how long a call that nobody waits for may be asked for again
Key: TypeAlias = tuple[str, str, str]
Reply: TypeAlias = Result | Error


class Given(NamedTuple):
    """An answer; `number` counts those that were put on their way."""

    number: float
    reply: Reply
    size: int


class Job:
    """A call that is being served; `id` is what the hub calls it, `previous` what has to end first."""

    def __init__(self, call: Call, key: Key, *, previous: Job | None) -> None:
        self.id = call.id
        self.call = call
        self.key = key
        self.previous = previous
        self.spent = Budget()
        self.stopped = False
        self.task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Abort it."""
        self.stopped = True
        if self.task is not None:
            self.task.cancel("the hub wants it no more")


job: ContextVar[Job] = ContextVar("dragoman_spoke_job")
"""The job that runs here."""


class Jobs:
    """Runs what the hub asks for, and sees to it that the answers arrive.

    A call with an idempotency key that was served lately gets the same result, without running again. An
    answer is kept until the hub has surely got it, and sent once more over the next connection.
    """

    def __init__(self, calls: Calls, registry: Registry, *, limit: int) -> None:
        self._calls = calls
        self._registry = registry
        self._limit = limit
        self._jobs: dict[str, Job] = {}
        self._by_key: dict[Key, Job] = {}
        self._results: Kept[Key, msgspec.Raw] = Kept(count=REPEATS, size=BYTES)
        self._answers: Kept[str, Given] = Kept(count=ANSWERS, size=BYTES)
        self._given = 0
        self._outbox: Outbox | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """How many run."""
        return len(self._jobs)

    @property
    def given(self) -> int:
        """How many answers were put on their way until now."""
        return self._given

    def held(self) -> tuple[str, ...]:
        """The calls that are at work here, or whose answer may not have arrived."""
        return tuple(dict.fromkeys([*self._jobs, *self._answers.all()]))

    async def connect(self, outbox: Outbox, waiting: tuple[str, ...]) -> None:
        """There is a connection, over which the hub waits for these of the held calls."""
        self._outbox = outbox
        orphans = set(self._jobs) - set(waiting)
        asyncio.get_running_loop().call_later(ORPHAN_SECONDS, self._stop_all, orphans)
        for id in self._answers.all():
            given = self._answers.get(id)
            if given is not None and id in waiting:
                await outbox.put(given.reply)
                self._given += 1
                self._answers.keep(id, Given(self._given, given.reply, given.size), size=given.size)
            else:
                self._answers.drop(id)

    def disconnect(self) -> None:
        """The connection is gone; what runs runs on."""
        self._outbox = None

    def arrived(self, number: int) -> None:
        """The hub has got the first so many answers."""
        for id in self._answers.all():
            given = self._answers.get(id)
            if given is not None and given.number <= number:
                self._answers.drop(id)

    def begin(self, call: Call) -> None:
        """Serve a call."""
        key = (call.operation, call.owner, call.idempotency_key)
        same = self._by_key.get(key)
        if same is not None and not same.stopped:
            self._jobs.pop(same.id, None)
            same.id = call.id
            self._jobs[call.id] = same
            return
        made = Job(call, key, previous=same)
        self._jobs[call.id] = made
        self._by_key[key] = made
        made.task = asyncio.create_task(self._serve(made))
        self._tasks.add(made.task)
        made.task.add_done_callback(partial(self._over, made))

    def abort(self, id: str) -> None:
        """Stop a call; the hub hears when it has stopped."""
        found = self._jobs.get(id)
        if found is not None:
            found.stop()
        elif self._outbox is not None and self._answers.get(id) is None:
            self._outbox.post(Aborted(id=id), key=f"aborted {id}")

    async def drain(self, seconds: float) -> None:
        """Let what runs end by itself; after so many seconds it is stopped."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        await self.stop()

    async def stop(self) -> None:
        """Stop all, and wait for their end."""
        self.stop_all()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ORPHAN_SECONDS)

    def stop_all(self) -> None:
        """Stop all: nobody waits for them."""
        self._stop_all(set(self._jobs))

    def _stop_all(self, ids: set[str]) -> None:
        for id in ids:
            found = self._jobs.get(id)
            if found is not None:
                found.stop()

    async def _serve(self, made: Job) -> None:
        job.set(made)
        if made.previous is not None and made.previous.task is not None:
            await asyncio.wait([made.previous.task])
            made.previous = None
        reply = await self._reply(made)
        self._end(made)
        if isinstance(reply, Failure):
            await self._send(
                Error(id=made.id, error=reply, cost=made.spent.spent or None), size=len(reply.message)
            )
        else:
            size = memoryview(reply).nbytes
            await self._send(Result(id=made.id, result=reply, cost=made.spent.spent or None), size=size)

    async def _reply(self, made: Job) -> msgspec.Raw | Failure:
        kept = self._results.get(made.key)
        if kept is not None:
            return kept
        try:
            outcome = await self._run(made)
        except DragomanError as error:
            return Failure.of(failure_of(error))
        if outcome.error is not None:
            return Failure.of(outcome.error)
        encoded = msgspec.json.encode(outcome.result)
        self._results.keep(made.key, msgspec.Raw(encoded), size=len(encoded))
        return msgspec.Raw(encoded)

    async def _run(self, made: Job) -> Outcome:
        call = made.call
        if len(self._jobs) > self._limit:
            raise RateLimited(
                f"this spoke takes {self._limit} calls at a time, and has them", retry_after=1.0
            )
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
            budget=made.spent,
        )
        return await self._calls.call(
            self._find(call.operation),
            call.input,
            context=context,
            on_progress=partial(self._progress, made),
        )

    def _find(self, id: str) -> Operation:
        """The operation as it runs here: whether it may, the hub has found out already."""
        found = self._registry.get(id)
        if found.id.lower() != id.lower():
            raise NotFound(f"this spoke does not serve {id!r}")
        return replace(found, approval=False) if found.approval else found

    def _progress(self, made: Job, value: object) -> None:
        if self._outbox is None:
            return
        try:
            self._outbox.progress(Progress(id=made.id, value=to_jsonable(value)))
        except DragomanError as error:
            log.debug("progress of %s is not told to the hub: %s", made.call.operation, error.message)

    def _over(self, made: Job, task: asyncio.Task[None]) -> None:
        """The task has ended; one that was stopped, perhaps before it began, is told of."""
        self._tasks.discard(task)
        self._end(made)
        if task.cancelled():
            if self._outbox is not None:
                self._outbox.post(Aborted(id=made.id), key=f"aborted {made.id}")
        elif error := task.exception():
            log.error("the answer to %s was not sent", made.call.operation, exc_info=error)

    def _end(self, made: Job) -> None:
        self._jobs.pop(made.id, None)
        if self._by_key.get(made.key) is made:
            del self._by_key[made.key]

    async def _send(self, reply: Reply, *, size: int) -> None:
        self._answers.keep(reply.id, Given(math.inf, reply, size), size=size)
        outbox = self._outbox
        if outbox is None:
            return
        try:
            await outbox.put(reply)
        except TooLarge as error:
            reply = Error(id=reply.id, error=Failure.of(failure_of(error)))
            await outbox.put(reply)
        self._given += 1
        if outbox is self._outbox:  # else it is asked for anew
            self._answers.keep(reply.id, Given(self._given, reply, size), size=size)
