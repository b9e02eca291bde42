"""A runner's turn as the source of a run's events, in place of the agent loop.

A run ends when the runner finalizes the turn, or when the turn waits for an answer; it then continues in the
run that the answer starts. A runner may be away for `grace` seconds; then the turn ends as interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman import events as e
from dragoman.agent.approval_events import ApprovalAnswer, approval_answer, question_parts, response_event
from dragoman.agent.hook_dispatch import HookDispatcher
from dragoman.agent.hooks.invocation import TurnHooks
from dragoman.agent.restoration import RestoredAnswer
from dragoman.agent.stop_conditions import SoFar
from dragoman.errors import DragomanError, RateLimited, RunnerGone, TooLarge
from dragoman.fold import Fold
from dragoman.hub_events.domain_events import NAME, SessionEvents
from dragoman.messages import DataPart, Message, StepStartPart, TextPart, to_json
from dragoman.operations.context import Context
from dragoman.runners.hub.approval_requests import TurnRequests
from dragoman.runners.hub.frame_log import FrameLog, LoggedAnswer, LoggedMessage, StoredLog
from dragoman.runners.hub.session import RunnerSession
from dragoman.runners.hub.settings import RunnerLimits
from dragoman.store.store import Store
from dragoman.wire.runner.decoder import RunnerDecoder
from dragoman.wire.runner.frames import (
    FrameOfTurn,
    FrameRefused,
    MessageCreate,
    MessageFinalize,
    PartTextDelta,
    PartToolUpdate,
    RunnerAnswer,
    RunnerEvent,
    RunnerPrompt,
    RunnerQuestion,
    RunnerStatus,
    RunnerUnknown,
    TurnComplete,
)

log = logging.getLogger(__name__)
Batch = Sequence[e.Event]
MESSAGE_FRAMES = (MessageCreate, PartTextDelta, PartToolUpdate, MessageFinalize, RunnerQuestion)
BATCH_SIZE = 32_768  # characters of frames that are decoded at once
SEQ_FIELD = "runnerSeq"
MAX_REQUESTS = 100  # unanswered questions of a turn


class RunnerTurnSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn starts with. `history` ends with the message to answer; `fold` builds the answer.

    `log` has the frames that a run had received before a crash. `session_events` publishes the runner's
    domain events.
    """

    fold: Fold
    context: Context
    history: Sequence[Message] = ()
    input_events: Batch = ()
    hooks: TurnHooks | None = None
    restored: RestoredAnswer | None = None
    log: StoredLog = StoredLog()
    session_events: SessionEvents | None = None


class TurnSource:
    """One run of a runner's turn. Implements `AnswerSource` of the runs."""

    def __init__(
        self, spec: RunnerTurnSpec, session: RunnerSession, *, store: Store, settings: RunnerLimits
    ) -> None:
        self.turn = spec
        self.hooks = HookDispatcher(spec)
        self._session = session
        self._store = store
        self._settings = settings
        self._started_at = time.monotonic()
        self._earlier_steps = spec.fold.count_parts(StepStartPart)
        message = spec.fold.message()
        self._is_new = not message.parts and spec.restored is None
        self._requests = TurnRequests(
            store, spec.context, message_id=spec.fold.id, seconds=settings.question_seconds
        )
        self._decoder = self._new_decoder(message)
        seq = spec.log.seq or stored_seq(message)
        self._open = session.open_turn(spec.fold.id, seq=seq)
        self._run_id = spec.context.run_id or ""
        self._log = FrameLog(store, self._run_id, on_stored=self._on_stored, batches=spec.log.batches)
        self._seq = seq
        self._size_beside_text = 0  # characters that are stored, without those of text
        self._injected: list[e.Event] = []
        self._asked_at: float | None = None
        self._is_paused = False

    # The interface to the run.

    @property
    def usage(self) -> e.Usage | None:
        """The usage that the runner has reported."""
        return self._decoder.usage

    @property
    def cost(self) -> float | None:
        """US dollars, as the runner has reported."""
        return self._decoder.cost

    @property
    def step_count(self) -> int:
        """The number of steps of the message."""
        return self._earlier_steps + self._decoder.steps

    def end_after_step(self, event: e.Data) -> None:
        """Ask the runner to end its turn after the current step, because a message waits for its end."""
        if self._session.turn is self._open:
            self._session.steer(str(event.data["messageId"]))

    def so_far(self) -> SoFar:
        """Return the progress of this run."""
        seconds = time.monotonic() - self._started_at
        usage, cost = self.usage or e.Usage(), self._decoder.cost
        return SoFar(steps=(), taken=self.step_count, seconds=seconds, usage=usage, cost=cost)

    def message_metadata(self, reason: str) -> dict[str, Any]:
        """Return the metadata of the message."""
        metadata = {
            "finishReason": reason,
            "usage": None if self.usage is None else msgspec.to_builtins(self.usage),
            "cost": self._decoder.cost,
            "servedModel": self._decoder.model,
            "steps": self.step_count,
            "duration": round(time.monotonic() - self._started_at, 3),
            SEQ_FIELD: self._seq or None,
        }
        return {name: value for name, value in metadata.items() if value is not None}

    async def run(self, _: e.DeltaHandler | None = None) -> AsyncGenerator[Batch, None]:
        """Yield the events of the turn, `start` to `finish`. Raises RunnerGone, CallDenied."""
        spec = self.turn
        yield [e.Start(spec.fold.id, {"agent": "runner"}), *spec.input_events]
        message = spec.fold.message()
        if message.parts:
            self._decoder = self._new_decoder(message)
            if not spec.log.entries:
                self._log.add(LoggedMessage.of(message), seq=self._seq)
            if outputs := await self._send_answers(message):
                yield outputs
        if events := self._replay(spec.log.entries):
            yield events
        if self._is_new or (spec.restored is not None and not message.parts and self._seq == 0):
            self._prompt(await self.hooks.user_prompt_submit(spec.history))
        while self._decoder.phase != "finished" and not self._is_paused:
            if events := await self._next_events():
                yield events
        await self.hooks.run_end(self._decoder.phase, self.so_far())

    def _new_decoder(self, message: Message) -> RunnerDecoder:
        base = message if message.parts else None
        return RunnerDecoder(self.turn.fold.id, message=base, request_id=self._requests.id_of)

    async def stop(self, reason: str) -> None:
        """Tell the runner to stop, and wait up to `stop_timeout` for its end; later frames are dropped."""
        if self._decoder.phase == "finished" or self._session.turn is not self._open:
            return
        self._session.abort(reason)
        await self._requests.withdraw(self._decoder.waiting_requests())
        deadline = asyncio.get_running_loop().time() + self._settings.stop_timeout
        while self._session.link is not None and not self._open.is_lost:
            frames = self._session.take(BATCH_SIZE)
            self._seq = max(
                [self._seq, *(frame.seq or 0 for frame in frames)]
            )  # acknowledged like the others
            if any(isinstance(frame, MessageFinalize | TurnComplete) for frame in frames):
                return
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                return
            await self._session.wait(remaining)

    async def leave(self) -> None:
        """Store all frames, because this host shuts down: the turn continues after its restart."""
        await self._log.drain()
        self._log.close()

    def end(self, *, is_over: bool) -> None:
        """Forget the run: it is over and stored, or, unless `is_over`, it continues at another host.

        In the second case the runner repeats the frames that are not stored, so they are not acknowledged.
        """
        self._log.close()
        if not is_over or self._session.turn is not self._open:
            return
        if self._seq:
            self._session.acknowledge(self._open.turn_id, self._seq)
        if self._is_paused:
            self._session.pause_turn()
        else:
            self._session.close_turn()

    def forget(self) -> None:
        """Forget the turn: another host has it."""
        if self._session.turn is self._open:
            self._session.forget_turn()

    # Frames.

    async def _next_events(self) -> list[e.Event]:
        """Return the next events: of frames, of an answer, or the end of a run that waits for an answer."""
        if self._injected:
            events, self._injected = self._injected, []
            return events
        frames = self._session.take(BATCH_SIZE)
        if frames:
            return await self._decode(frames)
        loop = asyncio.get_running_loop()
        if not self._decoder.is_waiting:
            self._asked_at = None
            await self._session.wait(self._check_presence() - loop.time())
            return []
        self._asked_at = self._asked_at or loop.time()
        remaining = self._asked_at + self._settings.pause_after - loop.time()
        if remaining > 0:
            await self._session.wait(remaining)
            return []
        self._is_paused = True
        return self._complete(self._decoder.pause())

    def _check_presence(self) -> float:
        """Return until when to wait for the runner, in the event loop's time. Raises RunnerGone after it."""
        session, now = self._session, asyncio.get_running_loop().time()
        if self._open.is_lost:
            raise RunnerGone("the runner has lost this turn")
        if session.link is None:
            deadline = max(session.away_since, self._loop_start()) + self._settings.grace
            if now >= deadline:
                raise RunnerGone(f"no runner was connected for {self._settings.grace:g} seconds")
            return deadline
        deadline = self._last_frame_at() + self._settings.idle
        if now >= deadline:
            raise RunnerGone(f"the runner sent nothing for {self._settings.idle:g} seconds")
        return deadline

    def _loop_start(self) -> float:
        return asyncio.get_running_loop().time() - (time.monotonic() - self._started_at)

    def _last_frame_at(self) -> float:
        return max(self._loop_start(), self._open.last_frame_at)

    async def _decode(self, frames: Sequence[FrameOfTurn]) -> list[e.Event]:
        """Return the events of frames, and add the frames to the log."""
        events: list[e.Event] = []
        is_urgent = False
        for frame in frames:
            waiting = self._decoder.waiting_requests()
            decoded = self._decode_one(frame)
            if decoded and isinstance(frame, RunnerQuestion):
                await self._requests.create(frame, self._decoder)
            if waiting:
                still_waiting = self._decoder.waiting_requests()
                await self._requests.withdraw([id for id in waiting if id not in still_waiting])
            events += decoded
            is_urgent |= not isinstance(frame, PartTextDelta | RunnerStatus)
        if is_urgent:
            self._log.flush()  # before the run stores the events
        return self._complete(merge_deltas(events))

    def _decode_one(self, frame: FrameOfTurn) -> Batch:
        seq = frame.seq or self._seq
        self._decoder.seq = seq - 1
        self._seq = max(self._seq, seq)
        if self._decoder.phase == "finished" and not isinstance(frame, MESSAGE_FRAMES):
            return ()
        try:
            if isinstance(frame, RunnerEvent):
                self._publish(frame)
            elif isinstance(frame, RunnerQuestion):
                self._check_room(frame)
            events = self._decoder.feed(frame)
        except FrameRefused as error:
            self._session.refuse(error)
            self._log.skip(seq=self._seq)
            return ()
        if is_logged(frame) and not is_progress(events):
            size = self._log.add(frame, seq=self._seq)
            is_text = isinstance(frame, PartTextDelta) and bool(events)
            self._count(0 if is_text else size)  # text without events yet waits for the output of a call
        else:
            self._log.skip(seq=self._seq)
        return events

    def _count(self, size: int) -> None:
        """Count characters that are stored; those of text are counted by the run. Raises TooLarge."""
        self._size_beside_text += size
        if self._size_beside_text > self._settings.answer:
            message = f"the calls and data of the answer have more than {self._settings.answer} characters"
            raise TooLarge(f"{message}, the limit of this hub", hint="`limits.answer` sets it")

    def _check_room(self, frame: RunnerQuestion) -> None:
        """Raise FrameRefused when too many questions wait already."""
        if len(self._decoder.waiting_requests()) >= MAX_REQUESTS:
            message = f"{MAX_REQUESTS} questions of the turn wait for their answers, the maximum"
            raise self._open.refusal(frame, message, code=RateLimited.code)

    def _publish(self, frame: RunnerEvent) -> None:
        """Publish a domain event in the session. Raises FrameRefused if its data do not match its schema.

        A chat allows more names than domain events do; an event with such a name is only in the chat.
        """
        context, events = self.turn.context, self.turn.session_events
        if events is None or context.session_id is None or (frame.in_chat and not NAME.fullmatch(frame.name)):
            return
        data = frame.data if isinstance(frame.data, Mapping) else {"value": frame.data}
        try:
            events.publish_domain_event(
                context.session_id,
                context.identity.owner,
                name=frame.name,
                data=data,
                actor=context.identity.owner,
                is_stored=not frame.transient,
            )
        except DragomanError as error:
            raise self._open.refusal(frame, error.message, code=error.code) from None

    def _complete(self, events: list[e.Event]) -> list[e.Event]:
        """Return events with the metadata of the message at its end, and without a second `start`."""
        complete: list[e.Event] = []
        for event in events:
            match event:
                case e.Start(message_metadata=metadata):
                    if metadata is not None:
                        complete.append(e.MessageMetadata(metadata))
                case e.Finish(finish_reason=reason):
                    metadata = self.message_metadata(reason or "stop")
                    complete.append(replace(event, message_metadata=metadata, steps=self.step_count))
                case _:
                    complete.append(event)
        return complete

    def _replay(self, entries: Sequence[Any]) -> list[e.Event]:
        """Return the events of the frames that the run had received before a crash."""
        events: list[e.Event] = []
        for entry in entries:
            match entry:
                case LoggedMessage():
                    pass
                case LoggedAnswer(request=request, approved=approved, text=text):
                    events += self._recorded_answer(request, approved=approved, text=text, events=events)
                case _:
                    self._decoder.seq = (entry.seq or 1) - 1
                    try:
                        events += self._decoder.feed(entry)
                    except FrameRefused as error:
                        log.warning(
                            "a logged frame of run %s is no longer valid: %s", self._run_id, error.message
                        )
        return self._complete(merge_deltas(events))

    def _on_stored(self, seq: int) -> None:
        if self._session.turn is self._open:
            self._session.acknowledge(self._open.turn_id, seq)

    # Prompts, questions, answers.

    def _prompt(self, history: Sequence[Message]) -> None:
        message = history[-1]
        text = "\n".join(part.text for part in message.parts if isinstance(part, TextPart))
        self._session.prompt(
            RunnerPrompt(
                session_id=self._session.name, turn_id=self._open.turn_id, text=text, message=to_json(message)
            )
        )

    async def _send_answers(self, message: Message) -> list[e.Event]:
        """Send the answers in a message that continues; return the outputs that follow them."""
        for answer in unsent_answers(message):
            await self._forward(answer)
        return self._decoder.close_answered(message)

    async def take_answer(self, answer: ApprovalAnswer) -> bool:
        """Pass on an answer while the run continues; return False when nothing waits for it."""
        if answer.id not in self._decoder.waiting_requests() or self._is_paused:
            return False
        await self._forward(answer)
        if answer.id not in self._decoder.waiting_requests():
            return True
        logged = LoggedAnswer(answer.id, answer.approved, answer.text)
        self._log.add(logged, seq=self._seq)
        self._log.flush()
        self._injected += self._recorded_answer(answer.id, approved=answer.approved, text=answer.text)
        self._session.wake()
        return True

    def _recorded_answer(
        self, request: str, *, approved: bool, text: str | None, events: Sequence[e.Event] = ()
    ) -> list[e.Event]:
        """Return the event that records an answer, and the outputs that follow it."""
        answer = ApprovalAnswer(request, approved, text)
        parts = self.turn.fold.message().parts
        questions = [event for event in events if isinstance(event, e.Data) and event.id == request]
        response = response_event(answer, [*parts, *map(to_part, questions)])
        return [response, *self._decoder.take_answer(request, approved=approved, text=text)]

    async def _forward(self, answer: ApprovalAnswer) -> None:
        """Send an answer to the runner."""
        request = await self._store.approvals.get(answer.id)
        frame = RunnerAnswer(
            session_id=self._session.name,
            turn_id=self._open.turn_id,
            question_id=str(request.input["questionId"]),
            approved=answer.approved,
            answer=answer.text if answer.approved else None,
            reason=None if answer.approved else answer.text,
        )
        if self._session.turn is self._open:
            self._session.answer(frame)


def unsent_answers(message: Message) -> list[ApprovalAnswer]:
    """Return the answers in a message to questions and approvals whose calls have not ended."""
    answers = []
    waiting = {call.tool_call_id for call in message.tool_calls if call.state == "input-available"}
    for part in question_parts(message.parts):
        body = part.data
        if body["status"] != "pending" and body["toolCallId"] in waiting:
            approved = body["status"] == "answered"
            text = body.get("answer") if approved else body.get("reason")
            answers.append(ApprovalAnswer(body["id"], approved, text))
    for call in message.tool_calls:
        answer = approval_answer(call)
        if answer is not None:
            answers.append(answer)
    return answers


def to_part(event: e.Data) -> DataPart:
    """Return the part that a data event makes."""
    return DataPart(event.type, event.data, event.id)


def is_logged(frame: FrameOfTurn) -> bool:
    """Return whether a frame changes the message."""
    match frame:
        case RunnerStatus() | RunnerUnknown() | PartTextDelta(delta=""):
            return False
        case RunnerEvent(in_chat=in_chat, transient=transient):
            return in_chat and not transient
        case _:
            return True


def is_progress(events: Batch) -> bool:
    """Return whether the events are only the progress of a call, which later ones replace."""
    return len(events) == 1 and isinstance(events[0], e.ToolOutputAvailable) and bool(events[0].preliminary)


def stored_seq(message: Message) -> int:
    """Return the number of the last frame of a message that continues."""
    metadata = message.metadata if isinstance(message.metadata, dict) else {}
    seq = metadata.get(SEQ_FIELD)
    return seq if isinstance(seq, int) else 0


def merge_deltas(events: Sequence[e.Event]) -> list[e.Event]:
    """Return the events with consecutive deltas of the same block joined."""
    merged: list[e.Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, e.TextDelta) and isinstance(last, e.TextDelta) and last.id == event.id:
            merged[-1] = e.TextDelta(event.id, last.delta + event.delta)
        else:
            merged.append(event)
    return merged
