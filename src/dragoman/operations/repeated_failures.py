"""Repeats: the same failing call, made again and again, is noticed and then refused."""

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
OWNER_FAILURE_SECONDS = 60.0  # seconds that a failure is held against a caller who is no run
FailureKey: TypeAlias = tuple[str, str, str]
IGNORED_CODES = ("rate_limited", "unavailable", "approval_needed", "call_denied", "aborted")


class RepeatedFailure(CallError):
    """The very same call failed before, too often."""

    code = "repeated_failure"


class RepeatedFailureLimiter:
    """Counts how often a call with the same input failed for the same run. `clock` gives unix seconds."""

    def __init__(self, limit: int, *, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._failures: OrderedDict[FailureKey, tuple[int, float, str]] = OrderedDict()

    def check(self, record: CallRecord, context: Context) -> None:
        """RepeatedFailure when this call has failed `limit` times."""
        count, _, message = self._lookup(failure_key(record, context))
        if count >= self._limit:
            raise RepeatedFailure(
                f"not run: this very call failed {count} times, the last time with: {message}",
                hint="change the input, use another operation, or tell the user what is in the way",
            )

    def record_result(
        self, record: CallRecord, context: Context, *, failure: CallFailure | None
    ) -> CallFailure | None:
        """Count how a call ended; a failure that came before is told as such."""
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
        said = f"this very call has now failed {count} times; do not repeat it unchanged"
        return replace(failure, hint=f"{failure.hint}; {said}" if failure.hint else said)

    def _lookup(self, key: FailureKey) -> tuple[int, float, str]:
        known = self._failures.get(key)
        if known is None or (
            key[0].startswith("owner ") and known[1] < self._clock() - OWNER_FAILURE_SECONDS
        ):
            return 0, 0.0, ""
        return known


def failure_key(record: CallRecord, context: Context) -> FailureKey:
    """What makes a call the same: for whom, what, with which input."""
    caller = f"owner {context.identity.owner} {context.identity.key_id}"
    return context.run_id or caller, record.operation, record.input_hash
