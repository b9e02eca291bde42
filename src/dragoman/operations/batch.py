"""A batch of calls as a model writes it: read, and mended once where it is nearly right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.errors import ApprovalNeeded
from dragoman.operations.approval import SuspendedCall
from dragoman.operations.arguments.validation import invalid_input, make_problem
from dragoman.operations.context import Context
from dragoman.operations.outcome import CallFailure, to_failure

MAX_CALLS = 32
MAX_REPORTED_FIELDS = 20  # fields that are looked at: more are wrong anyway
INPUT_ALIASES = ("arguments", "args", "parameters", "params")

ONE_CALL_NOTE = "`calls` must be a list; this was one call, and was taken as a list of it"
TEXT_CALLS_NOTE = "`calls` was JSON in a string; send the list itself"
TEXT_INPUT_NOTE = "`input` was JSON in a string; send the object itself"
MISPLACED_INPUT_NOTE = "the inputs belong into `input`; they were taken from beside it"


class BatchEntry(msgspec.Struct, frozen=True):
    """One call of a batch: what to call, with what, and what was mended; or why it cannot be called."""

    tool: str
    input: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()
    failure: CallFailure | None = None


def parse_batch(input: Mapping[str, Any]) -> tuple[BatchEntry, ...]:
    """The calls in the input of `hub.call`. InvalidInput when there is no list of 1 to 32 of them.

    What is wrong with one entry stands in that entry, and leaves the others alone.
    """
    calls, notes = parse_calls(input)
    if not isinstance(calls, list) or not 1 <= len(calls) <= MAX_CALLS:
        raise invalid_input([make_problem(("calls",), f"a list of 1 to {MAX_CALLS} calls", got=calls)])
    return tuple(parse_entry(call, index, notes=notes) for index, call in enumerate(calls))


def parse_calls(input: Mapping[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """What stands for the list of calls, and what was mended to get it."""
    if "calls" not in input and "tool" in input:
        return [input], (ONE_CALL_NOTE,)
    others = [name for name in islice(input, MAX_REPORTED_FIELDS) if name != "calls"]
    if others or "calls" not in input:
        raise invalid_input(
            [make_problem((name,), "no field of this name", got=input[name]) for name in others]
            or [make_problem(("calls",), "a value (required)")]
        )
    calls, was_text = decode_json_string(input["calls"])
    notes = (TEXT_CALLS_NOTE,) if was_text else ()
    return ([calls], (*notes, ONE_CALL_NOTE)) if isinstance(calls, Mapping) else (calls, notes)


def parse_entry(call: Any, index: int, *, notes: tuple[str, ...]) -> BatchEntry:
    """One entry of the list."""
    tool = call.get("tool") if isinstance(call, Mapping) else None
    if not isinstance(tool, str):
        return failed_entry("", make_problem(("calls", index, "tool"), "the name of an operation", got=call))
    given = {name: value for name, value in call.items() if name != "tool"}
    if "input" in given and len(given) > 1:
        other = next(name for name in given if name != "input")
        return failed_entry(
            tool, make_problem(("calls", index, other), "no field of this name", got=given[other])
        )
    named = next(iter(given), "input")
    if named not in ("input", *INPUT_ALIASES):
        given, named = {"input": given}, ""
    value, was_text = decode_json_string(next(iter(given.values()), None))
    if value is not None and not isinstance(value, Mapping):
        return failed_entry(tool, make_problem(("calls", index, "input"), "an object", got=value))
    mended = ((MISPLACED_INPUT_NOTE,) if named != "input" else ()) + ((TEXT_INPUT_NOTE,) if was_text else ())
    return BatchEntry(tool, value or {}, notes + mended)


def decode_json_string(value: Any) -> tuple[Any, bool]:
    """The object or list in a JSON string, and whether it was one; anything else as it is."""
    if not isinstance(value, str):
        return value, False
    try:
        decoded = msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value, False
    return (decoded, True) if isinstance(decoded, dict | list) else (value, False)


def failed_entry(tool: str, details: dict[str, Any]) -> BatchEntry:
    return BatchEntry(tool, failure=to_failure(invalid_input([details])))


# ---- A bundle: the calls of one batch under way, how far each is, and what they come to together.


class BatchState(msgspec.Struct, frozen=True):
    """How far a batch had come that has to wait: what was said already, and the calls that wait, by place."""

    done: dict[int, Any]
    waiting: dict[int, SuspendedCall]


class RunningBatch:
    """The calls of a batch. How far they are is told as one list, once one of them has something to say."""

    def __init__(self, entries: Sequence[BatchEntry], context: Context, *, state: BatchState) -> None:
        self._reports: list[dict[str, Any]] = [{"tool": entry.tool} for entry in entries]
        self._results = dict(state.done)
        self._suspended = dict(state.waiting)
        self._context = context
        self._reporting = False

    @classmethod
    def start_or_resume(cls, entries: Sequence[BatchEntry], context: Context) -> RunningBatch:
        """A new one, or the one that had to wait, as far as it had come."""
        state = context.state
        kept = BatchState({}, {}) if state is None else msgspec.json.decode(state, type=BatchState)
        return cls(entries, context, state=kept)

    def pending_indexes(self) -> list[int]:
        """The places of the calls that are to be made now: all, or of those that wait the first one."""
        if self._suspended:
            return [min(self._suspended)]
        return [at for at in range(len(self._reports)) if at not in self._results]

    def call_context(self, context: Context, index: int) -> Context:
        """What the call at this place is made with: the word that was given is for one of them only."""
        waiting, grant = self._suspended.pop(index, None), context.grant
        if context.state is None or grant is None:
            return context
        return replace(context, grant=None if waiting is None else grant.for_nested_call(waiting), state=None)

    def report_progress(self, index: int, value: Any) -> None:
        """One of them says how far it is."""
        self._report(index, {"progress": value}, reporting=True)

    def suspend(self, index: int, suspended_call: SuspendedCall) -> None:
        """One of them has to wait for somebody's word."""
        self._suspended[index] = suspended_call

    def finish(self, index: int, result: dict[str, Any]) -> None:
        """One of them has ended."""
        self._results[index] = result
        self._report(index, result, reporting=self._reporting)

    def results(self) -> list[dict[str, Any]]:
        """What all of them said, in order. ApprovalNeeded as long as one waits: for the first of these."""
        if self._suspended:
            first = self._suspended[min(self._suspended)]
            state = msgspec.json.encode(BatchState(self._results, self._suspended))
            raise ApprovalNeeded("a call has to wait for somebody's word", items=first.items, state=state)
        return [self._results[at] for at in range(len(self._reports))]

    def _report(self, index: int, report: dict[str, Any], *, reporting: bool) -> None:
        self._reports[index] = {"tool": self._reports[index]["tool"], **report}
        self._reporting = reporting
        if reporting:
            self._context.progress(list(self._reports))
