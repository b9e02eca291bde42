"""A2A tasks: a context is a session of the key's owner or a shared one, a task is one answer in it.

An answer that waited for a person continues in a further run. A task's id is that of the first run of its
answer; its state is that of the last one. A run of a task continues whether anybody follows it or not. A
message to a context that is busy is a task that is submitted, until the run begins that has its id.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from dragoman.agent.approval_events import pending_questions
from dragoman.errors import A2aError, BadRequest, Conflict, NotFound
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.messages import Message, ToolPart, decode
from dragoman.operations.authorization import SessionRole
from dragoman.runs.active_run import ActiveRun, StartedRun
from dragoman.runs.deduplication import StoredAnswer
from dragoman.runs.registry import RunRegistry
from dragoman.runs.requested_inputs import RequestedInputs, read_answer, read_approval_answer
from dragoman.runs.run_queue import RequestBody
from dragoman.runs.withdrawal import Decline, withdraw_answer
from dragoman.session_ids import session_id_for
from dragoman.store.hosts.queued_runs import QueuedRun, QueueStatus
from dragoman.store.runs import RunRecord, RunStatus
from dragoman.store.store import Store
from dragoman.wire.a2a.client_request import SendParams, SentMessage, SentPart, read_message
from dragoman.wire.a2a.types import (
    TERMINAL_STATES,
    A2aMessage,
    A2aTask,
    A2aTaskStatus,
    TaskState,
    message_artifacts,
    text_message,
    write_message,
)
from dragoman.wire.ui.client_request import (
    ChatRequest,
    ClientApprovalAnswer,
    ClientToolOutput,
    ContinueAnswer,
    NewMessage,
)

CANCELED = "canceled by the client"
ENDS: Mapping[RunStatus, TaskState] = {
    "running": "TASK_STATE_WORKING",
    "failed": "TASK_STATE_FAILED",
    "interrupted": "TASK_STATE_FAILED",
    "stopped": "TASK_STATE_CANCELED",
    "finished": "TASK_STATE_COMPLETED",
}
"""The state of a task by how its last run ended, unless that was with tool calls."""
PAUSED_STATES = ("TASK_STATE_CANCELED", "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_WORKING")


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A task: its id, the first and the last run of its answer, the answer and what it answers.

    `is_current`: nothing follows the answer in its session, so it can continue.
    """

    id: str
    context_id: str
    first: RunRecord
    run: RunRecord
    answer: Message
    question: Message | None
    is_current: bool

    @property
    def changed_at(self) -> float:
        """The unix time at which the task entered its state."""
        return self.run.finished_at or self.run.started_at

    @property
    def state(self) -> TaskState:
        """The state of the task."""
        if self.run.status != "finished" or self.run.finish_reason != "tool-calls":
            return ENDS[self.run.status]
        if not self.is_current:  # another message was sent instead of an answer
            return "TASK_STATE_CANCELED"
        if RequestedInputs.of_message(self.answer).waiting:
            return "TASK_STATE_INPUT_REQUIRED"
        was_answered = any(call.state == "approval-responded" for call in self.answer.tool_calls)
        return "TASK_STATE_WORKING" if was_answered else "TASK_STATE_CANCELED"


class BegunTask(msgspec.Struct, frozen=True):
    """A task and its run; None when it has ended, or waits."""

    task: TaskRecord
    run: ActiveRun | None


QUEUED_STATES: Mapping[QueueStatus, TaskState] = {
    "queued": "TASK_STATE_SUBMITTED",
    "withdrawn": "TASK_STATE_CANCELED",
    "failed": "TASK_STATE_FAILED",
}


class WaitingTask(msgspec.Struct, frozen=True):
    """A task whose message waits for its turn in its context, or has ended without it."""

    queued: QueuedRun
    context_id: str

    @property
    def state(self) -> TaskState:
        """The state of the task."""
        return QUEUED_STATES[self.queued.status]


class TaskPage(msgspec.Struct, frozen=True):
    """Tasks of a list; `next` is the last one's id where more may follow, else empty."""

    tasks: Sequence[TaskRecord]
    next: str = ""


class TaskService:
    """The tasks of one agent that a caller may see: its owner's, and those in sessions shared with it."""

    def __init__(
        self, runs: RunRegistry, store: Store, *, agent: str, caller: Identity, decline: Decline
    ) -> None:
        self._runs = runs
        self._store = store
        self._agent = agent
        self._caller = caller
        self._decline = decline

    async def begin(self, params: SendParams, *, max_part: int) -> BegunTask | WaitingTask:
        """Begin a task with a message, or let one that waits for a person continue.

        Raises A2aError for an unknown or ended task, BadRequest, TooLarge, Conflict.
        """
        sent = params.message
        message = read_message(sent, max_part=max_part)
        if sent.task_id:
            return await self._continue(sent)
        context_id = sent.context_id or new_id("ctx")
        return await self._start(context_id, NewMessage(message))

    async def wait_begun(self, task: WaitingTask) -> BegunTask | WaitingTask:
        """Wait until the run of a task begins, or the task is canceled. Raises NotFound, Unavailable."""
        with suppress(Conflict):
            return await self._to_begun(await self._runs.queue.wait_begun(task.queued))
        return await self._require_waiting(task.queued.id)

    async def _start(self, context_id: str, action: NewMessage | ContinueAnswer) -> BegunTask | WaitingTask:
        request = ChatRequest(
            session_id=context_id, action=action, agent=self._agent, when_busy="queue", background=True
        )
        started = await self._runs.start_run(request, self._caller, waits=False)
        if isinstance(started, QueuedRun):
            return self._to_waiting(started)
        return await self._to_begun(started)

    async def _to_begun(self, started: StartedRun | StoredAnswer) -> BegunTask:
        if isinstance(started, StartedRun):
            row = started.run.row
            first = await self._first_run(row)
            return BegunTask(await self._read(first, row, current=started.run.message()), started.run)
        row = await self._require_run(started.run_id)
        return BegunTask(await self._read(await self._first_run(row), row), None)

    def _to_waiting(self, queued: QueuedRun) -> WaitingTask:
        return WaitingTask(queued, session_id_for(self._caller.owner, queued.session_id))

    async def _continue(self, message: SentMessage) -> BegunTask | WaitingTask:
        task_id = message.task_id
        task = await self.find_any(task_id, role="write")
        if message.context_id and message.context_id != task.context_id:
            raise BadRequest(f"task {task_id!r} is of another context", field="message.contextId")
        if task.state in TERMINAL_STATES:
            raise A2aError(f"task {task_id!r} has ended", "UNSUPPORTED_OPERATION", hint="begin another one")
        if isinstance(task, WaitingTask) or task.state != "TASK_STATE_INPUT_REQUIRED":
            text = f"task {task_id!r} is being worked on, or is about to be, and takes no message now"
            raise A2aError(text, "UNSUPPORTED_OPERATION", hint="wait for it, or cancel it")
        action = read_inputs(message.parts, task.answer)
        if action is None:  # it keeps waiting, and its status says for what
            return BegunTask(task, None)
        return await self._start(task.context_id, action)

    async def find_any(self, id: str, *, role: SessionRole = "read") -> TaskRecord | WaitingTask:
        """Return a task that the caller may use in this role, also one that waits for its turn.

        Raises as `find`.
        """
        with suppress(NotFound):
            return await self._require_waiting(id, role=role)
        return await self.find(id, role=role)

    async def _require_waiting(self, id: str, *, role: SessionRole = "read") -> WaitingTask:
        queued = await self._store.queued_runs.get(id)
        if queued is None or msgspec.json.decode(queued.body, type=RequestBody).agent != self._agent:
            raise NotFound(f"there is no task {id!r}")
        await self._require_session(queued.session_id, id, role=role)
        return self._to_waiting(queued)

    async def find(self, id: str, *, role: SessionRole = "read") -> TaskRecord:
        """Return a task that the caller may use in this role.

        Raises A2aError, also for a task of another agent, and for one that the caller may not see;
        Forbidden when the caller has a lesser role.
        """
        try:
            row = await self._require_run(id, role=role)
        except NotFound:
            raise A2aError(f"there is no task {id!r}", "TASK_NOT_FOUND") from None
        last = await self._store.runs.get_last(row.session_id, message_id=row.message_id)
        return await self._read(row, last or row)

    async def find_own(self, id: str) -> TaskRecord:
        """Return a task of the caller's owner. Raises A2aError."""
        task = await self.find(id)
        if task.run.owner != self._caller.owner:
            raise A2aError(f"task {id!r} was begun by another owner", "UNSUPPORTED_OPERATION")
        return task

    async def active_run(self, task: TaskRecord) -> ActiveRun | None:
        """Return the run of a task that is being worked on."""
        run = await self._runs.find_begun(task.run.session_id)
        return run if run is not None and run.row.message_id == task.run.message_id else None

    async def cancel(self, id: str) -> TaskRecord | WaitingTask:
        """Cancel a task, also one that waits. Raises A2aError for one that has ended."""
        task = await self.find_any(id, role="write")
        if task.state in TERMINAL_STATES:
            raise A2aError(f"task {id!r} has ended", "TASK_NOT_CANCELABLE")
        if isinstance(task, WaitingTask):
            if await self._runs.queue.withdraw(task.queued):
                return await self._require_waiting(id)
            task = await self.find(id, role="write")  # it has begun meanwhile
        run = await self.active_run(task)
        if run is not None:  # this one: when it has ended meanwhile, the next of the context may run already
            await run.stop_and_wait(CANCELED)
        elif task.state == "TASK_STATE_INPUT_REQUIRED":
            await withdraw_answer(
                self._store, task.run, answer=task.answer, reason=CANCELED, decline=self._decline
            )
        return await self.find(id)

    async def list(self, *, context_id: str | None, before: str, limit: int) -> TaskPage:
        """Return tasks, the newest first, those behind the task `before` if it is not empty.

        Raises BadRequest for an unknown `before`.
        """
        scope, page = self._scope(await self._session_id(context_id)), await self._find_page(before)
        rows = await self._store.tasks.list_first_runs(**scope, before=page, limit=limit)
        found: dict[str, TaskRecord] = {}
        for session in dict.fromkeys(row.session_id for row in rows):  # one conversation in memory at a time
            if not await self._may_read(session):
                continue
            messages = await self._store.messages.list(session)
            for row in rows:
                if row.session_id == session:
                    last = await self._store.runs.get_last(session, message_id=row.message_id)
                    found[row.id] = await self._describe(row, last or row, messages=messages)
        tasks = [found[row.id] for row in rows if row.id in found]
        return TaskPage(tasks, rows[-1].id if len(rows) == limit else "")

    async def _find_page(self, before: str) -> RunRecord | None:
        """Return the run behind which a page begins. Raises BadRequest."""
        if not before:
            return None
        row = await self._store.runs.get(before)
        if row is None or not await self._may_read(row.session_id):
            raise BadRequest("pageToken is not one of this list", field="pageToken")
        return row

    async def _may_read(self, session_id: str) -> bool:
        sessions = self._store.sessions
        return await sessions.get_accessible(session_id, caller=self._caller) is not None

    async def count(self, context_id: str | None, *, state: str = "", since: float = 0.0) -> int:
        """Return how many tasks there are in this state, if one is named, and changed since then.

        Of those that may wait for a person, only the newest 500 are checked.
        """
        scope = self._scope(await self._session_id(context_id))
        if not state and not since:
            return await self._store.tasks.count(**scope)
        ends = await self._store.tasks.count_ends(**scope, since=since)
        if not state:
            return sum(ends.values())
        total = sum(ends[status, False] for status, ended in ENDS.items() if ended == state)
        if state not in PAUSED_STATES or not ends["finished", True]:
            return total
        paused = await self._store.tasks.list_paused(**scope, since=since)
        for session in dict.fromkeys(row.session_id for row in paused):
            messages = await self._store.messages.list(session)
            for row in [each for each in paused if each.session_id == session]:
                total += (await self._describe(row, row, messages=messages)).state == state
        return total

    def _scope(self, session_id: str | None) -> Mapping[str, Any]:
        """Return the filter of a list: everybody's tasks in a session, otherwise the caller's own."""
        owner = self._caller.owner if session_id is None else None
        return {"owner": owner, "agent": self._agent, "session_id": session_id}

    async def _session_id(self, context_id: str | None) -> str | None:
        """Return the id of a context's session; of an unknown one, an id that no session has."""
        if context_id is None:
            return None
        session = await self._store.sessions.get_accessible(context_id, caller=self._caller)
        return "" if session is None else session.id

    async def _require_run(self, id: str, *, role: SessionRole = "read") -> RunRecord:
        row = await self._store.runs.get(id)
        if row is None or row.agent != self._agent:
            raise NotFound(f"there is no task {id!r}")
        await self._require_session(row.session_id, id, role=role)
        return row

    async def _require_session(self, session_id: str, id: str, *, role: SessionRole) -> None:
        """Raise NotFound unless the caller may use the session of a task, also of one that it began itself.

        A caller who lost a grant sees nothing of the session. Raises Forbidden for a lesser role.
        """
        sessions = self._store.sessions
        if await sessions.get_accessible(session_id, caller=self._caller, role=role) is None:
            raise NotFound(f"there is no task {id!r}")

    async def _first_run(self, row: RunRecord) -> RunRecord:
        """Return the first run of the answer that a run belongs to."""
        if not row.settled_parts and row.crashes == 0:
            return row
        runs = await self._store.runs.list(row.session_id)
        return next((run for run in runs if run.message_id == row.message_id), row)

    async def _read(self, row: RunRecord, last: RunRecord, *, current: Message | None = None) -> TaskRecord:
        messages = await self._store.messages.list(row.session_id)
        return await self._describe(row, last, messages=messages, current=current)

    async def _describe(
        self,
        row: RunRecord,
        last: RunRecord,
        *,
        messages: Sequence[Message],
        current: Message | None = None,
    ) -> TaskRecord:
        at = next((index for index, each in enumerate(messages) if each.id == row.message_id), None)
        answer = Message(row.message_id, "assistant") if at is None else messages[at]
        if last.status == "running":
            current = current or await self._runs.current_message(row.session_id)
            answer = current if current is not None and current.id == answer.id else answer
        return TaskRecord(
            id=row.id,
            first=row,
            context_id=session_id_for(self._caller.owner, row.session_id),
            run=last,
            answer=answer,
            question=messages[at - 1] if at and messages[at - 1].role == "user" else None,
            is_current=at is not None and at == len(messages) - 1,
        )


def read_inputs(parts: Sequence[SentPart], answer: Message) -> ContinueAnswer | None:
    """Return the answers in a message to a task that waits; None when it has none.

    Data answers what it names, or the only request of its kind; a text answers the only question. A text is
    never an approval.
    """
    requested = RequestedInputs.of_message(answer)
    outputs: list[ClientToolOutput] = []
    answers: list[ClientApprovalAnswer] = []
    texts: list[str] = []
    for index, part in enumerate(parts):
        data = part.data
        if isinstance(data, Mapping) and "approved" in data:
            id = choose_request(data.get("approvalId"), requested.approvals, waiting=requested.waiting)
            approved, reason = read_approval_answer(data, field=f"message.parts[{index}].data")
            answers.append(requested.answer_approval(id, approved=approved, reason=reason))
        elif isinstance(data, Mapping) and "answer" in data:
            id = choose_request(data.get("questionId"), requested.questions, waiting=requested.waiting)
            text = read_answer(data, field=f"message.parts[{index}].data")
            outputs.append(requested.answer_question(id, text))
        elif isinstance(data, Mapping) and data.get("toolCallId") in requested.waiting:
            outputs.append(ClientToolOutput(str(data["toolCallId"]), data.get("output")))
        elif part.text is not None:
            texts.append(part.text)
    open_questions = [id for id in requested.questions if id in requested.waiting]
    if texts and not outputs and len(open_questions) == 1:
        outputs.append(requested.answer_question(open_questions[0], "\n".join(texts)))
    if not outputs and not answers:
        return None
    return ContinueAnswer(answer.id, tuple(outputs), tuple(answers))


def choose_request(id: Any, requests: Mapping[str, str], *, waiting: Collection[str]) -> str:
    """Return the request that an answer names, or the only one that is open. Raises BadRequest."""
    if isinstance(id, str) and id in requests:
        return id
    unanswered = [each for each in requests if each in waiting]
    if id is None and len(unanswered) == 1:
        return unanswered[0]
    raise BadRequest(
        "the answer does not say which request it is for, or the task has no such request",
        hint="the status of the task lists them",
    )


def write_task(
    task: TaskRecord | WaitingTask, *, history_length: int | None = None, with_artifacts: bool = True
) -> A2aTask:
    """Return a task as a client gets it."""
    history: tuple[A2aMessage, ...] = ()
    if isinstance(task, WaitingTask):
        return write_waiting_task(task, has_history=history_length != 0)
    if task.question is not None and history_length != 0:
        history = (write_message(task.question, context_id=task.context_id, task_id=task.id),)
    return A2aTask(
        id=task.id,
        context_id=task.context_id,
        status=task_status(task),
        artifacts=message_artifacts(task.answer.parts) if with_artifacts else (),
        history=history,
        metadata=task_metadata(task),
    )


def write_waiting_task(task: WaitingTask, *, has_history: bool) -> A2aTask:
    """Return a task that waits for its turn as a client gets it."""
    queued = task.queued
    message: A2aMessage | msgspec.UnsetType = msgspec.UNSET
    if task.state == "TASK_STATE_FAILED":
        message = text_message(queued.error or "it could not be answered", id=f"{queued.id}-status")
    question = decode(bytes(msgspec.json.decode(queued.body, type=RequestBody).message))
    history = (write_message(question, context_id=task.context_id, task_id=queued.id),)
    time = write_time(queued.ended_at or queued.created_at)
    return A2aTask(
        id=queued.id,
        context_id=task.context_id,
        status=A2aTaskStatus(state=task.state, message=message, timestamp=time),
        history=history if has_history else (),
    )


def task_status(task: TaskRecord) -> A2aTaskStatus:
    """Return the state of a task, with what it waits for or why it failed."""
    state = task.state
    message: A2aMessage | msgspec.UnsetType = msgspec.UNSET
    id = f"{task.run.id}-status"
    if state == "TASK_STATE_INPUT_REQUIRED":
        requests = open_requests(task.answer)
        text = "\n".join(str(request["text"]) for request in requests)
        message = text_message(text, id=id, data={"requests": requests})
    elif state == "TASK_STATE_FAILED":
        message = text_message(task.run.error or "the answer was interrupted", id=id)
    return A2aTaskStatus(state=state, message=message, timestamp=write_time(task.changed_at))


def open_requests(answer: Message) -> list[dict[str, Any]]:
    """Return what an answer waits for: approvals, questions, outputs of client-side tools."""
    requested = RequestedInputs.of_message(answer)
    calls = {call.tool_call_id: call for call in answer.tool_calls}
    questions = {str(part.id): part.data for part in pending_questions(answer.parts).values()}
    requests: list[dict[str, Any]] = []
    for id in sorted(requested.waiting):
        if id in questions:
            data = questions[id]
            requests.append({"questionId": id, "text": data["text"], "options": data.get("options", [])})
        elif id in requested.approvals:
            call = describe_call(calls[requested.approvals[id]])
            text = f"{call['tool']} needs an approval: answer with data {{approved, approvalId}}"
            requests.append({"approvalId": id, "text": text, **call})
        else:
            call = describe_call(calls[id])
            text = f"{call['tool']} runs at the client: answer with data {{toolCallId, output}}"
            requests.append({"toolCallId": id, "text": text, **call})
    return requests


def describe_call(call: ToolPart) -> dict[str, Any]:
    """Return the tool and the input of a call."""
    return {"tool": call.name, "input": None if call.input is msgspec.UNSET else call.input}


def task_metadata(task: TaskRecord) -> dict[str, Any]:
    """Return usage and cost of an answer, as far as they are known."""
    metadata = task.answer.metadata if isinstance(task.answer.metadata, Mapping) else {}
    return {name: metadata[name] for name in ("usage", "cost", "finishReason") if name in metadata}


def write_time(seconds: float) -> str:
    """Return a time as A2A writes it."""
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")
