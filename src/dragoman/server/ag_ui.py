"""HTTP handlers of AG-UI: `POST /agui/{agent}` is a chat request in another dialect.

A thread is a session of the key's owner, or one that is shared with it. The history that a client sends is
not trusted: its results of front-end tools and its answers to interrupts count only for calls and requests
that wait in the hub's own record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from dragoman.errors import Conflict, NotFound
from dragoman.http.asgi_exchange import Exchange, header_value
from dragoman.identity import Identity
from dragoman.large_json import weigh
from dragoman.messages import Message
from dragoman.offload import offload
from dragoman.runs.deduplication import StoredAnswer
from dragoman.runs.registry import RunRegistry
from dragoman.runs.requested_inputs import RequestedInputs, read_answer, read_approval_answer
from dragoman.server.chat import ChatSettings, read_chat_body, send_stored_answer
from dragoman.server.sessions.grant_revocation import SharedAccess
from dragoman.server.streaming import stream_run
from dragoman.store.store import Store
from dragoman.wire.ag_ui.client_request import (
    AgUiRequest,
    InterruptAnswer,
    parse_ag_ui_request,
    with_state,
    without_context,
)
from dragoman.wire.ag_ui.encoder import AgUiStreamEncoder, ResponseIds
from dragoman.wire.ui.client_request import (
    ChatAction,
    ChatRequest,
    ClientApprovalAnswer,
    ClientToolOutput,
    ContinueAnswer,
    NewMessage,
    RegenerateAnswer,
)

BLOCK_NUMBER = re.compile(r"([0-9]{1,6})r?")  # behind the id of the message, see `AgUiStreamEncoder`


class AgUiHandlers:
    """Handlers of `/agui/{agent}`."""

    def __init__(
        self, runs: RunRegistry, store: Store, *, settings: ChatSettings, access: SharedAccess
    ) -> None:
        self._runs = runs
        self._store = store
        self._access = access
        self._settings = settings

    async def post(self, exchange: Exchange) -> None:
        """Run the agent on the thread's new message, tool results or answers, and stream its events."""
        agent = exchange.path_params["agent"]
        spec = self._runs.agents.agents.get(agent)
        if spec is None:
            raise NotFound(f"there is no agent {agent!r}")
        raw = await read_chat_body(exchange, self._settings)
        parse = partial(
            parse_ag_ui_request,
            raw,
            max_part=self._settings.part,
            max_values=exchange.body_limits.max_values,
        )
        request = await offload(weigh(raw), parse)
        stored = await self._stored_messages(request.thread_id, caller=exchange.identity)
        if request.message is not None:
            message = with_state(request.message, request.state, stored=stored)
            request = msgspec.structs.replace(request, message=message)
        client_tools = {tool.name for tool in (*spec.client_tools, *request.tools)}
        chat = ChatRequest(
            session_id=request.thread_id,
            action=choose_action(request, stored, client_tools=client_tools),
            agent=agent,
            tools=request.tools,
        )
        started = await self._runs.start_run(chat, exchange.identity)
        if isinstance(started, StoredAnswer):
            dialect = encoder_for(request, chat.action, run_id=started.run_id, message_id=started.message.id)
            await send_stored_answer(exchange, started, dialect=dialect, session_id=request.thread_id)
            return
        row = started.run.row
        dialect = encoder_for(request, chat.action, run_id=row.id, message_id=row.message_id)
        headers = {"x-dragoman-session": header_value(request.thread_id), "x-dragoman-run": row.id}
        keep_alive = self._settings.keep_alive
        with self._access.track_id(request.thread_id, exchange):
            await stream_run(
                exchange, started.follow(), dialect=dialect, keep_alive=keep_alive, headers=headers
            )

    async def _stored_messages(self, thread_id: str, *, caller: Identity) -> Sequence[Message]:
        session = await self._store.sessions.get_accessible(thread_id, caller=caller, role="write")
        if session is None:
            return ()
        stored = await self._store.messages.list(session.id)
        current = await self._runs.current_message(session.id)
        if current is None:
            return stored
        return [current if message.id == current.id else message for message in stored]


def encoder_for(
    request: AgUiRequest, action: ChatAction, *, run_id: str, message_id: str
) -> AgUiStreamEncoder:
    """Return the encoder of a response. One that continues a message does not repeat the ids of its texts."""
    first = last_block(request.received.texts, message_id) if isinstance(action, ContinueAnswer) else 0
    response = ResponseIds(
        thread_id=request.thread_id,
        run_id=request.run_id,
        hub_run_id=run_id,
        message_id=message_id,
        first_block=first,
    )
    return AgUiStreamEncoder(response, received=request.received)


def last_block(ids: Iterable[str], message_id: str) -> int:
    """Return the highest number of a text or a reasoning of a message that a client has; 0 for none.

    A client may leave out some of them, such as the reasonings.
    """
    numbers = (BLOCK_NUMBER.fullmatch(id.removeprefix(f"{message_id}-")) for id in ids)
    return max((int(number[1]) for number in numbers if number is not None), default=0)


def choose_action(request: AgUiRequest, stored: Sequence[Message], *, client_tools: set[str]) -> ChatAction:
    """Return the action of a request: continue the last answer, or answer the last user message.

    Raises Conflict when it answers something that was not asked, BadRequest.
    """
    last = stored[-1] if stored and stored[-1].role == "assistant" else None
    if request.answers and last is None:
        raise unknown_interrupt(request.answers[0])
    if last is not None:
        outputs = known_outputs(request.outputs, last, client_tools=client_tools)
        if outputs or request.answers:
            return continue_answer(last, outputs, interrupts=request.answers)
    if request.message is None:
        raise unknown_interrupt(request.answers[0])
    message = as_stored(request.message, stored)
    return RegenerateAnswer(message) if request.regenerate else NewMessage(message)


def known_outputs(
    outputs: Sequence[ClientToolOutput], answer: Message, *, client_tools: set[str]
) -> tuple[ClientToolOutput, ...]:
    """Return those outputs that are of calls of client-side tools in the stored answer."""
    calls = {call.tool_call_id for call in answer.tool_calls if call.name in client_tools}
    return tuple(output for output in outputs if output.tool_call_id in calls)


def continue_answer(
    answer: Message, outputs: Sequence[ClientToolOutput], *, interrupts: Sequence[InterruptAnswer]
) -> ContinueAnswer:
    """Return the continuation of an answer. Raises Conflict for an unknown interrupt, BadRequest."""
    requested = RequestedInputs.of_message(answer)
    all_outputs = list(outputs)
    answers: list[ClientApprovalAnswer] = []
    for index, interrupt in enumerate(interrupts):
        field, id = f"resume[{index}].payload", interrupt.interrupt_id
        if id in requested.questions:
            text = read_answer(interrupt.payload, field=field) if interrupt.is_resolved else None
            all_outputs.append(requested.answer_question(id, text))
        elif id in requested.approvals:
            approved, reason = False, None
            if interrupt.is_resolved:
                approved, reason = read_approval_answer(interrupt.payload, field=field)
            answers.append(requested.answer_approval(id, approved=approved, reason=reason))
        else:
            raise unknown_interrupt(interrupt)
    return ContinueAnswer(answer.id, tuple(all_outputs), tuple(answers))


def unknown_interrupt(interrupt: InterruptAnswer) -> Conflict:
    """Return the error of an answer to an unknown interrupt."""
    text = f"there is no interrupt {interrupt.interrupt_id!r:.100} in the last answer of this thread"
    return Conflict(text, hint="reload the thread")


def as_stored(message: Message, stored: Sequence[Message]) -> Message:
    """Return the message as the session has it, if they differ only in the context that the app adds."""
    same = next((each for each in stored if each.id == message.id), None)
    if same is not None and same.role == "user" and without_context(same) == without_context(message):
        return same
    return message
