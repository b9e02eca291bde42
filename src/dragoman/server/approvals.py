"""Approval doors: what waits for somebody's word, and the place to give it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, Protocol, get_args

import msgspec

from dragoman.errors import BadRequest, Forbidden, NotFound
from dragoman.operations.approval import (
    LONGEST,
    Approval,
    ApprovalStatus,
    Item,
    Question,
    checked,
    concerns,
    may_answer,
    stated,
)
from dragoman.operations.approval import Approvals as Kept
from dragoman.operations.identity import Identity
from dragoman.server.calls import LIMIT, require_any
from dragoman.server.exchange import Exchange

MAX_BODY = 131_072
MAX_PAGE = 500
STATUSES: tuple[ApprovalStatus, ...] = get_args(ApprovalStatus)


HINT = 'send {"approved": true} or {"approved": false}; to a question {"answer": "..."}'


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said to a request: yes or no, or the `answer` to a question."""

    approved: bool | None = None
    reason: Annotated[str, msgspec.Meta(max_length=2_000)] | None = None
    answer: Annotated[str, msgspec.Meta(max_length=LONGEST)] | None = None


class Answering(Protocol):
    """What takes an answer; see `Approvals.answer` of the operations."""

    def __call__(
        self, id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> Awaitable[Approval]: ...


class Approvals:
    """The doors under `/api/approvals`.

    A key sees what was asked for its owner's calls and what its owner may answer; with the scope "admin" it
    sees and answers everything. To answer takes the scope "chat": a key that is only for calling operations
    cannot approve its own calls.
    """

    def __init__(self, approvals: Kept, *, answer: Answering | None = None) -> None:
        """`answer` takes the place of `approvals.answer`, where more follows from it."""
        self._approvals = approvals
        self._answer = answer or approvals.answer

    async def list(self, exchange: Exchange) -> None:
        """The newest first; `?status` is one of the five, `?limit` how many at most."""
        query = exchange.query
        status, limit = read_status(query.get("status")), query.get("limit", "100")
        if not LIMIT.fullmatch(limit) or not 1 <= int(limit) <= MAX_PAGE:
            raise BadRequest(f"limit must be 1 to {MAX_PAGE}, not {limit[:20]!r}", field="limit")
        caller = exchange.identity
        require_any(caller)
        owner = None if caller.may("admin") else caller.owner
        found = await self._approvals.list(owner=owner, status=status, limit=int(limit))
        await exchange.answer(200, {"approvals": [to_json(approval, caller) for approval in found]})

    async def get(self, exchange: Exchange) -> None:
        """One of them. NotFound, also for what is none of the caller's business."""
        caller = exchange.identity
        require_any(caller)
        found = await self._approvals.get(exchange.params["id"])
        if not (caller.may("admin") or concerns(found, caller.owner)):
            raise NotFound(f"no approval {found.id!r}")
        await exchange.answer(200, to_json(found, caller))

    async def answer(self, exchange: Exchange) -> None:
        """Approve or deny with `{"approved": true | false, "reason"?}`; answer a question with `{"answer"}`.

        Each takes one answer.
        """
        caller = exchange.identity
        if not may_speak(caller):
            raise Forbidden(
                "a key that is for calling operations cannot approve what it calls",
                hint="answer with a key that has the scope chat or admin",
            )
        try:
            said = msgspec.convert(await exchange.json_body(MAX_BODY), Answer)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the body does not fit: {error}", hint=HINT) from None
        asked = await self._approvals.get(exchange.params["id"])
        approved, reason = read_answer(said, asked if may_answer(asked, caller) else None)
        found = await self._answer(asked.id, approved=approved, by=caller, reason=reason)
        await exchange.answer(200, to_json(found, caller))


def read_answer(said: Answer, asked: Approval | None) -> tuple[bool, str | None]:
    """Whether it is a yes, and what is said with it. BadRequest when it is no answer to what was `asked`."""
    if said.answer is None:
        if said.approved is None:
            raise BadRequest("the body says neither yes nor no", hint=HINT)
        return said.approved, stated(said.reason)
    if said.approved is False or said.reason is not None:
        raise BadRequest("an answer is a yes, and needs no reason", field="answer", hint=HINT)
    if asked is not None and asked.question is None:
        hint = 'nothing is asked there but yes or no: send {"approved": true} or {"approved": false}'
        raise BadRequest(f"approval {asked.id!r} is no question", field="answer", hint=hint)
    return True, checked(said.answer)


def read_status(said: str | None) -> ApprovalStatus | None:
    """The status that is meant; None for none. BadRequest."""
    for status in STATUSES:
        if said == status:
            return status
    if said is None:
        return None
    raise BadRequest(f"there is no status {said!r}", field="status", hint=f"there are {', '.join(STATUSES)}")


def may_speak(caller: Identity) -> bool:
    return caller.may("chat") or caller.may("admin")


def to_json(approval: Approval, caller: Identity) -> dict[str, Any]:
    """The approval as the doors tell it; `mayAnswer`: whether this caller could, now."""
    return {
        "id": approval.id,
        "status": approval.status,
        "owner": approval.owner,
        "operation": approval.operation,
        "input": approval.input,
        "inputHash": approval.input_hash,
        "question": question_of(approval.question),
        "answer": approval.answer,
        "items": [item_of(item) for item in approval.items],
        "createdAt": approval.created_at,
        "expiresAt": approval.expires_at,
        "answerers": approval.answerers,
        "mayAnswer": approval.status == "pending" and may_speak(caller) and may_answer(approval, caller),
        "agent": approval.agent,
        "callId": approval.call_id,
        "runId": approval.run_id,
        "sessionId": approval.session_id,
        "toolCallId": approval.tool_call_id,
        "answeredAt": approval.answered_at,
        "answeredBy": approval.answered_by,
        "reason": approval.reason,
    }


def item_of(item: Item) -> dict[str, Any]:
    """What in it somebody has to decide."""
    return {
        "operation": item.operation,
        "input": item.input,
        "reason": item.reason,
        "question": question_of(item.question),
        "agent": item.agent,
    }


def question_of(question: Question | None) -> dict[str, Any] | None:
    return None if question is None else {"text": question.text, "options": question.options}
