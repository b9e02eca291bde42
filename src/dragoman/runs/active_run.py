"""A run under way as others see it: `HubRun` in the host that executes it, `RemoteRun` in other hosts."""

from __future__ import annotations

import hashlib
from typing import Literal, Protocol

import msgspec

from dragoman.messages import Message
from dragoman.runs.deduplication import encode_sorted
from dragoman.runs.live_tail import Follower
from dragoman.store.runs import RunRecord
from dragoman.unfold import START_POSITION, FoldPosition
from dragoman.wire.ui.client_request import ChatAction, ContinueAnswer


class ActiveRun(Protocol):
    """A run that is under way, here or at another host."""

    row: RunRecord

    @property
    def is_abandoned(self) -> bool:
        """True when the last follower has left and the grace period is running."""
        ...

    @property
    def is_unattended(self) -> bool:
        """True while nobody has followed it since it continued after a crash."""
        ...

    @property
    def action_hash(self) -> str | None:
        """`hash_action` of what the run was started for; None when it continued after a crash."""
        ...

    def message(self) -> Message:
        """Return the message so far."""
        ...

    def follow(self, *, replay: bool = False, position: FoldPosition = START_POSITION) -> Follower:
        """Follow the run: from now on, or with `replay` from a position, by default the message's start."""
        ...

    def follow_from_start(self, *, is_retold: bool = True) -> Follower:
        """Follow the run from its own start: without what earlier runs have added to the message.

        `is_retold`: see `FoldPosition`.
        """
        ...

    async def stop_and_wait(self, reason: str) -> None:
        """Stop the run and wait until it is closed and stored."""
        ...

    async def wait_ended(self) -> None:
        """Wait until the run is closed and stored."""
        ...

    async def wait_abandoned(self, seconds: float) -> bool:
        """Wait up to `seconds` for the last follower to leave; return `is_abandoned`."""
        ...


class StartedRun(msgspec.Struct, frozen=True):
    """The run of a request: new, or that of an earlier request that was the same.

    `replay` is what a follower gets of the past: nothing (None), the whole `message`, what this `run` added,
    or what comes after a position.
    """

    run: ActiveRun
    replay: Literal["message", "run"] | FoldPosition | None = None

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.run.row.id

    def follow(self) -> Follower:
        """Follow the run."""
        match self.replay:
            case "run":
                return self.run.follow_from_start()
            case FoldPosition():
                return self.run.follow(replay=True, position=self.replay)
            case _:
                return self.run.follow(replay=self.replay is not None)


def hash_action(action: ChatAction | None) -> str | None:
    """Return a hash of a continuation, by which another host recognizes its repetition; None without one."""
    if not isinstance(action, ContinueAnswer):
        return None if action is None else "other"
    return hashlib.sha256(encode_sorted(action)).hexdigest()
