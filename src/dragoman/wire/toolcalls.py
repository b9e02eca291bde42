"""Tool calls: fragments in any of the orders and numberings that vendors use become whole calls.

The algorithm is that of the wire notes on providers, §4.3; the numbers in the code are its rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from dragoman.events import Event, ToolInputAvailable, ToolInputDelta, ToolInputError, ToolInputStart
from dragoman.messages import ProviderMetadata
from dragoman.wire.blocks import Seam

UNNAMED = "unknown"


class Piece(msgspec.Struct, frozen=True):
    """A fragment of a call. `whole`: its arguments are all of them; `raw`: they are not JSON at all."""

    index: int | str | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""
    whole: bool = False
    raw: bool = False
    metadata: ProviderMetadata | None = None


class ToolCalls:
    """The calls of one answer, in the order in which they began.

    `new_id` gives ids for calls that come without one, or with one that is `taken` or used twice.
    """

    def __init__(self, *, new_id: Callable[[], str], taken: Collection[str] = ()) -> None:
        self._new_id = new_id
        self._ids = set(taken)
        self._calls: list[_Call] = []
        self._slots: dict[int | str, _Call] = {}
        self._grown: dict[_Call, None] = {}  # with arguments that have not left yet, in order
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, piece: Piece) -> None:
        """Take one fragment."""
        call = self._place(piece)
        if call.repeats(piece):
            return
        call.fill(piece)
        if not call.unsent:
            return
        self._grown[call] = None
        if call.name and not call.started:
            self._start(call)  # now and not when it is drained: what comes later must not change it

    def extend(self, index: int | None, arguments: str) -> bool:
        """Take a fragment that is nothing but arguments; False when that needs a closer look by `add`."""
        call = self._slots.get(index) if index is not None else None
        if call is None or not call.started or not arguments or arguments[0] in "{ \n":
            return False
        call.append(arguments)
        self._grown[call] = None
        return True

    def drain(self) -> list[Event]:
        """What became sayable since the last time: calls that began, and what their arguments grew by."""
        self._grow()
        events, self._events = self._events, []
        return events

    def settle(self) -> list[Event]:
        """The same, and every call that has a name begins: something else comes after it."""
        if self._calls and not self._calls[-1].started:
            self._start(self._calls[-1])
        return self.drain()

    def finish(self, *, cut: bool) -> list[Event]:
        """The rest: every call with its input, or with what is wrong. `cut`: at the length limit."""
        for call in self._calls:
            if call.name or call.size:
                call.name_anyhow()
                self._start(call)
        self._grow()
        for call in self._calls:
            call.grow(self._events, last=True)
        return self.drain() + [call.outcome(cut=cut) for call in self._calls if call.started]

    def _grow(self) -> None:
        for call in self._grown:
            if call.started:
                call.grow(self._events)
        self._grown = {call: None for call in self._grown if not call.started}

    def _place(self, piece: Piece) -> _Call:
        """The call that the fragment belongs to, a new one if need be (rules 1 to 3, 6)."""
        slot = self._last(piece) if piece.index is None else self._slots.get(piece.index)
        if slot is not None and not slot.is_over(piece):
            return slot
        call = _Call()
        if slot is not None and not piece.name and piece.arguments:
            call.name = slot.name
        self._calls.append(call)
        if piece.index is not None:
            self._slots[piece.index] = call
        return call

    def _last(self, piece: Piece) -> _Call | None:
        """The call that a fragment without an index may go on with (rule 1)."""
        if not self._calls:
            return None
        if piece.id:
            known = next((call for call in self._calls if call.given == piece.id), None)
            if known is not None:
                return known
        last = self._calls[-1]
        if not piece.name or not last.name:
            return last
        goes_on = not piece.id and piece.name == last.name and last.size and not last.complete
        return last if goes_on else None

    def _start(self, call: _Call) -> None:
        """Begin the call, after those before it."""
        if call.started:
            return
        self._grow()
        for other in self._calls[: self._calls.index(call) + 1]:
            if other.name and not other.started:
                other.started = True
                other.id = self._unique(other.given)
                self._events.append(ToolInputStart(other.id, other.name, provider_metadata=other.metadata))

    def _unique(self, given: str) -> str:
        while not given or given in self._ids:
            given = self._new_id()
        self._ids.add(given)
        return given


class _Call:
    """A call under way."""

    def __init__(self) -> None:
        self.id = ""  # the one that the hub uses
        self.given = ""  # the provider's
        self.name = ""
        self.size = 0  # of the arguments
        self.started = False
        self.unsent: list[str] = []
        self.metadata: ProviderMetadata | None = None
        self._sent: list[str] = []
        self._tail = ""  # the last fragment of the arguments that is not white space
        self._nameless = False
        self._raw = False
        self._seam = Seam()

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join((*self._sent, *self.unsent))

    @property
    def complete(self) -> bool:
        """Whether the arguments are a whole JSON object."""
        return self._tail.rstrip().endswith("}") and isinstance(_parse(self.arguments), dict)

    def is_over(self, piece: Piece) -> bool:
        """Whether the fragment, although it has this call's place, begins another one."""
        if piece.id and self.given and piece.id != self.given and self.name:
            return bool(piece.name) or self.complete  # rule 2; a new id alone can be one of many for a call
        if self.repeats(piece):
            return False
        other = bool(piece.name and self.name and piece.name != self.name)
        if piece.id and not self.given and other:
            return True
        return (other or piece.arguments.lstrip().startswith("{")) and self.complete  # rule 3

    def repeats(self, piece: Piece) -> bool:
        """Whether the fragment only says the whole call again (rule 6: objects are taken once)."""
        if len(piece.arguments) != self.size or piece.name not in ("", self.name):
            return False
        same = piece.id == self.given if piece.id else piece.whole
        return same and piece.arguments == self.arguments and self.complete

    def fill(self, piece: Piece) -> None:
        """Take what the fragment says (rules 4 to 6)."""
        self.given = self.given or piece.id
        if not self.name:
            self.name = piece.name
        elif piece.name and piece.name != self.name and not self.size and not self.started:
            self.name += piece.name
        self.metadata = piece.metadata or self.metadata
        self._raw = self._raw or piece.raw
        if piece.arguments:
            self.append(piece.arguments)

    def append(self, arguments: str) -> None:
        """Add to the arguments."""
        self.size += len(arguments)
        if not arguments.isspace():
            self._tail = arguments
        self.unsent.append(arguments)

    def name_anyhow(self) -> None:
        """Have a name, so that the call can be told."""
        self._nameless = not self.name
        self.name = self.name or UNNAMED

    def grow(self, events: list[Event], *, last: bool = False) -> None:
        """Say what the arguments grew by."""
        text = self._seam.join("".join(self.unsent), last=last)
        self.unsent = []
        if text:
            self._sent.append(text)
            events.append(ToolInputDelta(self.id, text))

    def outcome(self, *, cut: bool) -> Event:
        """The call with its input, or with the reason why it cannot be run (rule 7)."""
        arguments = self.arguments
        value = arguments if self._raw else _parse(arguments)
        if isinstance(value, dict) or self._raw:
            if not self._nameless:
                return ToolInputAvailable(self.id, self.name, value, provider_metadata=self.metadata)
            problem = "the call has no tool name"
        elif isinstance(value, _Broken):
            problem = f"the arguments are not valid JSON: {value.reason}"
            if cut:
                problem = f"the answer was cut at its length limit, so {problem}"
        else:
            problem = f"the arguments must be a JSON object, not {arguments.strip()!r:.80}"
        return ToolInputError(
            self.id, self.name, arguments, f"{problem}; nothing was run", provider_metadata=self.metadata
        )


class _Broken(msgspec.Struct, frozen=True):
    """Arguments that are no JSON."""

    reason: str


def _parse(arguments: str) -> Any:
    """The arguments as a value; none at all are an empty object (rule 7)."""
    if arguments.strip() in ("", "null"):
        return {}
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return _Broken(str(error))
