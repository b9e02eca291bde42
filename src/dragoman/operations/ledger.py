"""The call ledger: each call is recorded before it runs and again when it ends."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from dragoman.errors import NotFound
from dragoman.large_json import SMALL, encode_large, measure
from dragoman.operations.operation import Effect
from dragoman.operations.outcome import CallFailure, CallStatus


def _mapping_as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_sorted_encoder = msgspec.json.Encoder(enc_hook=_mapping_as_dict, order="sorted")


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a call; `input_hash` is hash_input(input), `started_at` is in unix seconds.

    `policy` is the decision of the policy as JSON text (see `describe_decision`); None if no rule matches.
    """

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
    policy: str | None = None


class CallCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a call.

    `result` if `done`, else `error`; `ended_at` in unix seconds, `cost` in US dollars. `attempts` counts
    the attempts, `notes` list repairs of its input. A `pending` call waits for an approval and has not
    ended.
    """

    status: CallStatus
    ended_at: float | None = None
    result: Any = None
    error: CallFailure | None = None
    cost: float | None = None
    attempts: int | None = None
    notes: tuple[str, ...] = ()


class Ledger(Protocol):
    """Records calls."""

    async def record_start(self, record: CallRecord, *, wait: bool = True) -> None:
        """Record the start. If this raises, the call does not run.

        Without `wait` the record need not be durable on return; it becomes durable before any later one.
        """
        ...

    async def record_resume(self, record: CallRecord) -> None:
        """Record that a call that waited for approval runs now, in the run and step of `record`."""
        ...

    async def record_restart(self, record: CallRecord) -> None:
        """Record that a call that was interrupted by a crash runs again."""
        ...

    async def close_pending(self, call_id: str, completion: CallCompletion) -> None:
        """Record the end of a pending call, and of the pending calls below it.

        Does nothing for a call that is not pending.
        """
        ...

    async def record_end(self, call_id: str, completion: CallCompletion, *, wait: bool = True) -> None:
        """Record the end.

        Idempotent; also accepts a call whose record_start() was cancelled. `wait` as in record_start().
        """
        ...


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A call in the ledger; `ended_at` is None while it runs."""

    record: CallRecord
    status: CallStatus = "running"
    ended_at: float | None = None
    result: Any = None
    error: CallFailure | None = None
    cost: float | None = None
    attempts: int | None = None
    notes: tuple[str, ...] = ()


class MemoryLedger:
    """A ledger in memory for library use and tests; drops the oldest calls past `max_calls`."""

    def __init__(self, *, max_calls: int = 10_000) -> None:
        self._entries: dict[str, LedgerEntry] = {}
        self._max_calls = max_calls

    async def record_start(self, record: CallRecord, *, wait: bool = True) -> None:
        self._entries[record.id] = LedgerEntry(record=record)
        if len(self._entries) > self._max_calls:
            del self._entries[next(iter(self._entries))]

    async def record_resume(self, record: CallRecord) -> None:
        await self.record_start(record)

    async def record_restart(self, record: CallRecord) -> None:
        await self.record_start(record)

    async def record_end(self, call_id: str, completion: CallCompletion, *, wait: bool = True) -> None:
        entry = self._entries.get(call_id)
        if entry is not None:
            self._entries[call_id] = LedgerEntry(record=entry.record, **msgspec.structs.asdict(completion))

    async def close_pending(self, call_id: str, completion: CallCompletion) -> None:
        entry = self._entries.get(call_id)
        if entry is None or entry.status != "pending":
            return
        await self.record_end(call_id, completion)
        for child in self.children(call_id):
            await self.close_pending(child.record.id, completion)

    def get(self, call_id: str) -> LedgerEntry:
        """Return the call of this id. Raises NotFound."""
        entry = self._entries.get(call_id)
        if entry is None:
            raise NotFound(f"There is no call {call_id!r}.")
        return entry

    def children(self, call_id: str | None) -> tuple[LedgerEntry, ...]:
        """Return the calls directly below this one, oldest first; for None the root calls."""
        return tuple(entry for entry in self._entries.values() if entry.record.parent_id == call_id)


def hash_input(input: object, *, size: int | None = None) -> str:
    """Return the SHA-256 of the input's JSON with sorted keys; `size` is the result of `measure` for it.

    Raises TypeError or ValueError if it is not JSON.
    """
    is_small = (measure(input) if size is None else size) <= SMALL
    encoded = _sorted_encoder.encode(input) if is_small else encode_large(input, order="sorted")
    return hashlib.sha256(encoded).hexdigest()


class CallSpan(Protocol):
    """The span of one call."""

    def set_outcome(self, result: Any, error: CallFailure | None) -> None:
        """Set the result, or the failure."""
        ...


class CallTracer(Protocol):
    """Traces calls: `call()` is entered before a call runs and left when it has ended."""

    def call(self, record: CallRecord) -> AbstractContextManager[CallSpan]: ...
