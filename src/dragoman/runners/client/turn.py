"""A turn at its runner: numbered frames that are buffered until the hub has acknowledged them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from dragoman.errors import Conflict
from dragoman.events import Usage
from dragoman.ids import new_id
from dragoman.wire.runner.frames import (
    FinalizeReason,
    FrameOfTurn,
    MessageCreate,
    MessageFinalize,
    PartTextDelta,
    PartToolUpdate,
    RunnerAnswer,
    RunnerEvent,
    RunnerPrompt,
    RunnerQuestion,
    RunnerStatus,
    ToolStatus,
    encode_runner_frame,
)

TEXT_PIECE = 8_000  # characters of a text in one frame
DEFAULT_FRAME = 1_000_000  # bytes of a frame, until the hub's welcome names its limit
CUT_NOTE = "… (cut: the hub does not accept frames of {size} bytes)"


class NumberedFrame(NamedTuple):
    """A frame as it is sent."""

    seq: int
    text: str


class RunnerTurn:
    """One prompt, and the methods that write its answer.

    Methods that write wait while more than `buffer` characters are not acknowledged by the hub, so that an
    agent without a connection does not fill the memory. They raise Conflict once the turn is over. Frames
    that are not acknowledged are sent again after a reconnection.
    """

    def __init__(self, prompt: RunnerPrompt, *, buffer: int, on_frame: Callable[[], None]) -> None:
        self.session_id = prompt.session_id
        self.turn_id = prompt.turn_id
        self.text = prompt.text
        self.message = prompt.message
        self.observer: Callable[[FrameOfTurn], None] | None = None
        """Called with each frame that is written."""
        self.frame_limit = DEFAULT_FRAME
        self.ended = False
        self.aborted = False
        """Whether the hub has stopped the turn. It closes the turn without waiting for the last frames."""
        self.steered = asyncio.Event()
        """Set when another message waits for the end of the turn: the agent may end after this step."""
        self.unacknowledged = 0  # characters that were sent over this connection and not acknowledged
        self._buffer = buffer
        self._on_frame = on_frame
        self._frames: deque[NumberedFrame] = deque()  # those that are not acknowledged
        self._size = 0  # characters in them
        self._sent = 0  # the number of the last frame that was sent over this connection
        self._last = 0  # the number of the last frame
        self._room = asyncio.Event()
        self._room.set()
        self._answers: dict[str, asyncio.Future[RunnerAnswer]] = {}
        self._final = MessageFinalize(session_id=self.session_id, turn_id=self.turn_id, reason="end_turn")

    def __repr__(self) -> str:
        return f"RunnerTurn({self.session_id!r}, {self.turn_id!r})"

    # ---- For the agent.

    async def write_text(self, delta: str) -> None:
        """Add text to the answer."""
        for start in range(0, len(delta), TEXT_PIECE):
            piece = delta[start : start + TEXT_PIECE]
            await self._write(PartTextDelta(session_id=self.session_id, turn_id=self.turn_id, delta=piece))

    async def update_tool(
        self,
        call_id: str,
        tool_name: str,
        *,
        status: ToolStatus,
        args: Any = msgspec.UNSET,
        result: Any = msgspec.UNSET,
        error: str | None = None,
    ) -> None:
        """Show the state of a tool call: `pending`, `running` with its arguments, `completed`, `error`."""
        frame = PartToolUpdate(
            session_id=self.session_id,
            turn_id=self.turn_id,
            call_id=call_id,
            tool_name=tool_name,
            status=status,
            args=args,
            result=result,
            error=error,
        )
        await self._write(frame)

    async def set_status(self, status: str, detail: str | None = None) -> None:
        """Show the agent's status: `idle`, `thinking`, `streaming`, `tool_calling` or `error`."""
        await self._write(
            RunnerStatus(session_id=self.session_id, turn_id=self.turn_id, status=status, detail=detail)
        )

    async def publish(self, name: str, data: Any, *, id: str | None = None, transient: bool = False) -> None:
        """Send a domain event, `data-<name>`; it replaces the one of the same name and id."""
        frame = RunnerEvent(
            session_id=self.session_id, turn_id=self.turn_id, name=name, data=data, id=id, transient=transient
        )
        await self._write(frame)

    async def ask(self, text: str, options: Sequence[str] = ()) -> RunnerAnswer:
        """Ask the user, and wait for the answer."""
        return await self._ask(text, options=options)

    async def ask_approval(self, call_id: str, text: str = "") -> RunnerAnswer:
        """Ask whether a call may run, and wait for the answer; see its `approved`."""
        return await self._ask(text, call_id=call_id)

    def report_usage(
        self, usage: Usage | None, *, cost: float | None = None, model: str | None = None
    ) -> None:
        """Set the tokens, US dollars and model that are recorded with the message when it ends."""
        self._final = replace(self._final, usage=usage, cost=cost, model=model)

    # ---- For the runner.

    async def begin(self) -> None:
        """Send the frame that begins the answer."""
        await self._write(MessageCreate(session_id=self.session_id, turn_id=self.turn_id))

    def finalize(self, reason: FinalizeReason, error: str | None = None) -> None:
        """End the turn. Never waits, so that a turn can end whatever happened."""
        if self.ended:
            return
        self._put(replace(self._final, reason=reason, error=error))
        self.ended = True
        for future in self._answers.values():
            future.cancel()

    @property
    def is_over(self) -> bool:
        """Whether the hub has stored all frames, or, of a turn that it stopped, was sent all of them."""
        if not self.ended:
            return False
        return not self._frames or (self.aborted and self._frames[-1].seq <= self._sent)

    def next_frame(self) -> str | None:
        """Return the next frame that was not sent over this connection, and count it as sent."""
        if not self._frames or self._frames[-1].seq <= self._sent:
            return None
        frame = self._frames[max(0, self._sent + 1 - self._frames[0].seq)]
        self._sent = frame.seq
        self.unacknowledged += len(frame.text)
        return frame.text

    def acknowledge(self, seq: int) -> None:
        """Drop the frames up to this number, which the hub has stored."""
        while self._frames and self._frames[0].seq <= seq:
            frame = self._frames.popleft()
            self._size -= len(frame.text)
            if frame.seq <= self._sent:
                self.unacknowledged -= len(frame.text)
        if self._size < self._buffer:
            self._room.set()

    def reconnect(self, seq: int) -> None:
        """Send all frames after this number over a new connection."""
        self.acknowledge(seq)
        self._sent = seq
        self.unacknowledged = 0

    def answer(self, answer: RunnerAnswer) -> None:
        """Pass on the answer to a question."""
        future = self._answers.get(answer.question_id)
        if future is not None and not future.done():
            future.set_result(answer)

    def abandon(self) -> None:
        """Drop all frames: the hub has closed the turn."""
        self.ended = True
        self._frames.clear()
        self._size = 0
        self._room.set()

    async def _ask(
        self, text: str, *, options: Sequence[str] = (), call_id: str | None = None
    ) -> RunnerAnswer:
        id = new_id("question")
        future: asyncio.Future[RunnerAnswer] = asyncio.get_running_loop().create_future()
        self._answers[id] = future
        question = RunnerQuestion(
            session_id=self.session_id,
            turn_id=self.turn_id,
            question_id=id,
            text=text,
            options=tuple(options),
            call_id=call_id,
            approval=call_id is not None,
        )
        try:
            await self._write(question)
            return await future
        finally:
            del self._answers[id]

    async def _write(self, frame: FrameOfTurn) -> None:
        await self._room.wait()
        if self.ended:
            raise Conflict(f"turn {self.turn_id!r} is over")
        self._put(frame)

    def _put(self, frame: FrameOfTurn) -> None:
        if self.ended:
            return
        if self.observer is not None:
            self.observer(frame)
        self._last += 1
        text = encode_runner_frame(replace(frame, seq=self._last))
        if len(text) > self.frame_limit // 4 and len(text.encode()) > self.frame_limit:
            text = encode_runner_frame(replace(shorten(frame, len(text)), seq=self._last))
        self._frames.append(NumberedFrame(self._last, text))
        self._size += len(text)
        if self._size >= self._buffer:
            self._room.clear()
        self._on_frame()


def shorten(frame: FrameOfTurn, size: int) -> FrameOfTurn:
    """Return a frame that is too large with a note in place of its value; `size` is its size."""
    note = CUT_NOTE.format(size=size)
    match frame:
        case PartToolUpdate():
            return replace(
                frame,
                args=frame.args if frame.result is not msgspec.UNSET else {"cut": note},
                result=msgspec.UNSET if frame.result is msgspec.UNSET else note,
                error=None if frame.error is None else note,
            )
        case RunnerEvent():
            return replace(frame, data={"cut": note})
        case MessageFinalize():
            return replace(frame, final_text=None, error=None if frame.error is None else note)
        case _:
            return frame
