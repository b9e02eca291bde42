"""Requests that a client sends again, after a lost connection or from an old tab, and their stored answers.

They must not start another run: it would repeat operations, and a message that is answered again would lose
all that follows it. A repeat has the content of the request that was answered; an edit has another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.agent.approval_events import pending_questions
from dragoman.fold import Fold
from dragoman.messages import FINAL_STATES, Message, Part, StepStartPart, ToolPart
from dragoman.part_builders import STAGES
from dragoman.unfold import START_POSITION, FoldPosition, events_since
from dragoman.wire.ui.client_request import ChatAction, ContinueAnswer, EditMessage, NewMessage


class StoredAnswer(msgspec.Struct, frozen=True):
    """The stored answer to a repeated request. `position` is what the client has of its message already.

    `error` is the text of the error that the run ended with. `run_id` is empty where the session has no run
    of the answer: in a fork, or an imported session.
    """

    run_id: str
    message: Message
    position: FoldPosition = START_POSITION
    error: str | None = None

    def events(self) -> list[e.Event]:
        """Return the answer as the run sent it, in compact form."""
        fold = Fold(self.message)
        fold.phase = "finished"
        return [*events_since(fold, self.position), *self.ending()]

    def ending(self) -> list[e.Event]:
        """Return the last events: `finish`, and before it the error that the run ended with."""
        metadata = self.message.metadata
        reason = metadata.get("finishReason") if isinstance(metadata, Mapping) else None
        error: list[e.Event] = [] if self.error is None else [e.ErrorEvent(self.error)]
        return [*error, e.Finish(reason, message_metadata=metadata)]


def repeated_message(action: ChatAction, stored: Sequence[Message]) -> Message | None:
    """Return the answer to a user message that the session has with the same content; None without one.

    An answer that failed before any tool call does not count: the message is answered again.
    """
    if not isinstance(action, NewMessage | EditMessage):
        return None
    at = next((index for index, message in enumerate(stored) if message.id == action.message.id), None)
    if at is None or at + 1 == len(stored) or not has_same_content(stored[at], action.message):
        return None
    answer = stored[at + 1]
    if answer.role != "assistant" or (at + 2 == len(stored) and has_failed_early(answer)):
        return None
    return answer


def has_same_content(first: Message, second: Message) -> bool:
    """Return whether two messages have the same role and parts."""
    return first.role == second.role and encode_sorted(first.parts) == encode_sorted(second.parts)


def is_same_action(first: ChatAction | None, second: ChatAction) -> bool:
    """Return whether two actions are of the same kind and content."""
    if isinstance(first, NewMessage | EditMessage) and isinstance(second, NewMessage | EditMessage):
        return first.message.id == second.message.id and has_same_content(first.message, second.message)
    return isinstance(second, ContinueAnswer) and encode_sorted(first) == encode_sorted(second)


def has_failed_early(answer: Message) -> bool:
    """Return whether the run of an answer failed before it made a tool call."""
    metadata = answer.metadata if isinstance(answer.metadata, Mapping) else {}
    return metadata.get("finishReason") == "error" and not answer.tool_calls


def missed_position(action: ContinueAnswer, message: Message) -> FoldPosition | None:
    """Return what a client has of an answer that it continues once more; None if it has all of it.

    It has the steps up to the calls that it answers, without the outputs of the calls that it approved.
    """
    answered = {answer.tool_call_id for answer in action.answers}
    claimed = answered | {output.tool_call_id for output in action.outputs}
    calls = [
        index
        for index, part in enumerate(message.parts)
        if isinstance(part, ToolPart) and part.tool_call_id in claimed
    ]
    if not calls:
        return None
    end = next_step(message.parts, calls[-1])
    is_behind = end < len(message.parts) and action.steps < count_steps(message.parts)
    unseen = tuple(
        (index, (STAGES["approval-responded"], -1))
        for index, part in enumerate(message.parts[:end])
        if isinstance(part, ToolPart) and part.tool_call_id in answered and part.state in FINAL_STATES
    )
    return START_POSITION._replace(builders=end, unfinished=unseen) if is_behind or unseen else None


def next_step(parts: Sequence[Part], start: int) -> int:
    """Return the index of the next step's start, or the number of parts."""
    steps = (index for index in range(start, len(parts)) if isinstance(parts[index], StepStartPart))
    return next(steps, len(parts))


def count_steps(parts: Sequence[Part]) -> int:
    """Return the number of steps."""
    return sum(isinstance(part, StepStartPart) for part in parts)


def awaits_client_output(message: Message) -> bool:
    """Return whether a call of a client-side tool waits for its output."""
    questions = pending_questions(message.parts)
    return any(
        part.state == "input-available" and not part.provider_executed and part.tool_call_id not in questions
        for part in message.tool_calls
    )


def encode_sorted(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")
