"""Agents of the hub as models of the Responses API: `agent/NAME`.

A chain of responses is a session, and a response is a run in it. What a client says of its history is not
trusted: only what follows the last item that the hub made is new. A request that continues an earlier
response of the chain goes on in a fork of the session.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    NotFound,
    ResponseNotFound,
    UnknownPreviousResponse,
)
from dragoman.events import Event, ToolInputAvailable, ToolInputStart
from dragoman.http.disconnect import DisconnectWatch
from dragoman.http.exchange import Exchange
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.messages import Message, Part, ToolPart
from dragoman.offload import offload
from dragoman.runs.active_run import StartedRun
from dragoman.runs.forks import fork_session
from dragoman.runs.registry import RunRegistry
from dragoman.runs.repeats import StoredAnswer
from dragoman.runs.waiting import RequestedInputs
from dragoman.server.gateway.headers import header_value, request_id_headers
from dragoman.server.gateway.responses.recorder import ResponseRecorder
from dragoman.server.gateway.responses.state import RequestState, ResponseStates, read_state
from dragoman.server.streaming import stream_run
from dragoman.store.responses import StoredResponse
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.wire.client_request import RawRequestBody
from dragoman.wire.responses.client_request import ResponsesRequest, parse_responses_request
from dragoman.wire.responses.encoder import ResponseHead, ResponsesStreamEncoder
from dragoman.wire.ui.client_request import (
    ChatAction,
    ChatRequest,
    ClientApprovalAnswer,
    ClientToolOutput,
    ContinueAnswer,
    NewMessage,
)

PREFIX = "agent/"
_OWN_ITEM = re.compile(r"(?:msg|rs|fc|ctc|mcp|ig)_([\w-]{18})\d{4}")  # the id of an item that the hub made
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_ANSWER = "mcp_approval_response"
_encode = msgspec.json.Encoder().encode


class AgentRequested(Exception):
    """A request is for an agent, not for a model."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.body = body


class AgentTurn(msgspec.Struct, rename={"message_id": "messageId"}):
    """Where the answer of a response is: the field `dragoman` of the response object."""

    session: str
    message_id: str


class AgentResponse(msgspec.Struct):
    """The field of a response object that tells its turn; None if a model has answered."""

    dragoman: AgentTurn | None = None


class PreviousResponse(msgspec.Struct, frozen=True):
    """The response that a request continues."""

    stored: StoredResponse
    turn: AgentTurn


class AgentInput(msgspec.Struct, frozen=True, kw_only=True):
    """What is new in a request: a message of the user, or what an answer waits for."""

    state: RequestState
    parsed: ResponsesRequest
    outputs: Sequence[Mapping[str, Any]]
    answers: Sequence[Mapping[str, Any]]


def require_model(body: bytes) -> bytes:
    """Return the body of a request for a model. Raises AgentRequested for one for an agent, BadRequest."""
    if RawRequestBody(body).model.startswith(PREFIX):
        raise AgentRequested(body)
    return body


class AgentEncoder(ResponsesStreamEncoder):
    """Encodes a response that continues an answer: approved calls are shown with their output."""

    def __init__(self, head: ResponseHead, *, approved: Sequence[ToolPart]) -> None:
        super().__init__(head)
        self._approved = approved

    def encode(self, batch: Sequence[Event]) -> bytes:
        """See `ResponsesStreamEncoder`."""
        calls, self._approved = self._approved, ()
        events: list[Event] = []
        for call in calls:
            events.append(ToolInputStart(call.tool_call_id, call.name))
            events.append(ToolInputAvailable(call.tool_call_id, call.name, call.input))
        return super().encode([*events, *batch])


class AgentResponses:
    """Creates responses of agents."""

    def __init__(self, runs: RunRegistry, store: Store, *, states: ResponseStates, keep_alive: float) -> None:
        self._runs = runs
        self._store = store
        self._states = states
        self._keep_alive = keep_alive

    async def create(self, exchange: Exchange, body: bytes) -> None:
        """Run the agent on what is new in a request; answer as JSON or as a stream."""
        identity = exchange.identity
        if not identity.may("chat"):
            raise Forbidden("agents need a key with the scope 'chat'")
        name = RawRequestBody(body).model.removeprefix(PREFIX)
        if name not in self._runs.agents.agents:
            raise NotFound(f"there is no agent {name!r:.100}", hint="the models of this hub: GET /v1/models")
        state = await offload(len(body), partial(read_state, body))
        if state.background:
            hint = "POST /api/chat takes background runs of agents"
            raise BadRequest("agents do not answer in the background here", field="background", hint=hint)
        if state.conversation_id is not None:
            hint = "continue with previous_response_id: a chain of an agent's responses is a session"
            raise BadRequest("agents take no conversation", field="conversation", hint=hint)
        previous, state = await self._find_previous(state, owner=identity.owner)
        agent_input = await offload(len(body), partial(read_input, state))
        session_id, action, approved = await self._choose_action(agent_input, previous, caller=identity)
        chat = ChatRequest(
            session_id=session_id, action=action, agent=name, tools=tuple(agent_input.parsed.request.tools)
        )
        started = await self._runs.start_run(chat, identity)
        turn = AgentTurn(session_id, _message_id(started))
        head = response_head(agent_input.parsed, turn, model=f"{PREFIX}{name}")
        encoder = AgentEncoder(head, approved=approved)
        record = partial(self._record, state=agent_input.state, previous=previous, owner=identity.owner)
        exchange.send = ResponseRecorder(exchange.send, record)
        await self._answer(exchange, started, encoder=encoder, agent_input=agent_input, session_id=session_id)

    # ---- what the request continues ------------------------------------------------------------------

    async def _find_previous(
        self, state: RequestState, *, owner: str
    ) -> tuple[PreviousResponse | None, RequestState]:
        """Return the response that a request continues, and the request with what is new in it."""
        id, first = state.previous_id, 0
        if id is None:
            for index, head in enumerate(state.heads):
                own = _OWN_ITEM.fullmatch(head.id) if isinstance(head.id, str) else None
                if own is not None and head.role in (None, "assistant"):
                    id, first = f"resp_{own[1]}", index + 1
        if id is None:
            return None, state
        try:
            stored = await self._states.repository.get(id, owner=owner)
        except ResponseNotFound:
            raise UnknownPreviousResponse(
                f"there is no response {id[:100]!r}", field="previous_response_id"
            ) from None
        turn = msgspec.json.decode(stored.body, type=AgentResponse).dragoman
        if turn is None:
            raise BadRequest(f"the response {id[:100]!r} is not an agent's", field="previous_response_id")
        rest = replace(state, previous_id=id, items=state.items[first:], heads=state.heads[first:])
        return PreviousResponse(stored, turn), rest

    async def _choose_action(
        self, agent_input: AgentInput, previous: PreviousResponse | None, *, caller: Identity
    ) -> tuple[str, ChatAction, Sequence[ToolPart]]:
        """Return the session of a request, what it asks for there, and the calls that it approves or denies.

        Raises BadRequest, Conflict.
        """
        message = user_message(agent_input.parsed)
        if previous is None:
            if message is None or agent_input.outputs or agent_input.answers:
                raise BadRequest("input must have a message of the user", field="input")
            return new_id("responses"), NewMessage(message), ()
        session = await self._session(previous.turn, owner=caller.owner)
        stored = await self._store.messages.list(session.id)
        is_last = bool(stored) and stored[-1].id == previous.turn.message_id
        if agent_input.outputs or agent_input.answers:
            if not is_last or message is not None:
                text = "outputs and approvals must be for the last response, without a message beside them"
                raise BadRequest(text, field="input")
            action = continue_answer(stored[-1], agent_input)
            ids = {answer.tool_call_id for answer in action.answers}
            calls = [call for call in stored[-1].tool_calls if call.tool_call_id in ids]
            return previous.turn.session, action, calls
        if message is None:
            raise BadRequest("input has nothing new", field="input")
        if is_last:
            return previous.turn.session, NewMessage(message), ()
        fork_id = new_id("responses")
        await fork_session(self._store, session, message_id=previous.turn.message_id, id=fork_id, by=caller)
        return fork_id, NewMessage(message), ()

    async def _session(self, turn: AgentTurn, *, owner: str) -> Session:
        session = await self._store.sessions.get_own(turn.session, owner=owner)
        if session is None:
            raise UnknownPreviousResponse(
                "the session of this response was deleted", field="previous_response_id"
            )
        return session

    # ---- the answer ----------------------------------------------------------------------------------

    async def _answer(
        self,
        exchange: Exchange,
        started: StartedRun | StoredAnswer,
        *,
        encoder: ResponsesStreamEncoder,
        agent_input: AgentInput,
        session_id: str,
    ) -> None:
        headers = {"x-dragoman-session": session_id, **request_id_headers(exchange.request_id)}
        if dropped := agent_input.parsed.ignored_fields + (
            ("instructions",) if agent_input.parsed.request.instructions else ()
        ):
            headers["x-dragoman-dropped"] = header_value(",".join(dropped))
        if isinstance(started, StoredAnswer):
            frames = encoder.encode(started.events()) + encoder.end()
        elif agent_input.state.stream:
            await stream_run(
                exchange, started.follow(), dialect=encoder, keep_alive=self._keep_alive, headers=headers
            )
            return
        else:
            frames = await read_run(exchange, started, encoder=encoder)
        if agent_input.state.stream:
            await exchange.start_response(200, {**encoder.headers, **headers})
            await exchange.send({"type": "http.response.body", "body": frames, "more_body": False})
            return
        await exchange.respond(200, encoder.response, headers=headers)

    async def _record(
        self, raw: bytes, *, state: RequestState, previous: PreviousResponse | None, owner: str
    ) -> None:
        """Store a response, whatever `store` says: the session has it too, and goes on by it."""
        response: dict[str, Any] = msgspec.json.decode(raw)
        body, added, now = raw.decode(), _encode(list(state.items)).decode(), time.time()
        stored = StoredResponse(
            id=response["id"],
            owner=owner,
            root_id=response["id"] if previous is None else previous.stored.root_id,
            previous_id=None if previous is None else previous.stored.id,
            status=response["status"],
            created_at=now,
            updated_at=now,
            size=len(body) + len(added),
            body=body,
            input=added,
        )
        await self._states.save(stored, state)


async def read_run(exchange: Exchange, started: StartedRun, *, encoder: ResponsesStreamEncoder) -> bytes:
    """Read a run to its end; return the frames, which `encoder.response` sums up."""
    frames = b""
    with DisconnectWatch(exchange, delay=0) as watch, started.follow() as follower:
        while (batch := await follower.next()) is not None:
            frames += encoder.encode(batch)
        watch.response_complete = True
    return frames + encoder.end()


def read_input(state: RequestState) -> AgentInput:
    """Parse what is new in a request. Raises BadRequest."""
    items: list[dict[str, Any]] = [msgspec.json.decode(item) for item in state.items]
    others = [item for item in items if item.get("type") not in (*_OUTPUTS, _ANSWER)]
    if any(item.get("role") == "assistant" or item.get("type") == "item_reference" for item in others):
        hint = "send previous_response_id, or the items of the last response with their ids"
        raise BadRequest("the hub has no record of the conversation in input", field="input", hint=hint)
    calls = [
        item for item in others if item.get("type") not in ("function_call", "custom_tool_call", "reasoning")
    ]
    content = calls or [{"role": "user", "content": "-"}]
    parsed = parse_responses_request(_encode({**state.fields, "input": content}))
    if not calls:
        parsed = replace(parsed, request=replace(parsed.request, messages=()))
    outputs = [item for item in items if item.get("type") in _OUTPUTS]
    answers = [item for item in items if item.get("type") == _ANSWER]
    return AgentInput(state=state, parsed=parsed, outputs=outputs, answers=answers)


def user_message(parsed: ResponsesRequest) -> Message | None:
    """Return the messages of the user as one; None without any."""
    parts: list[Part] = []
    for message in parsed.request.messages:
        if message.role == "user":
            parts += message.parts
    return Message(new_id("msg"), "user", tuple(parts)) if parts else None


def continue_answer(message: Message, agent_input: AgentInput) -> ContinueAnswer:
    """Return the continuation of an answer. Raises Conflict for what it does not wait for, BadRequest."""
    requested = RequestedInputs.of_message(message)
    outputs = [
        ClientToolOutput(str(item.get("call_id")), read_output(item.get("output")))
        for item in agent_input.outputs
    ]
    answers: list[ClientApprovalAnswer] = []
    for item in agent_input.answers:
        id, approved, reason = item.get("approval_request_id"), item.get("approve"), item.get("reason")
        if not isinstance(id, str) or id not in requested.approvals:
            raise Conflict(f"the last response does not ask for the approval {id!r:.100}")
        if not isinstance(approved, bool):
            raise BadRequest("approve must be true or false", field="input")
        reason = reason if isinstance(reason, str) else None
        answers.append(requested.answer_approval(id, approved=approved, reason=reason))
    return ContinueAnswer(message.id, tuple(outputs), tuple(answers))


def read_output(value: Any) -> Any:
    """Return the output of a client's tool: texts of a list of parts are joined."""
    if isinstance(value, list) and all(isinstance(part, dict) and "text" in part for part in value):
        return "\n".join(str(part["text"]) for part in value)
    return value


def response_head(parsed: ResponsesRequest, turn: AgentTurn, *, model: str) -> ResponseHead:
    """Return what is known of a response before its answer."""
    fields = {**parsed.response_fields, "dragoman": msgspec.to_builtins(turn)}
    return ResponseHead(
        id=new_id("resp"),
        model=model,
        created_at=int(time.time()),
        tools=parsed.tools,
        fields=fields,
        hub_runs_calls=True,
        shows_approvals=parsed.tools.declares_hub,
    )


def _message_id(started: StartedRun | StoredAnswer) -> str:
    return started.message.id if isinstance(started, StoredAnswer) else started.run.row.message_id
