"""A batch of calls as a model writes it: read, and mended once where it is nearly right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.errors import ApprovalNeeded
from dragoman.operations.approval import Waiting
from dragoman.operations.arguments.schema import invalid, problem
from dragoman.operations.context import Context
from dragoman.operations.outcome import CallFailure, failure_of

LARGEST = 32
NAMED = 20  # fields that are looked at: more are wrong anyway
MISNOMERS = ("arguments", "args", "parameters", "params")

ONE_CALL = "`calls` must be a list; this was one call, and was taken as a list of it"
TEXT_CALLS = "`calls` was JSON in a string; send the list itself"
TEXT_INPUT = "`input` was JSON in a string; send the object itself"
MISNAMED = "the inputs belong into `input`; they were taken from beside it"


class Entry(msgspec.Struct, frozen=True):
    """One call of a batch: what to call, with what, and what was mended; or why it cannot be called."""

    tool: str
    input: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()
    failure: CallFailure | None = None


def read_batch(input: Mapping[str, Any]) -> tuple[Entry, ...]:
    """The calls in the input of `hub.call`. InvalidInput when there is no list of 1 to 32 of them.

    What is wrong with one entry stands in that entry, and leaves the others alone.
    """
    calls, notes = read_calls(input)
    if not isinstance(calls, list) or not 1 <= len(calls) <= LARGEST:
        raise invalid([problem(("calls",), f"a list of 1 to {LARGEST} calls", got=calls)])
    return tuple(read_entry(call, index, notes=notes) for index, call in enumerate(calls))


def read_calls(input: Mapping[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """What stands for the list of calls, and what was mended to get it."""
    if "calls" not in input and "tool" in input:
        return [input], (ONE_CALL,)
    others = [name for name in islice(input, NAMED) if name != "calls"]
    if others or "calls" not in input:
        raise invalid(
            [problem((name,), "no field of this name", got=input[name]) for name in others]
            or [problem(("calls",), "a value (required)")]
        )
    calls, was_text = unquote(input["calls"])
    notes = (TEXT_CALLS,) if was_text else ()
    return ([calls], (*notes, ONE_CALL)) if isinstance(calls, Mapping) else (calls, notes)


def read_entry(call: Any, index: int, *, notes: tuple[str, ...]) -> Entry:
    """One entry of the list."""
    tool = call.get("tool") if isinstance(call, Mapping) else None
    if not isinstance(tool, str):
        return fault("", problem(("calls", index, "tool"), "the name of an operation", got=call))
    given = {name: value for name, value in call.items() if name != "tool"}
    if "input" in given and len(given) > 1:
        other = next(name for name in given if name != "input")
        return fault(tool, problem(("calls", index, other), "no field of this name", got=given[other]))
    named = next(iter(given), "input")
    if named not in ("input", *MISNOMERS):
        given, named = {"input": given}, ""
    value, was_text = unquote(next(iter(given.values()), None))
    if value is not None and not isinstance(value, Mapping):
        return fault(tool, problem(("calls", index, "input"), "an object", got=value))
    mended = ((MISNAMED,) if named != "input" else ()) + ((TEXT_INPUT,) if was_text else ())
    return Entry(tool, value or {}, notes + mended)


def unquote(value: Any) -> tuple[Any, bool]:
    """The object or list in a JSON string, and whether it was one; anything else as it is."""
    if not isinstance(value, str):
        return value, False
    try:
        decoded = msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value, False
    return (decoded, True) if isinstance(decoded, dict | list) else (value, False)


def fault(tool: str, found: dict[str, Any]) -> Entry:
    return Entry(tool, failure=failure_of(invalid([found])))


# ---- A bundle: the calls of one batch under way, how far each is, and what they come to together.


class Kept(msgspec.Struct, frozen=True):
    """How far a batch had come that has to wait: what was said already, and the calls that wait, by place."""

    done: dict[int, Any]
    waiting: dict[int, Waiting]


class Bundle:
    """The calls of a batch. How far they are is told as one list, once one of them has something to say."""

    def __init__(self, entries: Sequence[Entry], context: Context, *, kept: Kept) -> None:
        self._said: list[dict[str, Any]] = [{"tool": entry.tool} for entry in entries]
        self._done = dict(kept.done)
        self._waiting = dict(kept.waiting)
        self._context = context
        self._begun = False

    @classmethod
    def of(cls, entries: Sequence[Entry], context: Context) -> Bundle:
        """A new one, or the one that had to wait, as far as it had come."""
        state = context.state
        kept = Kept({}, {}) if state is None else msgspec.json.decode(state, type=Kept)
        return cls(entries, context, kept=kept)

    def left(self) -> list[int]:
        """The places of the calls that are to be made now: all, or of those that wait the first one."""
        if self._waiting:
            return [min(self._waiting)]
        return [at for at in range(len(self._said)) if at not in self._done]

    def inside(self, context: Context, at: int) -> Context:
        """What the call at this place is made with: the word that was given is for one of them only."""
        waiting, grant = self._waiting.pop(at, None), context.grant
        if context.state is None or grant is None:
            return context
        return replace(context, grant=None if waiting is None else grant.below(waiting), state=None)

    def note(self, at: int, value: Any) -> None:
        """One of them says how far it is."""
        self._tell(at, {"progress": value}, begun=True)

    def wait(self, at: int, waiting: Waiting) -> None:
        """One of them has to wait for somebody's word."""
        self._waiting[at] = waiting

    def done(self, at: int, said: dict[str, Any]) -> None:
        """One of them has ended."""
        self._done[at] = said
        self._tell(at, said, begun=self._begun)

    def answer(self) -> list[dict[str, Any]]:
        """What all of them said, in order. ApprovalNeeded as long as one waits: for the first of these."""
        if self._waiting:
            first = self._waiting[min(self._waiting)]
            state = msgspec.json.encode(Kept(self._done, self._waiting))
            raise ApprovalNeeded("a call has to wait for somebody's word", items=first.items, state=state)
        return [self._done[at] for at in range(len(self._said))]

    def _tell(self, at: int, said: dict[str, Any], *, begun: bool) -> None:
        self._said[at] = {"tool": self._said[at]["tool"], **said}
        self._begun = begun
        if begun:
            self._context.progress(list(self._said))
