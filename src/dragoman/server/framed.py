"""A model's answer in one of the hub's own dialects: framed as a run of one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dragoman import events as e
from dragoman.agent import closing
from dragoman.errors import DragomanError
from dragoman.fold import Fold
from dragoman.wire.dialect import Dialect


class Framed:
    """A `Reply` that spells a provider's events for a client of the hub or of the AI SDK."""

    def __init__(self, dialect: Dialect, *, message_id: str) -> None:
        self.headers: Mapping[str, str] = dialect.headers
        self._dialect = dialect
        self._id = message_id
        self._fold = Fold()
        self._begun = False

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """See `Reply`."""
        told = [*self._opening(), *batch]
        if isinstance(batch[-1], e.FinishStep):
            told.append(e.Finish(batch[-1].finish_reason, usage=batch[-1].usage, steps=1))
        self._fold.add(told)
        return self._dialect.encode(told)

    def fail(self, error: DragomanError) -> bytes:
        """See `Reply`: open blocks are closed first."""
        opening = self._opening()
        if opening:
            self._fold.add(opening)
        ending = closing.fail(
            self._fold, text=error.message, code=error.code, transient=error.transient, metadata=None
        )
        return self._dialect.encode([*opening, *ending]) + self._dialect.end()

    def end(self) -> bytes:
        """See `Reply`."""
        return self._dialect.end()

    def _opening(self) -> list[e.Event]:
        if self._begun:
            return []
        self._begun = True
        return [e.Start(self._id), e.StartStep()]
