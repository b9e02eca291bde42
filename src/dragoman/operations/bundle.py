"""A bundle: the calls of one batch under way, how far each is, and what they come to together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.errors import ApprovalNeeded
from dragoman.operations.approval import Waiting
from dragoman.operations.batch import Entry
from dragoman.operations.context import Context


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
