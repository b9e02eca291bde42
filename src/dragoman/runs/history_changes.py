"""What a chat request does to the stored session: which messages go, which are added, which one grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman import events as e
from dragoman.agent.approval_events import (
    WITHDRAWN,
    ApprovalAnswer,
    decline_requests,
    pending_questions,
    response_event,
)
from dragoman.agent.restoration import RestoredAnswer
from dragoman.agent.spec import AgentSpec
from dragoman.errors import BadRequest, Conflict, NotFound
from dragoman.messages import FINAL_STATES, DataPart, Message, Part, ToolPart
from dragoman.operations.approval import MAX_ANSWER_LENGTH, validate_answer, validate_reason
from dragoman.operations.budget import Budget
from dragoman.operations.execution import is_meta_call
from dragoman.runs.deduplication import has_same_content, missed_position
from dragoman.store.runs import RunRecord
from dragoman.store.store import Store
from dragoman.wire.ui.client_request import (
    ChatAction,
    ClientApprovalAnswer,
    ClientToolOutput,
    ContinueAnswer,
    EditMessage,
    NewMessage,
    RegenerateAnswer,
)


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run starts with: `drop_from` and all after it stay behind in an earlier branch, `user` is added,
    `assistant` grows.

    `input_events` are the front end's outputs and answers, checked against the stored session. `is_stored`
    is False for a sub-agent: its messages are in no session and cannot be searched. `withdrawn` are approval
    requests and questions that the request passes over, `declined` the earlier messages that show them so.
    `restored` is `assistant` as it continues after a crash.
    """

    history: Sequence[Message]
    assistant: Message
    user: Message | None = None
    drop_from: str | None = None
    input_events: Sequence[e.Event] = ()
    is_stored: bool = True
    withdrawn: Sequence[str] = ()
    declined: Sequence[Message] = ()
    restored: RestoredAnswer | None = None


def make_plan(turn: ChatAction, stored: Sequence[Message], *, new_id: str) -> RunPlan:
    """Return the plan of a request. Raises NotFound and Conflict when it does not match the stored
    session.
    """
    if isinstance(turn, NewMessage | EditMessage):
        run_plan = _answer_message(turn.message, stored, new_id=new_id)
    elif isinstance(turn, RegenerateAnswer):
        run_plan = _regenerate(turn.message, stored, new_id=new_id)
    else:
        run_plan = _continue(turn, stored)
    withdrawn, declined = _withdraw_requests(stored, growing=run_plan.assistant.id)
    if not withdrawn:
        return run_plan
    history = [declined.get(message.id, message) for message in run_plan.history]
    return replace(run_plan, history=history, withdrawn=withdrawn, declined=list(declined.values()))


def plan_after_crash(answer: RestoredAnswer, stored: Sequence[Message]) -> RunPlan:
    """Return the plan of a run that continues after a crash, from its answer."""
    history = [message for message in stored if message.id != answer.message.id]
    return RunPlan(history=history, assistant=answer.message, restored=answer)


def _withdraw_requests(stored: Sequence[Message], *, growing: str) -> tuple[list[str], Mapping[str, Message]]:
    """Decline the requests that wait in other messages than the one that grows.

    Return their ids, and the messages that changed by their ids.
    """
    declined: dict[str, Message] = {}
    withdrawn: list[str] = []
    for message in stored:
        if message.role == "assistant" and message.id != growing and may_wait(message):
            changed, ids = decline_requests(message, WITHDRAWN)
            withdrawn += ids
            declined |= {message.id: changed} if ids else {}
    return withdrawn, declined


def may_wait(message: Message) -> bool:
    """Return whether a message has calls or questions: most have none, and a session has many messages."""
    return any(isinstance(part, ToolPart | DataPart) for part in message.parts)


def _answer_message(message: Message, stored: Sequence[Message], *, new_id: str) -> RunPlan:
    at = _message_index(stored, message.id)
    if at is not None and has_same_content(stored[at], message):
        return _regenerate(message, stored, new_id=new_id)
    before = stored if at is None else stored[:at]
    return RunPlan(
        history=(*before, message),
        assistant=Message(id=new_id, role="assistant"),
        user=message,
        drop_from=None if at is None else message.id,
    )


def _regenerate(message: Message, stored: Sequence[Message], *, new_id: str) -> RunPlan:
    at = _message_index(stored, message.id)
    if at is None:
        return _answer_message(message, stored, new_id=new_id)
    after = stored[at + 1].id if at + 1 < len(stored) else None
    return RunPlan(history=stored[: at + 1], assistant=Message(id=new_id, role="assistant"), drop_from=after)


def _continue(turn: ContinueAnswer, stored: Sequence[Message]) -> RunPlan:
    at = _message_index(stored, turn.message_id)
    if at is None:
        raise NotFound(
            f"there is no message {turn.message_id!r} in the session",
            hint="reload the session from /messages",
        )
    if at != len(stored) - 1 or stored[at].role != "assistant":
        raise Conflict(
            f"message {turn.message_id!r} is not the last answer of the session and cannot be continued"
        )
    events = new_inputs(turn, stored[at].parts)
    if not events:
        _check_continuable(turn, stored[at])
    return RunPlan(history=stored[:at], assistant=stored[at], input_events=events)


def new_inputs(turn: ContinueAnswer, parts: Sequence[Part]) -> list[e.Event]:
    """Return the events of the outputs and answers that the message does not have yet. Raises Conflict."""
    outputs = [_output_event(item, parts) for item in turn.outputs]
    answers = [_approval_event(item, parts) for item in turn.answers]
    return [event for event in (*answers, *outputs) if event is not None]


def _check_continuable(turn: ContinueAnswer, message: Message) -> None:
    """Raise Conflict when a waiting message gets no answer, or was answered differently before."""
    calls = [part for part in message.parts if isinstance(part, ToolPart) and not part.provider_executed]
    waiting = [call.name for call in calls if call.state in ("input-available", "approval-requested")]
    if waiting:
        raise Conflict(f"message {message.id!r} waits for an answer to {', '.join(waiting)}")
    metadata = message.metadata if isinstance(message.metadata, Mapping) else {}
    if metadata.get("finishReason") == "stop" or missed_position(turn, message) is not None:
        raise Conflict(
            f"message {message.id!r} was answered already and has continued",
            hint="reload the session from /messages",
        )


def is_repeat(turn: ContinueAnswer, message: Message) -> bool:
    """Return whether the request claims only outputs and answers that the message has, and nothing waits."""
    calls = [part for part in message.tool_calls if not part.provider_executed]
    waits = any(call.state in ("input-available", "approval-requested") for call in calls)
    return not waits and not new_inputs(turn, message.parts) and not _differs(turn, calls)


def _differs(turn: ContinueAnswer, calls: Sequence[ToolPart]) -> bool:
    """Return whether the request claims other outputs or answers than those stored."""
    outputs = {call.tool_call_id: (call.output, call.error_text) for call in calls}
    approved = {call.approval.id: call.approval.approved for call in calls if call.approval is not None}
    claimed = any(
        outputs.get(item.tool_call_id) != (UNSET if item.error_text else item.output, item.error_text)
        for item in turn.outputs
    )
    return claimed or any(approved.get(item.approval_id) != item.approved for item in turn.answers)


def _output_event(output: ClientToolOutput, parts: Sequence[Part]) -> e.Event | None:
    call = _find_call(output.tool_call_id, parts)
    if call is None:
        raise Conflict(f"there is no tool call {output.tool_call_id!r}")
    question = pending_questions(parts).get(output.tool_call_id)
    if question is not None and question.id is not None:
        return response_event(_question_answer(output, question.id), parts)
    if call.state in FINAL_STATES or call.provider_executed:
        return None
    if call.state != "input-available":
        raise Conflict(f"the tool call {output.tool_call_id!r} waits for an approval, not for an output")
    if output.error_text is not None:
        return e.ToolOutputError(output.tool_call_id, output.error_text)
    return e.ToolOutputAvailable(output.tool_call_id, output.output)


def _question_answer(output: ClientToolOutput, id: str) -> ApprovalAnswer:
    """Return the answer to a question that a front end submits as the call's output."""
    if output.error_text is not None:
        return ApprovalAnswer(id, approved=False, text=output.error_text[:MAX_ANSWER_LENGTH])
    answer = (
        output.output.get("answer", output.output) if isinstance(output.output, Mapping) else output.output
    )
    if answer is None:
        raise BadRequest(
            f"the output of {output.tool_call_id!r} is not an answer", hint="to decline, send errorText"
        )
    text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
    return ApprovalAnswer(id, approved=True, text=validate_answer(text))


def _approval_event(answer: ClientApprovalAnswer, parts: Sequence[Part]) -> e.Event | None:
    call = _find_call(answer.tool_call_id, parts)
    question = pending_questions(parts).get(answer.tool_call_id)
    reason = validate_reason(answer.reason)
    if question is not None and question.id == answer.approval_id:
        return response_event(ApprovalAnswer(answer.approval_id, answer.approved, reason), parts)
    if call is None or call.approval is None or call.approval.id != answer.approval_id:
        raise Conflict(f"there is no approval {answer.approval_id!r} for this call in the session")
    if call.state != "approval-requested":
        return None
    return e.ToolApprovalResponse(answer.approval_id, answer.approved, reason)


def _find_call(id: str, parts: Sequence[Part]) -> ToolPart | None:
    return next((part for part in parts if isinstance(part, ToolPart) and part.tool_call_id == id), None)


def _message_index(stored: Sequence[Message], message_id: str) -> int | None:
    return next((index for index, message in enumerate(stored) if message.id == message_id), None)


async def remaining_budget(
    agent: AgentSpec, answer: Message, *, row: RunRecord, store: Store, is_new: bool = False
) -> Budget | None:
    """Return the budget of an answer, less what its runs have spent so far; None without limits.

    The cost of model calls is that of the usage records, or of the message if that is higher. The calls that
    the request of this run allows are within those of the answer.
    """
    budget = await _answer_budget(agent, answer, session_id=row.session_id, store=store, is_new=is_new)
    if row.max_tool_calls is None:
        return budget
    budget = Budget(calls=row.max_tool_calls, parent=budget, name=f"run:{row.id}")
    budget.calls_made = 0 if is_new else await _count_calls(row.id, store)
    return budget


async def _count_calls(run_id: str, store: Store) -> int:
    """Return how many calls a run has made."""
    calls = [call for call in await store.calls.list_for_run(run_id) if not is_meta_call(call.record)]
    return sum(call.status != "pending" for call in calls)


async def _answer_budget(
    agent: AgentSpec, answer: Message, *, session_id: str, store: Store, is_new: bool
) -> Budget | None:
    if agent.max_usd is None and agent.max_calls is None:
        return None
    budget = Budget(usd=agent.max_usd, calls=agent.max_calls, name=f"answer:{session_id}/{answer.id}")
    if is_new:
        return budget
    for run in await store.runs.list(session_id):
        if run.message_id == answer.id:
            budget.spent += (await store.usage.totals(run_id=run.id)).cost or 0.0
            budget.calls_made += await _count_calls(run.id, store)
    stored_cost = answer.metadata.get("cost") if isinstance(answer.metadata, Mapping) else None
    if isinstance(stored_cost, int | float):
        budget.spent = max(budget.spent, float(stored_cost))
    return budget
