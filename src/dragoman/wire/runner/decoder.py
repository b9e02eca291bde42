"""Decode the V2 events of one turn of a runner into our events. Source: seed 001, "Protocol mapping".

One turn is one assistant message. Its calls are marked as executed by the provider, so that no client runs
them. A text block is open from `message.create` until a call begins; text after the last output begins a new
step. A question becomes a call of the tool `question` that waits for its answer, as with the hub's own
agents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeGuard

import msgspec
from msgspec import UNSET

from dragoman import events as e
from dragoman.messages import FINAL_STATES, DataPart, Message, Part, TextPart, ToolPart
from dragoman.wire.runner.frames import (
    FrameOfTurn,
    FrameRefused,
    MessageCreate,
    MessageFinalize,
    PartTextDelta,
    PartToolUpdate,
    RunnerEvent,
    RunnerQuestion,
    RunnerStatus,
    RunnerUnknown,
    TurnComplete,
)
from dragoman.wire.runner.streamed_text import DeltaJoiner, TextDigest

STATUS_PART = "data-agent-status"
QUESTION_PART = "data-question"
QUESTION_TOOL = "question"
HUB_PARTS = frozenset({"question", "agent-status", "anthropic", "context", "queued", "steered"})
"""Names of data parts with a meaning in the hub, which events of a runner cannot have."""
FINISH_REASONS: dict[str, e.FinishReason] = {"end_turn": "stop", "error": "error", "canceled": "aborted"}
NO_OUTPUT = "the runner reported no output of this call"
CANCELED = "the runner canceled the turn"
UNANSWERED = "the runner no longer waits for the answer"

Phase: TypeAlias = Literal["idle", "open", "closed", "finished"]
CallState: TypeAlias = Literal["streaming", "running", "waiting", "denied", "ended"]
OPEN_STATES = ("streaming", "running", "waiting")
RequestId: TypeAlias = Callable[[RunnerQuestion], str]
"""Returns the id of the approval request of a question."""


class RunnerCall(msgspec.Struct):
    """A call of the turn. `is_question`: the runner sent a question, not a call."""

    name: str
    state: CallState
    is_question: bool = False
    input: Any = None
    question: Any = None  # the data of its part


class RunnerDecoder:
    """Decodes one turn. With `message`, decodes the rest of a turn that has these parts already."""

    def __init__(self, turn_id: str, *, message: Message | None = None, request_id: RequestId) -> None:
        self.phase: Phase = "idle"
        self.seq = 0
        """The number of the last accepted frame."""
        self.model: str | None = None
        self.cost: float | None = None
        self.usage: e.Usage | None = None
        self.steps = 0
        self._turn_id = turn_id
        self._request_id = request_id
        self._calls: dict[str, RunnerCall] = {}
        self._questions: dict[str, str] = {}  # request id -> id of the call that waits for its answer
        self._request_ids: set[str] = set()  # the ids of all requests
        self._open_calls: dict[str, RunnerCall] = {}  # those that have not ended
        self._joiner = DeltaJoiner()
        self._blocks = 0
        self._open_block: str | None = None
        self._step_has_calls = False
        self._text, self._earlier_steps, self._block_text = TextDigest(), TextDigest(), TextDigest()
        self._delayed: list[str] = []  # text that is sent after the outputs of an earlier run's calls
        for part in message.parts if message else ():
            self._restore(part)
        if message is not None and message.parts:
            self.phase, self._earlier_steps = "closed", self._text.copy()

    def _restore(self, part: Any) -> None:
        match part:
            case TextPart(text=text):
                self._blocks += 1
                self._text.add(text)
            case ToolPart(tool_call_id=id, state=state):
                ended = state in FINAL_STATES and not part.preliminary
                waits = state == "approval-requested"
                kind: CallState = "ended" if ended else "waiting" if waits else "running"
                is_question = part.name == QUESTION_TOOL and not part.provider_executed
                input = None if part.input is UNSET else part.input
                call = RunnerCall(part.name, kind, is_question, input)
                self._calls[id] = call
                if state == "output-denied":
                    call.state = "denied"
                if call.state in OPEN_STATES:
                    self._open_calls[id] = call
                if part.approval is not None:
                    self._request_ids.add(part.approval.id)
                    if waits:
                        self._questions[part.approval.id] = id
            case DataPart(
                type="data-question", data={"status": "pending", "toolCallId": str(name)}, id=str(id)
            ) if name in self._open_calls:
                self._questions[id] = name
                self._open_calls[name].state, self._open_calls[name].question = "waiting", part.data
            case _:
                pass

    @property
    def is_waiting(self) -> bool:
        """Whether the turn waits for an answer, and for nothing else."""
        return bool(self._questions) and all(call.state == "waiting" for call in self._open_calls.values())

    def feed(self, frame: FrameOfTurn) -> list[e.Event]:
        """Return the events of the next frame.

        Raises FrameRefused, and changes nothing, for a frame that is repeated, late or out of order.
        """
        self._check_place(frame)
        try:
            events = self._decode(frame)
        except FrameRefused as error:
            error.session_id, error.turn_id, error.seq = frame.session_id, self._turn_id, frame.seq
            raise
        self.seq += 1
        return events

    def _check_place(self, frame: FrameOfTurn) -> None:
        if self.phase == "finished":
            raise self._refusal(frame, f"turn {self._turn_id!r} was already finalized", code="late")
        if frame.seq is None or frame.seq == self.seq + 1:
            return
        if frame.seq <= self.seq:
            raise self._refusal(frame, f"frame {frame.seq} of the turn was already received", code="repeated")
        message = f"frame {frame.seq} came before {self.seq + 1}; send the frames of a turn in order"
        raise self._refusal(frame, message, code="out_of_order")

    def _refusal(self, frame: FrameOfTurn, message: str, *, code: str) -> FrameRefused:
        return FrameRefused(
            message, code=code, session_id=frame.session_id, turn_id=self._turn_id, seq=frame.seq
        )

    def _decode(self, frame: FrameOfTurn) -> list[e.Event]:
        match frame:
            case MessageCreate():
                return self._create(frame)
            case PartTextDelta():
                self._require_message()
                return self._add_text(self._joiner.add(frame))
            case PartToolUpdate():
                return self._update_call(frame)
            case RunnerQuestion():
                return self._ask(frame)
            case MessageFinalize():
                return self._finalize(frame)
            case TurnComplete():
                return self._finalize(
                    MessageFinalize(session_id=frame.session_id, turn_id=self._turn_id, reason="end_turn")
                )
            case RunnerStatus() | RunnerEvent() | RunnerUnknown():
                return self._decode_data(frame) if self.phase != "idle" else []

    def _decode_data(self, frame: RunnerStatus | RunnerEvent | RunnerUnknown) -> list[e.Event]:
        match frame:
            case RunnerStatus(status=status, detail=detail):
                body = {"status": status} if detail is None else {"status": status, "detail": detail}
                return [e.Data(STATUS_PART, body, transient=True)]
            case RunnerEvent(name=name, data=data, id=id, in_chat=True) if name not in HUB_PARTS:
                return [e.Data(f"data-{name}", data, id, transient=frame.transient or None)]
            case _:
                return []

    def _create(self, frame: MessageCreate) -> list[e.Event]:
        if self.phase != "idle":
            raise FrameRefused("the message of this turn was already created", code="out_of_order")
        self.model = frame.model
        metadata = {"servedModel": frame.model} if frame.model is not None else None
        return [e.Start(self._turn_id, metadata), *self._begin_step(), *self._begin_block()]

    def _require_message(self) -> None:
        if self.phase == "idle":
            raise FrameRefused("`message.create` comes first in a turn", code="out_of_order")

    # Steps and text.

    def _begin_step(self) -> list[e.Event]:
        self.phase, self._step_has_calls = "open", False
        self._earlier_steps = self._text.copy()
        self.steps += 1
        return [e.StartStep()]

    def _begin_block(self) -> list[e.Event]:
        self._blocks += 1
        self._open_block = self._turn_id if self._blocks == 1 else f"{self._turn_id}-{self._blocks}"
        self._block_text = TextDigest()
        return [e.TextStart(self._open_block)]

    def _end_block(self) -> list[e.Event]:
        lone = self._add_text(self._joiner.end())
        block, self._open_block = self._open_block, None
        return lone if block is None else [*lone, e.TextEnd(block)]

    def _has_open_calls(self) -> bool:
        return bool(self._open_calls)

    def _end_call(self, id: str, state: CallState = "ended") -> None:
        self._calls[id].state = state
        self._open_calls.pop(id, None)

    def _add_text(self, delta: str) -> list[e.Event]:
        if not delta:
            return []
        if self._open_block is None and self.phase == "closed" and self._has_open_calls():
            self._delayed.append(delta)
            return []
        events = [] if self._open_block is not None else [*self._next_step(), *self._begin_block()]
        self._text.add(delta)
        self._block_text.add(delta)
        return [*events, e.TextDelta(self._open_block or "", delta)]

    def _next_step(self) -> list[e.Event]:
        """Return the events that begin a new step for text, if needed: outputs end their calls' step."""
        if self.phase == "closed":
            return self._begin_step()
        if self._step_has_calls and not self._has_open_calls():
            return [e.FinishStep(), *self._begin_step()]
        return []

    def _release_delayed(self) -> list[e.Event]:
        if not self._delayed or self._has_open_calls():
            return []
        text, self._delayed = "".join(self._delayed), []
        return self._add_text(text)

    # Calls.

    def _update_call(self, frame: PartToolUpdate) -> list[e.Event]:
        self._require_message()
        call = self._calls.get(frame.call_id)
        if call is not None and call.state == "denied":
            return []
        if call is not None and call.state == "ended":
            raise FrameRefused(f"call {frame.call_id!r} has already ended", code="late")
        events: list[e.Event] = []
        if call is None:
            events = self._begin_call(frame)
            call = self._calls[frame.call_id]
        elif frame.status != "pending":
            events = self._withdraw(frame.call_id)
            call.state = "running" if call.state == "waiting" else call.state
        events += self._input_events(frame, call)
        match frame.status:
            case "completed":
                output = None if frame.result is UNSET else frame.result
                events.append(
                    e.ToolOutputAvailable(frame.call_id, output, provider_executed=True, dynamic=True)
                )
                self._end_call(frame.call_id)
            case "error":
                text = error_text(frame.error) or "the call failed"
                events.append(e.ToolOutputError(frame.call_id, text, provider_executed=True, dynamic=True))
                self._end_call(frame.call_id)
            case "running" if frame.result is not UNSET and call.state == "running":
                events.append(preliminary_output(frame))
            case _:
                pass
        return [*events, *self._release_delayed()]

    def _begin_call(self, frame: PartToolUpdate) -> list[e.Event]:
        events = self._end_block()
        if self.phase == "closed":
            events += self._begin_step()
        self._step_has_calls = True
        self._calls[frame.call_id] = self._open_calls[frame.call_id] = RunnerCall(
            frame.tool_name, "streaming"
        )
        start = e.ToolInputStart(frame.call_id, frame.tool_name, provider_executed=True, dynamic=True)
        return [*events, start]

    def _input_events(self, frame: PartToolUpdate, call: RunnerCall) -> list[e.Event]:
        """Return the call's arguments when it is first reported as running, or else when it ends."""
        has_ended = frame.status in ("completed", "error")
        if call.state != "streaming" or not (
            has_ended or (frame.status == "running" and frame.args is not UNSET)
        ):
            return []
        call.state = "running"
        call.input = input = {} if frame.args is UNSET else frame.args
        return [e.ToolInputAvailable(frame.call_id, call.name, input, provider_executed=True, dynamic=True)]

    # Questions.

    def _ask(self, frame: RunnerQuestion) -> list[e.Event]:
        self._require_message()
        request = self._request_id(frame)
        if request in self._request_ids or f"{QUESTION_TOOL}-{frame.question_id}" in self._calls:
            raise FrameRefused(f"question {frame.question_id!r} was already asked", code="repeated")
        if frame.approval:
            return self._ask_approval(frame, request)
        self._request_ids.add(request)
        events = self._end_block()
        if self.phase == "closed":
            events += self._begin_step()
        id = f"{QUESTION_TOOL}-{frame.question_id}"
        self._step_has_calls = True
        question = {"text": frame.text, "options": list(frame.options)}
        body = {"id": request, "toolCallId": id, **question, "status": "pending"}
        self._calls[id] = RunnerCall(QUESTION_TOOL, "waiting", is_question=True, question=body)
        self._open_calls[id] = self._calls[id]
        self._questions[request] = id
        call = e.ToolInputAvailable(id, QUESTION_TOOL, {"questionId": frame.question_id, **question})
        return [*events, call, e.Data(QUESTION_PART, body, request)]

    def _ask_approval(self, frame: RunnerQuestion, request: str) -> list[e.Event]:
        call = self._calls.get(frame.call_id or "")
        if call is None or call.is_question or call.state not in ("streaming", "running"):
            raise FrameRefused(f"there is no call {frame.call_id!r} that waits for an approval")
        id = str(frame.call_id)
        events = self._end_block()
        if call.state == "streaming":
            events.append(e.ToolInputAvailable(id, call.name, {}, provider_executed=True, dynamic=True))
        call.state = "waiting"
        self._request_ids.add(request)
        self._questions[request] = id
        return [*events, e.ToolApprovalRequest(request, id)]

    def take_answer(self, request: str, *, approved: bool, text: str | None = None) -> list[e.Event]:
        """Return the outputs that follow the answer to a request; nothing for one that does not wait."""
        id = self._questions.pop(request, None)
        call = self._calls.get(id or "")
        if id is None or call is None:
            return []
        if not call.is_question:
            if approved:
                call.state = "running"
                return []
            self._end_call(id, "denied")
            return [e.ToolOutputDenied(id), *self._release_delayed()]
        self._end_call(id)
        output = question_output(id, (text or "") if approved else None, reason=text)
        return [output, *self._release_delayed()]

    def close_answered(self, message: Message) -> list[e.Event]:
        """Return the outputs that follow the answers in a message that continues."""
        events: list[e.Event] = []
        answers = {part.data["toolCallId"]: part.data for part in message.parts if is_answer(part)}
        for part in message.tool_calls:
            id = part.tool_call_id
            approval = part.approval
            if part.state == "approval-responded" and approval is not None and not approval.approved:
                self._end_call(id, "denied")
                events.append(e.ToolOutputDenied(id))
            elif part.state == "input-available" and id in answers:
                self._end_call(id)
                events.append(
                    question_output(id, answers[id].get("answer"), reason=answers[id].get("reason"))
                )
        return events

    def call_name(self, id: str) -> str:
        """Return the tool of a call; `call` for an unknown one."""
        return self._calls[id].name if id in self._calls else "call"

    def call_input(self, id: str) -> Any:
        """Return the arguments of a call; None if they are not known."""
        return self._calls[id].input if id in self._calls else None

    def waiting_requests(self) -> Sequence[str]:
        """Return the ids of the requests that wait for an answer."""
        return list(self._questions)

    def _withdraw(self, call_id: str) -> list[e.Event]:
        """Forget the requests of a call that continues without an answer."""
        withdrawn = [request for request, id in self._questions.items() if id == call_id]
        return [event for request in withdrawn for event in self._decline(request)]

    def _decline(self, request: str) -> list[e.Event]:
        """Forget a request that nobody has answered; a question is shown as declined."""
        call = self._calls[self._questions.pop(request)]
        if call.question is None:
            return []
        return [e.Data(QUESTION_PART, {**call.question, "status": "declined", "reason": UNANSWERED}, request)]

    # The end.

    def pause(self) -> list[e.Event]:
        """Return the events that end a run at a question; the turn continues in another run."""
        events = [*self._end_block(), e.FinishStep()] if self.phase == "open" else []
        self.phase = "closed"
        return [*events, e.Finish("tool-calls")]

    def _finalize(self, frame: MessageFinalize) -> list[e.Event]:
        self.usage, self.cost = frame.usage, frame.cost
        self.model = frame.model or self.model
        events: list[e.Event] = []
        if self.phase == "idle":
            events, self.phase = [e.Start(self._turn_id)], "closed"
        reason = CANCELED if frame.reason == "canceled" else error_text(frame.error) or NO_OUTPUT
        events += [*self._close_calls(reason), *self._release_delayed()]
        if frame.final_text:
            self._joiner.end()  # it has the whole character
            events += self._repair_text(frame.final_text)
        events += self._end_block()
        finish_reason = FINISH_REASONS[frame.reason]
        if self.phase == "open":
            events.append(e.FinishStep(finish_reason, frame.usage, self.model))
        if frame.reason == "error":
            events.append(e.ErrorEvent(error_text(frame.error) or "the runner failed", "runner"))
        elif frame.reason == "canceled":
            events.append(e.Abort(CANCELED))
        self.phase = "finished"
        return [*events, e.Finish(finish_reason, usage=frame.usage, cost=frame.cost, steps=self.steps)]

    def _repair_text(self, final: str) -> list[e.Event]:
        """Return the events that complete the text: the missing end, or the whole text of the step again."""
        if self._text.begins(final):
            return self._add_text(final[self._text.length :])
        if len(final) <= self._text.length:
            return self._repair_block(final)
        if self._is_only_text() and self._earlier_steps.begins(final):
            return self._replace_step(final[self._earlier_steps.length :])
        return self._repair_block(final)

    def _repair_block(self, final: str) -> list[e.Event]:
        """Complete the text if `final` is the text of the last block, not of the turn."""
        if self._open_block is None or len(final) <= self._block_text.length:
            return []
        if self._block_text.begins(final):
            return self._add_text(final[self._block_text.length :])
        return self._replace_step(final) if self._is_only_text() else []

    def _is_only_text(self) -> bool:
        """Return whether the step has one block of text and nothing else."""
        return self.phase == "open" and self._open_block is not None and not self._step_has_calls

    def _replace_step(self, text: str) -> list[e.Event]:
        self._text = self._earlier_steps.copy()
        closed = [*self._end_block(), e.ResetStep()]
        return [*closed, *self._begin_block(), *self._add_text(text)]

    def _close_calls(self, reason: str) -> list[e.Event]:
        events = [event for request in list(self._questions) for event in self._decline(request)]
        for id, call in self._open_calls.items():
            if call.state == "streaming":
                events.append(
                    e.ToolInputError(id, call.name, None, reason, provider_executed=True, dynamic=True)
                )
            else:
                executed = None if call.is_question else True
                events.append(e.ToolOutputError(id, reason, provider_executed=executed, dynamic=executed))
            call.state = "ended"
        self._open_calls.clear()
        return events


def is_answer(part: Part) -> TypeGuard[DataPart]:
    """Return whether a part is a question that was answered or declined."""
    return isinstance(part, DataPart) and part.type == QUESTION_PART and part.data["status"] != "pending"


def question_output(id: str, answer: str | None, *, reason: str | None = None) -> e.Event:
    """Return the output of a question; without an `answer` it was declined."""
    if answer is not None:
        return e.ToolOutputAvailable(id, answer)
    return e.ToolOutputError(id, f"the question was not answered{f': {reason}' if reason else ''}")


def preliminary_output(frame: PartToolUpdate) -> e.ToolOutputAvailable:
    """Return the output so far of a call that runs."""
    return e.ToolOutputAvailable(
        frame.call_id, frame.result, provider_executed=True, dynamic=True, preliminary=True
    )


def error_text(error: Any) -> str:
    """Return an error of a runner as a text: its message, if it is an object with one."""
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])
    if error is None or isinstance(error, str):
        return error or ""
    return msgspec.json.encode(error).decode()
