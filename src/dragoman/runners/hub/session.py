"""A session that a runner serves, at this host: its connection, and its open turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from dragoman.runners.hub.settings import RunnerLimits
from dragoman.wire.runner.frames import (
    FrameOfTurn,
    FrameRefused,
    FrameToRunner,
    MessageFinalize,
    RunnerAbort,
    RunnerAck,
    RunnerAnswer,
    RunnerPrompt,
    RunnerSteer,
    SessionState,
    TurnComplete,
)

ENDED_TURNS = 16  # ids of turns that are over, so that a late frame is called late
FRAME_SIZE = 500  # characters that a frame counts at least
PAUSED_WINDOWS = 8  # that a turn may send before its question is answered; small frames count as FRAME_SIZE


class RunnerLink(Protocol):
    """The connection of a runner, as its sessions use it."""

    def send(self, frame: FrameToRunner) -> None:
        """Queue a frame."""
        ...


class OpenTurn:
    """A turn that is not over: the frames that wait for its run, and what its runner has to be told.

    `accepted` is the number of the last frame that was received, `stored` that of the last one that is
    stored.
    """

    def __init__(self, turn_id: str, *, seq: int = 0) -> None:
        self.turn_id = turn_id
        self.accepted = seq
        self.stored = seq
        self.prompt: RunnerPrompt | None = None
        self.abort: RunnerAbort | None = None
        self.steer: RunnerSteer | None = None
        self.answers: dict[str, RunnerAnswer] = {}
        self.is_lost = False
        """Whether its runner has connected again without it."""
        self.inbox: deque[tuple[FrameOfTurn, int]] = deque()
        """Frames that the run has not taken yet, with their sizes in characters."""
        self.waiting_size = 0
        self._repeated_from = self._repeated_to = seq
        self._is_numbered = False
        self.is_paused = False
        """Whether it waits for an answer, and no run takes its frames until then."""
        self.last_frame_at = 0.0
        """When the last frame was received, in the time of the event loop."""

    def expect_repeats(self) -> None:
        """Expect a runner that has reconnected to repeat the frames that are not stored now."""
        self._repeated_from, self._repeated_to = self.stored, self.accepted

    def put(self, frame: FrameOfTurn, *, size: int, missing: int = 0) -> bool:
        """Accept the next frame; return whether it is new. Raises FrameRefused for one out of order.

        `size` is the length of its text. Up to `missing` frames before it were unreadable.
        """
        seq = frame.seq
        if seq is None:
            is_counted = frame.turn_id is not None and not self._is_numbered
            self._append(replace(frame, seq=self.accepted + is_counted), size)
            return True
        self._is_numbered = True
        if seq <= self.accepted:
            if self._repeated_from < seq <= self._repeated_to:
                return False  # stored after the welcome named an earlier number
            raise self.refusal(frame, f"frame {seq} of the turn was already received", code="repeated")
        if seq > self.accepted + 1 + missing:
            message = f"frame {seq} came before {self.accepted + 1}; send the frames of a turn in order"
            raise self.refusal(frame, message, code="out_of_order")
        self._append(frame, size)
        return True

    def _append(self, frame: FrameOfTurn, size: int) -> None:
        self.last_frame_at = asyncio.get_running_loop().time()
        self.accepted = frame.seq or 0
        size = max(size, FRAME_SIZE)
        self.inbox.append((frame, size))
        self.waiting_size += size

    def take(self, limit: int) -> Sequence[FrameOfTurn]:
        """Return the next frames, up to about `limit` characters of text."""
        taken: list[FrameOfTurn] = []
        size = 0
        while self.inbox and size < limit:
            frame, frame_size = self.inbox.popleft()
            size += frame_size
            taken.append(frame)
        self.waiting_size -= size
        return taken

    def refusal(self, frame: FrameOfTurn, message: str, *, code: str) -> FrameRefused:
        """Return the refusal of a frame."""
        return FrameRefused(
            message, code=code, session_id=frame.session_id, turn_id=self.turn_id, seq=frame.seq
        )


class RunnerSession:
    """A session that a runner serves.

    `name` is the session's id as the runner knows it, `link` its connection, None while it is away.
    """

    def __init__(self, session_id: str, name: str, *, settings: RunnerLimits) -> None:
        self.session_id = session_id
        self.name = name
        self.link: RunnerLink | None = None
        self.key_id: str | None = None
        self.join = 0
        """The number of the request of its connection to serve it."""
        self.turn: OpenTurn | None = None
        self.on_turn_over: Callable[[str], None] = lambda _: None
        """Called with the session's id when its runner ends a turn that waits for an answer."""
        self.missing = 0
        """Unreadable frames since the last readable one; each may have had a number of this session."""
        self.away_since = asyncio.get_running_loop().time()
        self._settings = settings
        self._ended: deque[str] = deque(maxlen=ENDED_TURNS)
        self._changed = asyncio.Event()
        self._space = asyncio.Event()
        self._space.set()

    def state(self) -> SessionState:
        """Return the state that the runner gets in its welcome."""
        turn = self.turn
        if turn is None:
            return SessionState(session_id=self.name)
        turn.expect_repeats()
        return SessionState(session_id=self.name, turn_id=turn.turn_id, seq=turn.stored)

    # The runner.

    def attach(self, link: RunnerLink, name: str, *, key_id: str | None) -> None:
        """Use a connection. Its welcome is sent before `repeat_requests` is called."""
        self.link, self.name, self.key_id, self.missing = link, name, key_id, 0
        self._changed.set()

    def repeat_requests(self) -> None:
        """Send again what a runner may not have received: a prompt without frames, answers, an abort."""
        turn = self.turn
        if turn is None:
            return
        if turn.prompt is not None and turn.accepted == 0:
            self._send(replace(turn.prompt, session_id=self.name))
        for answer in turn.answers.values():
            self._send(replace(answer, session_id=self.name))
        for request in (turn.steer, turn.abort):
            if request is not None:
                self._send(replace(request, session_id=self.name))

    def detach(self, link: RunnerLink) -> None:
        """Forget a connection that is gone."""
        if self.link is link:
            self.link = None
            self.away_since = asyncio.get_running_loop().time()
            self._changed.set()

    def drop_turn(self) -> None:
        """Note that the runner no longer works at the open turn."""
        if self.turn is not None:
            self.turn.is_lost = True
            self._changed.set()
            self._note_over(self.turn)

    async def receive(self, frame: FrameOfTurn, *, size: int) -> None:
        """Accept a frame of the runner; wait while the run is too far behind. Raises FrameRefused.

        A turn that waits for an answer has no run that takes its frames. It has a larger window than runners
        are told, because waiting here would hold up the other sessions of the connection, too.
        """
        turn = self.turn
        if turn is None or (frame.turn_id is not None and frame.turn_id != turn.turn_id):
            self._refuse_late(frame)
            return
        if isinstance(frame, TurnComplete) and frame.turn_id is None and not turn.accepted:
            return  # it ends the turn before: nothing of this one has been received
        if turn.put(frame, size=size, missing=self.missing):
            self._changed.set()
            if isinstance(frame, MessageFinalize | TurnComplete):
                self._note_over(turn)
        self.missing = 0
        while turn is self.turn and turn.waiting_size > self._window(turn):
            self._space.clear()
            await self._space.wait()

    def _note_over(self, turn: OpenTurn) -> None:
        if turn.is_paused:
            self.on_turn_over(self.session_id)

    def _window(self, turn: OpenTurn) -> int:
        return self._settings.window * (PAUSED_WINDOWS if turn.is_paused else 1)

    def _refuse_late(self, frame: FrameOfTurn) -> None:
        if frame.turn_id is None or isinstance(frame, TurnComplete):
            return  # a status outside of a turn, or the end of one that is forgotten
        place = {"session_id": frame.session_id, "turn_id": frame.turn_id, "seq": frame.seq}
        if frame.turn_id in self._ended:
            raise FrameRefused(f"turn {frame.turn_id!r} is over", code="late", **place)  # type: ignore[arg-type] # as named
        raise FrameRefused(f"there is no turn {frame.turn_id!r}", code="no_turn", **place)  # type: ignore[arg-type] # as named

    # The run.

    def open_turn(self, turn_id: str, *, seq: int = 0) -> OpenTurn:
        """Return the open turn of this id, created if there is none; another open turn is aborted."""
        if self.turn is not None and self.turn.turn_id != turn_id:
            self.abort("another message was sent")
            self.close_turn()
        if self.turn is None:
            self.turn = OpenTurn(turn_id, seq=seq)
        self.turn.is_paused = False
        return self.turn

    def pause_turn(self) -> None:
        """Mark the open turn as waiting for an answer; it has no run until then."""
        if self.turn is not None:
            self.turn.is_paused = True
        self._space.set()

    def close_turn(self) -> None:
        """End the open turn: later frames of it are late."""
        if self.turn is not None:
            self._ended.append(self.turn.turn_id)
            self.turn = None
        self._space.set()

    def forget_turn(self) -> None:
        """Forget the open turn without ending it: it is at another host, or was there meanwhile."""
        self.turn = None
        self._space.set()

    def prompt(self, prompt: RunnerPrompt) -> None:
        """Send the prompt of the open turn, now and whenever a runner connects before it has answered."""
        if self.turn is not None:
            self.turn.prompt = replace(prompt, session_id=self.name)
            self._send(self.turn.prompt)

    def answer(self, answer: RunnerAnswer) -> None:
        """Send the answer to a question of the open turn."""
        if self.turn is not None:
            self.turn.answers[answer.question_id] = answer
            self._send(replace(answer, session_id=self.name))

    def abort(self, reason: str) -> None:
        """Tell the runner to stop the open turn."""
        turn = self.turn
        if turn is not None and turn.abort is None:
            turn.abort = RunnerAbort(session_id=self.name, turn_id=turn.turn_id, reason=reason)
            self._send(turn.abort)

    def steer(self, message_id: str) -> None:
        """Ask the runner to finalize the open turn after its current step, because a message waits."""
        turn = self.turn
        if turn is not None:
            turn.steer = RunnerSteer(session_id=self.name, turn_id=turn.turn_id, message_id=message_id)
            self._send(turn.steer)

    def acknowledge(self, turn_id: str, seq: int) -> None:
        """Tell the runner that its frames up to `seq` are stored."""
        if self.turn is not None and self.turn.turn_id == turn_id:
            self.turn.stored = max(self.turn.stored, seq)
        self._send(RunnerAck(session_id=self.name, turn_id=turn_id, seq=seq))

    def refuse(self, error: FrameRefused) -> None:
        """Tell the runner that a frame was refused."""
        self._send(replace(error.to_frame(), session_id=self.name))

    def take(self, limit: int) -> Sequence[FrameOfTurn]:
        """Return the next frames of the open turn, up to about `limit` characters."""
        if self.turn is None:
            return ()
        frames = self.turn.take(limit)
        if self.turn.waiting_size <= self._window(self.turn):
            self._space.set()
        return frames

    async def wait(self, seconds: float) -> None:
        """Wait up to `seconds` until a frame arrives, or the connection or the turn changes."""
        turn = self.turn
        if turn is not None and (turn.inbox or turn.is_lost):
            return
        self._changed.clear()
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._changed.wait()
        except TimeoutError:
            return

    def wake(self) -> None:
        """Make `wait` return."""
        self._changed.set()

    def _send(self, frame: FrameToRunner) -> None:
        if self.link is not None:
            self.link.send(frame)
