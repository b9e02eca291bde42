"""The ledger of calls: each is written down before it runs, and again when it has ended."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from dragoman.errors import NotFound
from dragoman.operations.operation import Effect
from dragoman.operations.outcome import CallFailure, CallStatus


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The intent of a call; `input_hash` is hash_input(input), `started_at` in unix seconds."""

    id: str
    operation: str
    effect: Effect
    owner: str
    input: Any
    input_hash: str
    idempotency_key: str
    started_at: float
    parent_id: str | None = None
    run_id: str | None = None
    session_id: str | None = None
    tool_call_id: str | None = None
    agent: str | None = None
    step: int | None = None


class CallCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended: `result` when `done`, else the failure; `ended_at` in unix seconds, `cost` in USD.

    `attempts` counts how often it was tried, `notes` say what was mended in its input. A `pending` call
    waits for an answer, and has no end yet.
    """

    status: CallStatus
    ended_at: float | None = None
    result: Any = None
    error: CallFailure | None = None
    cost: float | None = None
    attempts: int | None = None
    notes: tuple[str, ...] = ()


class Ledger(Protocol):
    """Where calls are written down."""

    async def record_start(self, record: CallRecord, *, wait: bool = True) -> None:
        """Keep the intent. When this raises, the call does not run.

        Without `wait` it need not be certain on return, only sure to be kept before whatever comes later.
        """
        ...

    async def record_resume(self, record: CallRecord) -> None:
        """Keep that a call which waited for an approval runs now, for the run and step that it is made in."""
        ...

    async def close_pending(self, call_id: str, completion: CallCompletion) -> None:
        """Keep that a call which waits is not waited for any more, nor those below it that do.

        Does nothing for a call that does not wait, or not any more.
        """
        ...

    async def record_end(self, call_id: str, completion: CallCompletion, *, wait: bool = True) -> None:
        """Keep how it ended.

        May be told twice, and of a call whose begin() was cut short: neither is an error. `wait` as above.
        """
        ...


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A call as it is known; `ended_at` is None while it runs."""

    record: CallRecord
    status: CallStatus = "running"
    ended_at: float | None = None
    result: Any = None
    error: CallFailure | None = None
    cost: float | None = None
    attempts: int | None = None
    notes: tuple[str, ...] = ()


class MemoryLedger:
    """A ledger that forgets with the process, and the oldest calls past `keep`: for library use and tests."""

    def __init__(self, *, max_calls: int = 10_000) -> None:
        self._entries: dict[str, LedgerEntry] = {}
        self._max_calls = max_calls

    async def record_start(self, record: CallRecord, *, wait: bool = True) -> None:
        self._entries[record.id] = LedgerEntry(record=record)
        if len(self._entries) > self._max_calls:
            del self._entries[next(iter(self._entries))]

    async def record_resume(self, record: CallRecord) -> None:
        await self.record_start(record)

    async def record_end(self, call_id: str, completion: CallCompletion, *, wait: bool = True) -> None:
        known = self._entries.get(call_id)
        if known is not None:
            self._entries[call_id] = LedgerEntry(record=known.record, **msgspec.structs.asdict(completion))

    async def close_pending(self, call_id: str, completion: CallCompletion) -> None:
        known = self._entries.get(call_id)
        if known is None or known.status != "pending":
            return
        await self.record_end(call_id, completion)
        for each in self.children(call_id):
            await self.close_pending(each.record.id, completion)

    def get(self, call_id: str) -> LedgerEntry:
        """The call of this id, or NotFound."""
        entry = self._entries.get(call_id)
        if entry is None:
            raise NotFound(f"no call {call_id!r}")
        return entry

    def children(self, call_id: str | None) -> tuple[LedgerEntry, ...]:
        """The calls made below this one, oldest first; those without a parent for None."""
        return tuple(entry for entry in self._entries.values() if entry.record.parent_id == call_id)


def hash_input(input: object) -> str:
    """The SHA-256 of the input's JSON with sorted keys. TypeError or ValueError when it is no JSON."""
    return hashlib.sha256(msgspec.json.encode(input, order="sorted")).hexdigest()


# ---- Tracers: whoever wants to see each call from its beginning to its end.


class CallSpan(Protocol):
    """One call that is being watched."""

    def set_outcome(self, result: Any, error: CallFailure | None) -> None:
        """What came of it."""
        ...


class CallTracer(Protocol):
    """Sees calls: what it gives is entered before a call runs, and left when the call is over."""

    def call(self, record: CallRecord) -> AbstractContextManager[CallSpan]: ...
