"""What an AG-UI client has of an answer already, and what it still needs.

AG-UI cannot resume a stream. A client whose connection broke runs its agent again, with what it has received
as part of its history: the encoder then sends only what is missing. A second `START` with a known id goes on
with the message that the client has.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class ReceivedAnswer(msgspec.Struct, frozen=True):
    """The texts by message id, the arguments of tool calls by call id, and the calls whose results it has."""

    texts: Mapping[str, str] = msgspec.field(default_factory=dict)
    arguments: Mapping[str, str] = msgspec.field(default_factory=dict)
    results: frozenset[str] = frozenset()


NOTHING_RECEIVED = ReceivedAnswer()


class MissingText:
    """Compares a text that is sent again with what the client has of it.

    `take` returns what it lacks; None once the two differ.
    """

    def __init__(self, received: str) -> None:
        self._received = received
        self._position = 0

    def take(self, delta: str) -> str | None:
        """Return the rest of the delta that the client does not have; None if it has another text."""
        expected = self._received[self._position : self._position + len(delta)]
        if not delta.startswith(expected):
            return None
        self._position += len(delta)
        return delta[len(expected) :]

    @property
    def so_far(self) -> str:
        """What was compared, and is the same."""
        return self._received[: self._position]
