"""Repeated failures: a model that repeats a failing call is warned, then refused."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

from msgspec.structs import replace

from dragoman.errors import CallError
from dragoman.operations.context import Context
from dragoman.operations.ledger import CallRecord
from dragoman.operations.outcome import CallFailure

MAX_REMEMBERED = 10_000
OWNER_FAILURE_SECONDS = 60.0  # seconds that a failure counts for a caller outside a run
FailureKey: TypeAlias = tuple[str, str, str]
IGNORED_CODES = ("rate_limited", "unavailable", "approval_needed", "call_denied", "aborted")


class RepeatedFailure(CallError):
    """The same call failed too often."""

    code = "repeated_failure"


class RepeatedFailureLimiter:
    """Counts how often the same call failed in the same run. `clock` returns unix seconds."""

    def __init__(self, limit: int, *, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._failures: OrderedDict[FailureKey, tuple[int, float, str]] = OrderedDict()

    def check(self, record: CallRecord, context: Context) -> None:
        """Raise RepeatedFailure if the call failed `limit` times."""
        count, _, message = self._lookup(failure_key(record, context))
        if count >= self._limit:
            raise RepeatedFailure(
                f"The call did not run: it failed {count} times, last with: {message}",
                hint="Change the input, use another operation, or tell the user what the problem is.",
            )

    def record_result(
        self, record: CallRecord, context: Context, *, failure: CallFailure | None
    ) -> CallFailure | None:
        """Count how a call ended; return its failure, with a hint if it is repeated."""
        key = failure_key(record, context)
        if failure is None:
            self._failures.pop(key, None)
            return None
        if failure.transient or failure.code in (*IGNORED_CODES, RepeatedFailure.code):
            return failure
        count = self._lookup(key)[0] + 1
        self._failures[key] = (count, self._clock(), failure.message[:300])
        self._failures.move_to_end(key)
        if len(self._failures) > MAX_REMEMBERED:
            self._failures.popitem(last=False)
        if count == 1:
            return failure
        hint = f"This call has now failed {count} times; do not repeat it unchanged."
        return replace(failure, hint=f"{failure.hint}; {hint}" if failure.hint else hint)

    def _lookup(self, key: FailureKey) -> tuple[int, float, str]:
        entry = self._failures.get(key)
        if entry is None or (
            key[0].startswith("owner ") and entry[1] < self._clock() - OWNER_FAILURE_SECONDS
        ):
            return 0, 0.0, ""
        return entry


def failure_key(record: CallRecord, context: Context) -> FailureKey:
    """Return the key of equal calls: the run or caller, the operation, the input."""
    caller = f"owner {context.identity.owner} {context.identity.key_id}"
    return context.run_id or caller, record.operation, record.input_hash
