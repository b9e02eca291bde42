"""The inputs of a run: its request, its row, its deadline, and the answers that came with it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from dragoman.agent.approval_events import (
    WITHDRAWN,
    ApprovalAnswer,
    decline_requests,
    pending_questions,
    question_answer,
    response_event,
    stored_answer,
)
from dragoman.agent.spec import AgentSpec
from dragoman.agent.tools.toolbox import Toolbox
from dragoman.errors import Conflict, DragomanError, Forbidden, NotFound, Unauthorized
from dragoman.events import Event, Start, ToolApprovalResponse
from dragoman.fold import fold
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.messages import Message, ToolPart, encode_part, messages_size
from dragoman.offload import offload
from dragoman.operations.approval import ApprovalRequest
from dragoman.operations.context import Context
from dragoman.operations.worker_threads import wait_done
from dragoman.runs.active_run import ActiveRun
from dragoman.runs.crash_recovery import CutOffRun
from dragoman.runs.deduplication import awaits_client_output, missed_position
from dragoman.runs.history_changes import RunPlan, is_repeat, make_plan, plan_after_crash
from dragoman.store import runs as rows
from dragoman.store.hosts.queued_runs import QueuedRun
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.store.teams.task_records import TeamTask
from dragoman.unfold import FoldPosition
from dragoman.wire.ui.client_request import ChatAction, ChatRequest, ClientApprovalAnswer, ContinueAnswer

TITLE_LENGTH = 60
CLIENT_TOOL_WAIT = 60.0  # seconds that a message waits for the output of a client's tool
RESUME_WAIT = 60.0  # seconds that it waits for an answered run to resume, which fails if its key is gone
QUEUE_WAIT = 5.0  # seconds that a viewer waits for an answer that was approved and is queued
log = logging.getLogger(__name__)


def continuation(row: rows.RunRecord, *, answers: tuple[ClientApprovalAnswer, ...] = ()) -> ChatRequest:
    """Return the request by which the answer of a run continues, with the run's agent, model and tools."""
    return ChatRequest(
        session_id=row.session_id,
        action=ContinueAnswer(row.message_id, answers=answers),
        model=row.model,
        agent=row.agent,
        tools=row.tools,
        background=row.background,
        webhook=row.webhook,
        compact_threshold=row.compact_threshold,
        max_tool_calls=row.max_tool_calls,
        output_format=row.output_format,
    )


def new_session(request: ChatRequest, *, owner: str, now: float) -> Session:
    """Return the session that a request begins."""
    action = request.action
    message = None if isinstance(action, ContinueAnswer) else action.message
    title = None if message is None else first_words(message.text)
    return Session(id=request.session_id, owner=owner, title=title, created_at=now, updated_at=now)


def first_words(text: str) -> str | None:
    """Return a title made of the first words of a text; None when it has none."""
    words = " ".join(text[: 10 * TITLE_LENGTH].split())
    if len(words) <= TITLE_LENGTH:
        return words or None
    start, _, _ = words[: TITLE_LENGTH + 1].rpartition(" ")
    return f"{start or words[:TITLE_LENGTH]}…"


def new_row(
    request: ChatRequest, run_plan: RunPlan, *, agent: AgentSpec, identity: Identity, now: float
) -> rows.RunRecord:
    """Return the row of a new run, with all that it needs to continue after a crash."""
    return rows.RunRecord(
        id=request.queued_id or new_id("run"),
        session_id=request.session_id,
        message_id=run_plan.assistant.id,
        owner=identity.owner,
        started_at=now,
        agent=agent.name,
        model=agent.model,
        key_id=identity.key_id,
        tools=request.tools,
        settled_parts=len(with_inputs(run_plan).parts),
        background=request.background,
        webhook=request.webhook,
        compact_threshold=request.compact_threshold,
        max_tool_calls=request.max_tool_calls,
        output_format=request.output_format,
    )


async def find_requester(
    store: Store, row: rows.RunRecord | QueuedRun | TeamTask, *, key_id: str | None, owner: str
) -> Identity:
    """Return the identity that a run continues for. Raises Unauthorized, Forbidden."""
    if key_id is None:
        return Identity(owner=owner)
    key = await store.keys.get(key_id)
    if key is None or not key.is_valid(time.time()):
        raise Unauthorized(f"The key {key_id!r} of run {row.id} has expired or was revoked.")
    if not key.identity.may("chat"):
        raise Forbidden(f"The key {key_id!r} of run {row.id} may no longer chat.")
    return key.identity


async def find_answerer(store: Store, action: ChatAction, *, session_id: str, caller: Identity) -> Identity:
    """Return the identity that a run continues for: in a shared session, the one who began the answer.

    The answers to approvals are those of the caller. Raises Forbidden, Unauthorized.
    """
    if not isinstance(action, ContinueAnswer):
        return caller
    row = await store.runs.get_last(session_id, message_id=action.message_id)
    if row is None or row.owner == caller.owner:
        return caller
    for answer in action.answers:
        with suppress(Conflict, NotFound):  # it was answered before
            await store.approvals.answer(
                answer.approval_id, approved=answer.approved, by=caller, reason=answer.reason
            )
    return await find_requester(store, row, key_id=row.key_id, owner=row.owner)


def deadline(agent: AgentSpec, row: rows.RunRecord) -> float | None:
    """Return the run's deadline on the event loop's clock. A crash does not extend it."""
    if agent.timeout is None:
        return None
    passed = max(0.0, time.time() - row.started_at)  # the clock may have been set back
    return asyncio.get_running_loop().time() + agent.timeout - passed


def continued_position(action: ContinueAnswer, run: ActiveRun) -> FoldPosition | None:
    """Return what a client has of an answer that continues after a crash, if its request began that run.

    The run itself no longer knows for which request it was begun.
    """
    message = run.message()
    if run.action_hash is not None or action.message_id != message.id or not is_repeat(action, message):
        return None
    return missed_position(action, message)


def is_waiting_for(message: Message, approval: ApprovalRequest) -> bool:
    """Return whether a call of the message has this approval request, unanswered."""
    if any(part.id == approval.id for part in pending_questions(message.parts).values()):
        return True
    calls = [part for part in message.parts if isinstance(part, ToolPart)]
    waiting = [call.approval for call in calls if call.state == "approval-requested"]
    return any(request is not None and request.id == approval.id for request in waiting)


async def is_answer_queued(store: Store, session_id: str) -> bool:
    """Return whether an approval of the session's answer was just answered, and its turn is queued."""
    row = await store.runs.get_last(session_id)
    message = None if row is None else await store.messages.get(session_id, row.message_id)
    if row is None or message is None:
        return False
    since = time.time() - QUEUE_WAIT
    approvals = await store.approvals.list_for_run(session_id, row.id)
    return any((each.answered_at or 0.0) > since and is_waiting_for(message, each) for each in approvals)


async def awaits_answer(store: Store, session_id: str, *, now: float) -> bool:
    """Return whether the session's last answer waits for a person or a client's tool, or resumes soon."""
    row = await store.runs.get_last(session_id)
    if row is None or row.finish_reason != "tool-calls":
        return False
    message = await store.messages.get(row.session_id, row.message_id)
    if message is None or not is_waiting(message):
        return False
    _, requests = decline_requests(message, WITHDRAWN)
    if not requests:
        return now < (row.finished_at or 0.0) + CLIENT_TOOL_WAIT
    for id in requests:
        if await is_open(store, id, now=now):
            return True
    return False


async def is_open(store: Store, request_id: str, *, now: float) -> bool:
    """Return whether a request is unanswered, or was answered so recently that its run may still begin."""
    try:
        request = await store.approvals.get(request_id)
    except NotFound:
        return False
    settled_at = request.expires_at if request.answered_at is None else request.answered_at
    return request.status == "pending" or now < settled_at + RESUME_WAIT


def is_waiting(message: Message) -> bool:
    """Return whether an answer waits for an approval, an answer to a question, or a client's tool."""
    return (
        bool(pending_questions(message.parts))
        or awaits_client_output(message)
        or any(call.state == "approval-requested" for call in message.tool_calls)
    )


def with_inputs(run_plan: RunPlan) -> Message:
    """Return the message that a run continues with the front end's outputs and answers in it.

    They are stored with the run's row: once a client knows that its run has begun, a crash cannot lose them.
    """
    message = run_plan.assistant
    return fold(message, [Start(message.id), *run_plan.input_events]) if run_plan.input_events else message


async def store_answers(run_plan: RunPlan, toolbox: Toolbox, *, by: Identity) -> Sequence[Event]:
    """Store the answers among the inputs of a plan; return the inputs with the answers that stand."""
    return [await record_answer(event, run_plan, toolbox=toolbox, by=by) for event in run_plan.input_events]


async def record_answer(event: Event, run_plan: RunPlan, *, toolbox: Toolbox, by: Identity) -> Event:
    """Store an answer in an event, and return the event with the answer that stands: an earlier one wins."""
    question = question_answer(event)
    if question is not None:
        answer = question[1]
    elif isinstance(event, ToolApprovalResponse):
        answer = ApprovalAnswer(event.approval_id, event.approved, event.reason)
    else:
        return event
    stored = await toolbox.answer_approval(answer.id, approved=answer.approved, by=by, reason=answer.text)
    return response_event(stored_answer(stored), run_plan.assistant.parts)


async def wait_stored(storing: asyncio.Future[None]) -> None:
    """Wait until a run is stored. A cancellation meanwhile takes effect when the caller waits next.

    Cancelling would not stop the database's write, and would leave a stored run that nobody drives.
    """
    task, is_cancelled = asyncio.current_task(), False
    while not storing.done():
        try:
            await wait_done(storing)
        except asyncio.CancelledError:
            is_cancelled = True
            if task is not None:
                task.uncancel()
    if is_cancelled and task is not None:
        task.cancel()
    storing.result()


async def withdraw_requests(run_plan: RunPlan, context: Context, *, toolbox: Toolbox, store: Store) -> None:
    """Decline the requests that the run passes over: in the store, and in the messages that show them."""
    by = replace(context.identity, scopes=frozenset({"admin"}))  # also requests that only others may answer
    session_id = context.session_id or ""
    try:
        for approval_id in run_plan.withdrawn:
            with suppress(NotFound):
                await toolbox.answer_approval(approval_id, approved=False, by=by, reason=WITHDRAWN)
        for message in run_plan.declined:
            parts = [(index, encode_part(part)) for index, part in enumerate(message.parts)]
            await store.write(store.messages.write_parts_job(session_id, message.id, changed=parts))
    except DragomanError:
        log.exception("could not withdraw the approval requests that session %s passes over", session_id)


async def plan_run(
    request: ChatRequest,
    stored: Sequence[Message],
    *,
    agent: AgentSpec,
    identity: Identity,
    cut_off: CutOffRun | None,
) -> tuple[RunPlan, rows.RunRecord]:
    """Return the plan and the row of a run. Raises NotFound, Conflict."""
    if cut_off is not None:
        return plan_after_crash(cut_off.answer, stored), cut_off.row

    def plan() -> tuple[RunPlan, rows.RunRecord]:
        run_plan = make_plan(request.action, stored, new_id=new_id("msg"))
        return run_plan, new_row(request, run_plan, agent=agent, identity=identity, now=time.time())

    return await offload(messages_size(stored), plan)


class StoredSession(NamedTuple):
    """A session as it is before a run begins, with the messages of its active branch if they were read."""

    row: Session
    messages: Sequence[Message] | None = None


async def find_writable_session(store: Store, session_id: str, *, identity: Identity) -> Session:
    """Return a session that the caller may still write to. Raises NotFound, Forbidden."""
    session = await store.sessions.get_own(session_id, owner=identity.owner)
    if session is None:
        session = await store.sessions.get_shared(session_id, caller=identity, role="write")
    if session is None:
        raise NotFound("the session of this message is gone, or is no longer shared with its sender")
    return session
