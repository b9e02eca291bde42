"""Assemble tool calls from fragments, in any order and numbering that vendors use.

The rule numbers in the comments refer to the wire notes on providers, §4.3.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection
from heapq import heappop, heappush
from itertools import count
from typing import Any

import msgspec

from dragoman.errors import ProviderError
from dragoman.events import Event, ToolInputAvailable, ToolInputDelta, ToolInputError, ToolInputStart
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.json_limits import JsonShape
from dragoman.messages import ProviderMetadata
from dragoman.wire.text_block_writer import SurrogateJoiner

UNKNOWN_TOOL_NAME = "unknown"
MAX_ARGUMENTS = 1_000_000
"""Default limit of the characters of one call's arguments: decoding them blocks the event loop."""
MAX_CALLS = 1_000  # of one answer
MAX_NAME = 1_000  # characters; a longer name is not extended by fragments


class ToolCallFragment(msgspec.Struct, frozen=True):
    """A fragment of a tool call.

    `complete`: the fragment has all arguments. `freeform`: the arguments are plain text, not JSON.
    """

    index: int | str | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""
    complete: bool = False
    freeform: bool = False
    metadata: ProviderMetadata | None = None


class CallIds:
    """The ids of the calls of one answer, which are distinct: clients match calls and results by them."""

    def __init__(self, new_id: Callable[[], str], used_ids: Collection[str] = ()) -> None:
        self._new_id = new_id
        self._used_ids = set(used_ids)

    def take(self, id: Any) -> str:
        """Return the id for the next call: its own, or a new one if it has none or one that is used."""
        while not isinstance(id, str) or not id or id in self._used_ids:
            id = self._new_id()
        self._used_ids.add(id)
        return id


class DistinctIds:
    """Makes the ids of the calls in a request distinct, as providers require.

    A repeated id gets a number, the same in each request, so that prompt caches still match.
    """

    def __init__(self) -> None:
        self._used_ids: set[str] = set()
        self._counts: Counter[str] = Counter()

    def take(self, id: str) -> str:
        """Return the id for the next call: its own, or one that was made from it if that is used."""
        distinct = id
        while distinct in self._used_ids:
            self._counts[id] += 1
            distinct = f"{id}-{self._counts[id] + 1}"
        self._used_ids.add(distinct)
        return distinct


class ToolCallAssembler:
    """The tool calls of one answer, in the order in which they began.

    `new_id` creates ids for calls without an id, or with one in `used_ids` or used twice. `max_arguments` is
    the most characters of a call's arguments, `arguments_length` counts those of all calls.
    """

    def __init__(self, *, new_id: Callable[[], str], used_ids: Collection[str] = ()) -> None:
        self._ids = CallIds(new_id, used_ids)
        self.max_arguments = MAX_ARGUMENTS
        self.arguments_length = 0
        self._calls: list[_PendingCall] = []
        self._calls_by_index: dict[int | str, _PendingCall] = {}
        self._calls_by_provider_id: dict[str, _PendingCall] = {}  # the first with each
        self._named_calls: list[_PendingCall] = []  # a heap of those with a name that have not started
        self._calls_with_pending: dict[_PendingCall, None] = {}  # an ordered set of those that have started
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, fragment: ToolCallFragment) -> None:
        """Add one fragment. Raises ProviderError for too many calls, or more than `max_arguments` in one."""
        call = self._find_call(fragment)
        if call.is_repeat(fragment):
            return
        self.arguments_length += len(fragment.arguments)
        call.merge(fragment)
        if call.provider_id:
            self._calls_by_provider_id.setdefault(call.provider_id, call)
        self._expect_start(call)
        if not call.pending:
            return
        if call.started:
            self._calls_with_pending[call] = None
        elif call.name:
            self._start_call(call)  # at once: later fragments must not change the name
        call.check_length()

    def append_arguments(self, index: int | None, arguments: str) -> bool:
        """Append arguments to a started call; False if the fragment needs the full checks of `add`.

        Raises what `add` does.
        """
        call = self._calls_by_index.get(index) if index is not None else None
        if call is None or not call.started or not arguments or arguments[0] in "{ \n":
            return False
        call.append_arguments(arguments)
        self.arguments_length += len(arguments)
        self._calls_with_pending[call] = None
        if call.arguments_length > self.max_arguments:
            call.check_length()
        return True

    def take_events(self) -> list[Event]:
        """Return new events: calls that started, and new arguments."""
        self._emit_arguments()
        events, self._events = self._events, []
        return events

    def flush(self) -> list[Event]:
        """Start the last call if it has a name, and return the new events; call before other content."""
        if self._calls and not self._calls[-1].started:
            self._start_call(self._calls[-1])
        return self.take_events()

    def finish(self, *, truncated: bool) -> list[Event]:
        """Return the remaining events: for each call its input or its error. `truncated`: at the length
        limit.
        """
        for call in self._calls:
            if call.name or call.arguments_length:
                call.ensure_name()
                self._expect_start(call)
                self._start_call(call)
        self._emit_arguments()
        for call in self._calls:
            call.emit_arguments(self._events, last=True)
        return self.take_events() + [
            call.final_event(truncated=truncated) for call in self._calls if call.started
        ]

    def _emit_arguments(self) -> None:
        for call in self._calls_with_pending:
            call.emit_arguments(self._events)
        self._calls_with_pending.clear()

    def _find_call(self, fragment: ToolCallFragment) -> _PendingCall:
        """Find the call that the fragment belongs to, or add a new one (rules 1 to 3, 6)."""
        existing = (
            self._continued_call(fragment)
            if fragment.index is None
            else self._calls_by_index.get(fragment.index)
        )
        if existing is not None and not existing.is_different_call(fragment):
            return existing
        if len(self._calls) >= MAX_CALLS:
            raise too_many_calls_error()
        call = _PendingCall(self.max_arguments, place=len(self._calls))
        if existing is not None and not fragment.name and fragment.arguments:
            call.name = existing.name
        self._calls.append(call)
        if fragment.index is not None:
            self._calls_by_index[fragment.index] = call
        return call

    def _continued_call(self, fragment: ToolCallFragment) -> _PendingCall | None:
        """Find the call that a fragment without an index continues (rule 1)."""
        if not self._calls:
            return None
        if fragment.id:
            same_id = self._calls_by_provider_id.get(fragment.id)
            if same_id is not None:
                return same_id
        last_call = self._calls[-1]
        if not fragment.name or not last_call.name:
            return last_call
        continues = (
            not fragment.id
            and fragment.name == last_call.name
            and last_call.arguments_length
            and not last_call.complete
        )
        return last_call if continues else None

    def _start_call(self, call: _PendingCall) -> None:
        """Start the call and all named calls before it."""
        if call.started:
            return
        self._emit_arguments()
        while self._named_calls and self._named_calls[0].place <= call.place:
            earlier = heappop(self._named_calls)
            earlier.started = True
            earlier.id = self._ids.take(earlier.provider_id)
            self._events.append(ToolInputStart(earlier.id, earlier.name, provider_metadata=earlier.metadata))
            if earlier.pending:
                self._calls_with_pending[earlier] = None

    def _expect_start(self, call: _PendingCall) -> None:
        """Add a call that has got its name to those that can start."""
        if call.name and not call.awaits_start:
            call.awaits_start = True
            heappush(self._named_calls, call)


class _PendingCall:
    """A tool call whose arguments are still arriving; `place` is its number among those of the answer."""

    def __init__(self, max_arguments: int, *, place: int) -> None:
        self.place = place
        self.awaits_start = False  # or has started
        self.id = ""  # the hub's id
        self.provider_id = ""  # the provider's id
        self.name = ""
        self.arguments_length = 0  # characters
        self.started = False
        self.pending: list[str] = []
        self.metadata: ProviderMetadata | None = None
        self._max_arguments = max_arguments
        self._sent: list[str] = []
        self._last_fragment = ""  # that is not only white space
        self._completeness: ArgumentsCompleteness | None = None  # once it had to be found out
        self._lacks_name = False
        self._freeform = False
        self._surrogates = SurrogateJoiner()

    def __lt__(self, other: _PendingCall) -> bool:
        return self.place < other.place

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join((*self._sent, *self.pending))

    @property
    def complete(self) -> bool:
        """Whether the arguments are a complete JSON object."""
        if not self._last_fragment.rstrip().endswith("}"):
            return False
        if self._completeness is None:
            self._completeness = ArgumentsCompleteness()
            self._completeness.add(self.arguments)
        return self._completeness.is_complete()

    def is_different_call(self, fragment: ToolCallFragment) -> bool:
        """Return whether the fragment has this call's index but begins another call."""
        if fragment.id and self.provider_id and fragment.id != self.provider_id and self.name:
            # Rule 2. A new id alone is not enough: some vendors send one with every fragment.
            return bool(fragment.name) or self.complete
        if self.is_repeat(fragment):
            return False
        has_other_name = bool(fragment.name and self.name and fragment.name != self.name)
        if fragment.id and not self.provider_id and has_other_name:
            return True
        return (has_other_name or fragment.arguments.lstrip().startswith("{")) and self.complete  # rule 3

    def is_repeat(self, fragment: ToolCallFragment) -> bool:
        """Return whether the fragment repeats the whole call (rule 6: a complete object is used once).

        Without an id and a name, but with the call's index, so do parsers of vLLM at the end of a stream.
        """
        if len(fragment.arguments) != self.arguments_length or fragment.name not in ("", self.name):
            return False
        is_bare = fragment.index is not None and not fragment.name
        same = fragment.id == self.provider_id if fragment.id else fragment.complete or is_bare
        return same and fragment.arguments == self.arguments and self.complete

    def merge(self, fragment: ToolCallFragment) -> None:
        """Merge the fragment into the call (rules 4 to 6)."""
        self.provider_id = self.provider_id or fragment.id
        if not self.name:
            self.name = fragment.name
        elif fragment.name and fragment.name != self.name and not self.arguments_length and not self.started:
            self.name = lengthen_name(self.name, fragment.name)
        self.metadata = fragment.metadata or self.metadata
        self._freeform = self._freeform or fragment.freeform
        if fragment.arguments:
            self.append_arguments(fragment.arguments)

    def append_arguments(self, arguments: str) -> None:
        """Append to the arguments; what is above the limit is left out."""
        self.arguments_length += len(arguments)
        if self.arguments_length > self._max_arguments:
            arguments = arguments[: self._max_arguments - self.arguments_length]
        if self._completeness is not None:
            self._completeness.add(arguments)
        if not arguments.isspace():
            self._last_fragment = arguments
        self.pending.append(arguments)

    def check_length(self) -> None:
        """Raise ProviderError if there are more characters than allowed."""
        if self.arguments_length > self._max_arguments:
            raise arguments_too_long_error(self.name, self._max_arguments)

    def ensure_name(self) -> None:
        """Set a placeholder name if the call has none."""
        self._lacks_name = not self.name
        self.name = self.name or UNKNOWN_TOOL_NAME

    def emit_arguments(self, events: list[Event], *, last: bool = False) -> None:
        """Emit an event for the pending arguments."""
        text = self._surrogates.join("".join(self.pending), last=last)
        self.pending = []
        if text:
            self._sent.append(text)
            events.append(ToolInputDelta(self.id, text))

    def final_event(self, *, truncated: bool) -> Event:
        """Return the event with the input, or with the reason why the call cannot run (rule 7)."""
        arguments = self.arguments
        value, problem = (arguments, None) if self._freeform else parse_arguments(arguments)
        if problem is None and self._lacks_name:
            problem = "the call has no tool name"
        if problem is None:
            return ToolInputAvailable(self.id, self.name, value, provider_metadata=self.metadata)
        if truncated and value is None:  # not valid JSON
            problem = f"the answer was cut off at its length limit, so {problem}"
        return ToolInputError(
            self.id, self.name, arguments, f"{problem}; nothing was run", provider_metadata=self.metadata
        )


def lengthen_name(name: str, fragment: str) -> str:
    """Return the name of a tool with what follows of it: a name that is long enough stays as it is."""
    return name + fragment if len(name) < MAX_NAME else name


class ArgumentsCompleteness:
    """Whether the arguments of a call, which arrive in fragments, are a complete JSON object.

    They are decoded once, when their brackets are balanced: decoding them at every check would take quadratic
    time. Anything but white space after a complete value makes them invalid.
    """

    def __init__(self) -> None:
        self._fragments: list[str] = []
        self._unread = 0  # the index of the first fragment that is not in the shape
        self._shape = JsonShape(max_values=sys.maxsize, max_depth=sys.maxsize)
        self._balanced_at: int | None = None  # the number of fragments when the brackets were balanced
        self._is_object = False

    def add(self, fragment: str) -> None:
        """Add a fragment."""
        self._fragments.append(fragment)

    def is_complete(self) -> bool:
        """Return whether the fragments so far are a JSON object, perhaps with white space after it."""
        while self._balanced_at is None and self._unread < len(self._fragments):
            fragment = self._fragments[self._unread]
            self._unread += 1
            self._shape.feed(fragment.encode("utf-8", "surrogatepass"))
            if self._shape.depth <= 0 and fragment.rstrip().endswith("}"):
                self._balanced_at = self._unread
                self._is_object = parse_arguments("".join(self._fragments[: self._unread]))[1] is None
        if self._balanced_at is None or not self._is_object:
            return False
        rest = self._fragments[self._balanced_at :]
        self._is_object = all(map(str.isspace, filter(None, rest)))
        self._balanced_at = len(self._fragments)
        return self._is_object


def too_many_calls_error() -> ProviderError:
    """Return the error for an answer with more than MAX_CALLS calls."""
    return ProviderError(
        f"the provider's answer calls more than {MAX_CALLS} tools, the limit for one answer",
        category="api_error",
    )


def arguments_too_long_error(name: str, limit: int) -> ProviderError:
    """Return the error for a call whose arguments have more characters than the limit."""
    return ProviderError(
        f"the arguments of the provider's call of the tool {name or UNKNOWN_TOOL_NAME!r:.100} have more than"
        f" {limit} characters, the limit for one call",
        category="api_error",
        hint="ask the model to write less in one call: in parts, or to a file;"
        " `limits.arguments` sets the limit",
    )


def parse_arguments(arguments: str) -> tuple[Any, str | None]:
    """Decode the arguments and check that they are an object; return the value and the problem, if any.

    Empty or `null` arguments are an empty object (rule 7).
    """
    if arguments.strip() in ("", "null"):
        return {}, None
    try:
        value = decode_json(arguments)
    except DECODE_ERRORS as error:
        return None, f"the arguments are not valid JSON: {error}"
    if isinstance(value, dict):
        return value, None
    return value, f"the arguments must be a JSON object, not {arguments.strip()!r:.80}"


def sequential_ids() -> Callable[[], str]:
    """Return a function that returns `call_1`, `call_2` and so on, for calls without an id.

    They are unique within the answer, and the same every time it is decoded.
    """
    numbers = count(1)
    return lambda: f"call_{next(numbers)}"
