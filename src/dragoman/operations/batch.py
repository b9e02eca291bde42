"""The batch of `hub.call`: parse the model's list of calls, collect their progress and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.errors import ApprovalNeeded
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.operations.approval import SuspendedCall
from dragoman.operations.arguments.validation import invalid_input, make_problem
from dragoman.operations.context import Context
from dragoman.operations.outcome import CallFailure, to_failure

MAX_CALLS = 32
MAX_REPORTED_FIELDS = 20  # unexpected fields that are reported
INPUT_ALIASES = ("arguments", "args", "parameters", "params")

ONE_CALL_NOTE = "`calls` must be a list; the single call was taken as a list of one"
TEXT_CALLS_NOTE = "`calls` was JSON in a string; send the list itself"
TEXT_INPUT_NOTE = "`input` was JSON in a string; send the object itself"
MISPLACED_INPUT_NOTE = "arguments belong in `input`; they were taken from beside it"


class BatchEntry(msgspec.Struct, frozen=True):
    """One call of a batch, with notes on repairs; or the failure that keeps it from being called."""

    tool: str
    input: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()
    failure: CallFailure | None = None


def parse_batch(input: Mapping[str, Any]) -> tuple[BatchEntry, ...]:
    """Parse the input of `hub.call`. Raises InvalidInput unless it is a list of 1 to 32 calls.

    An entry that is invalid carries its failure and leaves the others alone.
    """
    calls, notes = parse_calls(input)
    if not isinstance(calls, list) or not 1 <= len(calls) <= MAX_CALLS:
        raise invalid_input([make_problem(("calls",), f"a list of 1 to {MAX_CALLS} calls", got=calls)])
    return tuple(parse_entry(call, index, notes=notes) for index, call in enumerate(calls))


def parse_calls(input: Mapping[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """Return the list of calls and notes on what was repaired to get it."""
    if "calls" not in input and "tool" in input:
        return [input], (ONE_CALL_NOTE,)
    unexpected = [name for name in islice(input, MAX_REPORTED_FIELDS) if name != "calls"]
    if unexpected or "calls" not in input:
        raise invalid_input(
            [make_problem((name,), "no field of this name", got=input[name]) for name in unexpected]
            or [make_problem(("calls",), "a value (required)")]
        )
    calls, was_text = decode_json_string(input["calls"])
    notes = (TEXT_CALLS_NOTE,) if was_text else ()
    return ([calls], (*notes, ONE_CALL_NOTE)) if isinstance(calls, Mapping) else (calls, notes)


def parse_entry(call: Any, index: int, *, notes: tuple[str, ...]) -> BatchEntry:
    """Parse one entry of the list."""
    tool = call.get("tool") if isinstance(call, Mapping) else None
    if not isinstance(tool, str):
        return failed_entry("", make_problem(("calls", index, "tool"), "the name of an operation", got=call))
    fields = {name: value for name, value in call.items() if name != "tool"}
    if "input" in fields and len(fields) > 1:
        unexpected = next(name for name in fields if name != "input")
        return failed_entry(
            tool, make_problem(("calls", index, unexpected), "no field of this name", got=fields[unexpected])
        )
    field = next(iter(fields), "input")
    if field not in ("input", *INPUT_ALIASES):
        fields, field = {"input": fields}, ""
    value, was_text = decode_json_string(next(iter(fields.values()), None))
    if value is not None and not isinstance(value, Mapping):
        return failed_entry(tool, make_problem(("calls", index, "input"), "an object", got=value))
    repairs = ((MISPLACED_INPUT_NOTE,) if field != "input" else ()) + ((TEXT_INPUT_NOTE,) if was_text else ())
    return BatchEntry(tool, value or {}, notes + repairs)


def decode_json_string(value: Any) -> tuple[Any, bool]:
    """Return the object or list in a JSON string and True; any other value and False."""
    if not isinstance(value, str):
        return value, False
    try:
        decoded = decode_json(value)
    except DECODE_ERRORS:
        return value, False
    return (decoded, True) if isinstance(decoded, dict | list) else (value, False)


def failed_entry(tool: str, details: dict[str, Any]) -> BatchEntry:
    return BatchEntry(tool, failure=to_failure(invalid_input([details])))


# Running a batch


class BatchState(msgspec.Struct, frozen=True):
    """The progress of a suspended batch by index; JSON in the state of its approval."""

    done: dict[int, Any]
    waiting: dict[int, SuspendedCall]


class RunningBatch:
    """The calls of a running batch. Progress is reported as one list, once a call reports any."""

    def __init__(self, entries: Sequence[BatchEntry], context: Context, *, state: BatchState) -> None:
        self._reports: list[dict[str, Any]] = [{"tool": entry.tool} for entry in entries]
        self._results = dict(state.done)
        self._suspended = dict(state.waiting)
        self._context = context
        self._reporting = False

    @classmethod
    def start_or_resume(cls, entries: Sequence[BatchEntry], context: Context) -> RunningBatch:
        """Return a new batch, or the suspended one that `context.state` holds."""
        state = context.state
        batch_state = BatchState({}, {}) if state is None else msgspec.json.decode(state, type=BatchState)
        return cls(entries, context, state=batch_state)

    def pending_indexes(self) -> list[int]:
        """Return the indexes to call now: those without a result, or the first suspended call if any."""
        if self._suspended:
            return [min(self._suspended)]
        return [index for index in range(len(self._reports)) if index not in self._results]

    def call_context(self, context: Context, index: int) -> Context:
        """Return the context of one call. The grant is for the suspended call only."""
        suspended, grant = self._suspended.pop(index, None), context.grant
        if context.state is None or grant is None:
            return context
        return replace(
            context, grant=None if suspended is None else grant.for_nested_call(suspended), state=None
        )

    def report_progress(self, index: int, value: Any) -> None:
        """Report the progress of one call."""
        self._report(index, {"progress": value}, reporting=True)

    def suspend(self, index: int, suspended_call: SuspendedCall) -> None:
        """Record that one call waits for an approval."""
        self._suspended[index] = suspended_call

    def finish(self, index: int, result: dict[str, Any]) -> None:
        """Record the result of one call."""
        self._results[index] = result
        self._report(index, result, reporting=self._reporting)

    def results(self) -> list[dict[str, Any]]:
        """Return all results in order. Raises ApprovalNeeded for the first suspended call."""
        if self._suspended:
            first = self._suspended[min(self._suspended)]
            state = msgspec.json.encode(BatchState(self._results, self._suspended))
            raise ApprovalNeeded("A call waits for approval.", items=first.items, state=state)
        return [self._results[index] for index in range(len(self._reports))]

    def _report(self, index: int, report: dict[str, Any], *, reporting: bool) -> None:
        self._reports[index] = {"tool": self._reports[index]["tool"], **report}
        self._reporting = reporting
        if reporting:
            self._context.progress(list(self._reports))
