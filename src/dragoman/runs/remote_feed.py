"""The stream by which another host follows a run: lines of JSON.

The first line is the state of the run, with the message that it began with; each further line is a batch of
events, first what there is so far. The last line is `"end"`; without it the run continues at another host.
Empty lines, and those that begin with a colon, keep the connection open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from dragoman import events as e
from dragoman.errors import WireError
from dragoman.hosts.response_lines import ResponseLines
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.messages import Message, decode, encode
from dragoman.runs.live_tail import Batch
from dragoman.runs.run import HubRun

END_LINE = b'"end"\n'


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """A run under way. `message` is the one that it began with; without a feed behind it, as it is now.

    `is_replayed`: its next host replays it from its beginning instead of continuing it.
    """

    message: Message
    epoch: int = 1
    action_hash: str | None = None
    is_abandoned: bool = False
    is_unattended: bool = False
    is_replayed: bool = False

    def encode(self) -> bytes:
        """Return the state as JSON."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        return msgspec.json.encode(fields | {"message": msgspec.Raw(encode(self.message))})


class FeedEnd(msgspec.Struct, frozen=True):
    """The end of a feed whose run has ended."""


FeedItem: TypeAlias = RunState | Batch | FeedEnd


def current_state(run: HubRun, *, message: Message) -> RunState:
    """Return the state of a run of this host."""
    return RunState(
        message=message,
        epoch=run.row.epoch or 1,
        action_hash=run.action_hash,
        is_abandoned=run.is_abandoned,
        is_unattended=run.is_unattended,
        is_replayed=run.is_replayed,
    )


def decode_state(raw: bytes) -> RunState:
    """Return the state that `RunState.encode` wrote, without what a later version has added. WireError."""
    try:
        fields: dict[str, msgspec.Raw] = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        message = decode(bytes(fields.pop("message")))
        values = {name: fields[name] for name in RunState.__struct_fields__ if name in fields}
        return RunState(
            **{name: msgspec.json.decode(value) for name, value in values.items()}, message=message
        )
    except (KeyError, *DECODE_ERRORS) as error:
        raise WireError(f"the state of a run cannot be read: {error}") from None


class RunFeedEncoder:
    """Encodes the feed of a run: a `StreamEncoder` for `stream_run`."""

    headers: Mapping[str, str] = {"content-type": "application/x-ndjson", "cache-control": "no-store"}

    def __init__(self, state: RunState) -> None:
        self._state: RunState | None = state
        self._has_finished = False

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """Return the batch as a line, if it has events, behind the state if it is the first."""
        line = b"[%b]\n" % b",".join(map(e.encode, batch)) if batch else b""
        self._has_finished |= bool(batch) and isinstance(batch[-1], e.Finish)
        state, self._state = self._state, None
        return line if state is None else state.encode() + b"\n" + line

    def end(self) -> bytes:
        """Return the last line: nothing for a run that continues at another host."""
        return END_LINE if self._has_finished else b""


class RunFeedParser:
    """Parses a feed, however its bytes are cut."""

    def __init__(self) -> None:
        self._lines = ResponseLines()
        self._has_state = False

    def feed(self, data: bytes) -> Iterator[FeedItem]:
        """Yield what the next bytes complete. Raises WireError."""
        for line in self._lines.feed(data):
            if not line.startswith(b":"):
                yield self._parse(line)

    def _parse(self, line: bytes) -> FeedItem:
        try:
            if not self._has_state:
                self._has_state = True
                return decode_state(line)
            if line == END_LINE.strip():
                return FeedEnd()
            return [e.decode(bytes(raw)) for raw in msgspec.json.decode(line, type=list[msgspec.Raw])]
        except (KeyError, TypeError, *DECODE_ERRORS) as error:
            raise WireError(f"a line of a run is not valid: {error}") from None
