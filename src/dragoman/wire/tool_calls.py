"""Tool calls: fragments in any of the orders and numberings that vendors use become whole calls.

The algorithm is that of the wire notes on providers, §4.3; the numbers in the code are its rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from dragoman.events import Event, ToolInputAvailable, ToolInputDelta, ToolInputError, ToolInputStart
from dragoman.messages import ProviderMetadata
from dragoman.wire.text_blocks import SurrogateJoiner

UNKNOWN_TOOL_NAME = "unknown"


class ToolCallFragment(msgspec.Struct, frozen=True):
    """A fragment of a call. `complete`: its arguments are all of them; `freeform`: they are not JSON at
    all.
    """

    index: int | str | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""
    complete: bool = False
    freeform: bool = False
    metadata: ProviderMetadata | None = None


class ToolCallAssembler:
    """The calls of one answer, in the order in which they began.

    `new_id` gives ids for calls that come without one, or with one that is `taken` or used twice.
    """

    def __init__(self, *, new_id: Callable[[], str], used_ids: Collection[str] = ()) -> None:
        self._new_id = new_id
        self._used_ids = set(used_ids)
        self._calls: list[_PendingCall] = []
        self._calls_by_index: dict[int | str, _PendingCall] = {}
        self._calls_with_pending: dict[
            _PendingCall, None
        ] = {}  # with arguments that have not left yet, in order
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, fragment: ToolCallFragment) -> None:
        """Take one fragment."""
        call = self._find_call(fragment)
        if call.is_repeat(fragment):
            return
        call.merge(fragment)
        if not call.pending:
            return
        self._calls_with_pending[call] = None
        if call.name and not call.started:
            self._start_call(call)  # now and not when it is drained: what comes later must not change it

    def append_arguments(self, index: int | None, arguments: str) -> bool:
        """Take a fragment that is nothing but arguments; False when that needs a closer look by `add`."""
        call = self._calls_by_index.get(index) if index is not None else None
        if call is None or not call.started or not arguments or arguments[0] in "{ \n":
            return False
        call.append_arguments(arguments)
        self._calls_with_pending[call] = None
        return True

    def take_events(self) -> list[Event]:
        """What became sayable since the last time: calls that began, and what their arguments grew by."""
        self._emit_arguments()
        events, self._events = self._events, []
        return events

    def flush(self) -> list[Event]:
        """The same, and every call that has a name begins: something else comes after it."""
        if self._calls and not self._calls[-1].started:
            self._start_call(self._calls[-1])
        return self.take_events()

    def finish(self, *, truncated: bool) -> list[Event]:
        """The rest: every call with its input, or with what is wrong. `cut`: at the length limit."""
        for call in self._calls:
            if call.name or call.arguments_length:
                call.ensure_name()
                self._start_call(call)
        self._emit_arguments()
        for call in self._calls:
            call.emit_arguments(self._events, last=True)
        return self.take_events() + [
            call.final_event(truncated=truncated) for call in self._calls if call.started
        ]

    def _emit_arguments(self) -> None:
        for call in self._calls_with_pending:
            if call.started:
                call.emit_arguments(self._events)
        self._calls_with_pending = {call: None for call in self._calls_with_pending if not call.started}

    def _find_call(self, fragment: ToolCallFragment) -> _PendingCall:
        """The call that the fragment belongs to, a new one if need be (rules 1 to 3, 6)."""
        slot = (
            self._continued_call(fragment)
            if fragment.index is None
            else self._calls_by_index.get(fragment.index)
        )
        if slot is not None and not slot.is_different_call(fragment):
            return slot
        call = _PendingCall()
        if slot is not None and not fragment.name and fragment.arguments:
            call.name = slot.name
        self._calls.append(call)
        if fragment.index is not None:
            self._calls_by_index[fragment.index] = call
        return call

    def _continued_call(self, fragment: ToolCallFragment) -> _PendingCall | None:
        """The call that a fragment without an index may go on with (rule 1)."""
        if not self._calls:
            return None
        if fragment.id:
            known = next((call for call in self._calls if call.provider_id == fragment.id), None)
            if known is not None:
                return known
        last = self._calls[-1]
        if not fragment.name or not last.name:
            return last
        goes_on = (
            not fragment.id and fragment.name == last.name and last.arguments_length and not last.complete
        )
        return last if goes_on else None

    def _start_call(self, call: _PendingCall) -> None:
        """Begin the call, after those before it."""
        if call.started:
            return
        self._emit_arguments()
        for other in self._calls[: self._calls.index(call) + 1]:
            if other.name and not other.started:
                other.started = True
                other.id = self._unique_id(other.provider_id)
                self._events.append(ToolInputStart(other.id, other.name, provider_metadata=other.metadata))

    def _unique_id(self, call_id: str) -> str:
        while not call_id or call_id in self._used_ids:
            call_id = self._new_id()
        self._used_ids.add(call_id)
        return call_id


class _PendingCall:
    """A call under way."""

    def __init__(self) -> None:
        self.id = ""  # the one that the hub uses
        self.provider_id = ""  # the provider's
        self.name = ""
        self.arguments_length = 0  # of the arguments
        self.started = False
        self.pending: list[str] = []
        self.metadata: ProviderMetadata | None = None
        self._sent: list[str] = []
        self._last_fragment = ""  # the last fragment of the arguments that is not white space
        self._lacks_name = False
        self._freeform = False
        self._surrogates = SurrogateJoiner()

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join((*self._sent, *self.pending))

    @property
    def complete(self) -> bool:
        """Whether the arguments are a whole JSON object."""
        return self._last_fragment.rstrip().endswith("}") and isinstance(
            _parse_arguments(self.arguments), dict
        )

    def is_different_call(self, fragment: ToolCallFragment) -> bool:
        """Whether the fragment, although it has this call's place, begins another one."""
        if fragment.id and self.provider_id and fragment.id != self.provider_id and self.name:
            return (
                bool(fragment.name) or self.complete
            )  # rule 2; a new id alone can be one of many for a call
        if self.is_repeat(fragment):
            return False
        other = bool(fragment.name and self.name and fragment.name != self.name)
        if fragment.id and not self.provider_id and other:
            return True
        return (other or fragment.arguments.lstrip().startswith("{")) and self.complete  # rule 3

    def is_repeat(self, fragment: ToolCallFragment) -> bool:
        """Whether the fragment only says the whole call again (rule 6: objects are taken once)."""
        if len(fragment.arguments) != self.arguments_length or fragment.name not in ("", self.name):
            return False
        same = fragment.id == self.provider_id if fragment.id else fragment.complete
        return same and fragment.arguments == self.arguments and self.complete

    def merge(self, fragment: ToolCallFragment) -> None:
        """Take what the fragment says (rules 4 to 6)."""
        self.provider_id = self.provider_id or fragment.id
        if not self.name:
            self.name = fragment.name
        elif fragment.name and fragment.name != self.name and not self.arguments_length and not self.started:
            self.name += fragment.name
        self.metadata = fragment.metadata or self.metadata
        self._freeform = self._freeform or fragment.freeform
        if fragment.arguments:
            self.append_arguments(fragment.arguments)

    def append_arguments(self, arguments: str) -> None:
        """Add to the arguments."""
        self.arguments_length += len(arguments)
        if not arguments.isspace():
            self._last_fragment = arguments
        self.pending.append(arguments)

    def ensure_name(self) -> None:
        """Have a name, so that the call can be told."""
        self._lacks_name = not self.name
        self.name = self.name or UNKNOWN_TOOL_NAME

    def emit_arguments(self, events: list[Event], *, last: bool = False) -> None:
        """Say what the arguments grew by."""
        text = self._surrogates.join("".join(self.pending), last=last)
        self.pending = []
        if text:
            self._sent.append(text)
            events.append(ToolInputDelta(self.id, text))

    def final_event(self, *, truncated: bool) -> Event:
        """The call with its input, or with the reason why it cannot be run (rule 7)."""
        arguments = self.arguments
        value = arguments if self._freeform else _parse_arguments(arguments)
        if isinstance(value, dict) or self._freeform:
            if not self._lacks_name:
                return ToolInputAvailable(self.id, self.name, value, provider_metadata=self.metadata)
            problem = "the call has no tool name"
        elif isinstance(value, _InvalidJson):
            problem = f"the arguments are not valid JSON: {value.reason}"
            if truncated:
                problem = f"the answer was cut at its length limit, so {problem}"
        else:
            problem = f"the arguments must be a JSON object, not {arguments.strip()!r:.80}"
        return ToolInputError(
            self.id, self.name, arguments, f"{problem}; nothing was run", provider_metadata=self.metadata
        )


class _InvalidJson(msgspec.Struct, frozen=True):
    """Arguments that are no JSON."""

    reason: str


def _parse_arguments(arguments: str) -> Any:
    """The arguments as a value; none at all are an empty object (rule 7)."""
    if arguments.strip() in ("", "null"):
        return {}
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return _InvalidJson(str(error))
