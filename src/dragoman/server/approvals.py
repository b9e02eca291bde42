"""HTTP handlers of approvals: list them, and answer them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, Literal, Protocol, get_args

import msgspec

from dragoman.errors import BadRequest, Conflict, DragomanError
from dragoman.http.asgi_exchange import Exchange
from dragoman.identity import Identity
from dragoman.operations.approval import (
    MAX_ANSWER_LENGTH,
    ApprovalRequest,
    ApprovalStatus,
    ApprovalStore,
    approval_not_found,
    involves_owner,
    validate_answer,
    validate_reason,
)
from dragoman.operations.authorization import RUN_DATA_SCOPES, require_scope, visible_owner
from dragoman.server.approval_json import approval_to_json
from dragoman.server.approval_list import InboxLister
from dragoman.server.call_trees.root_list import parse_flag
from dragoman.server.http.query_parameters import parse_limit
from dragoman.server.sessions.session_lookup import find_role, find_session
from dragoman.server.token_bounds import require_within_bounds, require_write
from dragoman.store.approval_inbox import ApprovalInboxRepository
from dragoman.store.sessions.sessions import SessionRepository, session_not_found

MAX_BODY = 131_072
MAX_PAGE = 500
STATUSES: tuple[ApprovalStatus, ...] = get_args(ApprovalStatus)


MAX_BULK = 200
BULK_HINT = 'send {"ids": ["apr_…"], "approved": true}, with at most 200 ids'
BODY_HINT = 'send {"approved": true} or {"approved": false}; to a question {"answer": "..."}'


class ApprovalBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an answer: approved or denied, or the `answer` to a question."""

    approved: bool | None = None
    reason: Annotated[str, msgspec.Meta(max_length=2_000)] | None = None
    answer: Annotated[str, msgspec.Meta(max_length=MAX_ANSWER_LENGTH)] | None = None


class BulkBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of one answer to several requests."""

    ids: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MAX_BULK)]
    approved: bool
    reason: Annotated[str, msgspec.Meta(max_length=2_000)] | None = None


class AnswerApproval(Protocol):
    """Answers an approval; see `ApprovalFlow.answer`."""

    def __call__(
        self, id: str, /, *, approved: bool, by: Identity, reason: str | None = None
    ) -> Awaitable[ApprovalRequest]: ...


class ApprovalHandlers:
    """Handlers of `/api/approvals`.

    A key sees what was asked for its owner's calls, what its owner may answer, and what is asked in sessions
    that it may read; with the scope "admin" it sees and answers everything. To answer takes the scope "chat":
    a key that is only for calling operations cannot approve its own calls.
    """

    def __init__(
        self,
        approvals: ApprovalStore,
        *,
        answer: AnswerApproval | None = None,
        sessions: SessionRepository | None = None,
        inbox: ApprovalInboxRepository | None = None,
    ) -> None:
        """`answer` replaces `approvals.answer` where an answer has further effects.

        `sessions` has the roles in shared sessions; without it nobody has one. Without an
        `inbox` lists have one page, and no counts.
        """
        self._inbox = inbox
        self._approvals = approvals
        self._sessions = sessions
        self._answer = answer or approvals.answer

    async def list(self, exchange: Exchange) -> None:
        """List approvals, newest first; `?status` is one of the five, `?limit` the maximum number.

        `?session` lists those of a session that the caller may read, whoever asked for them.
        """
        query = exchange.query
        status = parse_status(query.get("status"))
        limit = parse_limit(query.get("limit", "100"), maximum=MAX_PAGE)
        caller = exchange.identity
        require_scope(caller, *RUN_DATA_SCOPES)
        owner, session, may_write = visible_owner(caller), query.get("session"), False
        if session is None and self._inbox is not None:
            require_within_bounds(caller, None)  # a token sees those of its session, which it has to name
            lister = InboxLister(self._inbox, caller=caller)
            await exchange.respond(200, await lister.list(query, status=status, limit=limit))
            return
        if session is None:
            require_within_bounds(caller, None)  # a token sees those of its session, which it has to name
            found = await self._approvals.list(owner=owner, status=status, limit=limit)
        else:
            id = await self._find_session_id(session, caller)
            found = await self._approvals.list(session_id=id, status=status, limit=limit)
            may_write = await self._role_in(id, caller) == "write"
        described = [approval_to_json(each, caller, may_write=may_write) for each in found]
        await exchange.respond(200, {"approvals": described})

    async def get(self, exchange: Exchange) -> None:
        """Return one approval, with `compare=1` beside what was approved before.

        NotFound, also for one that the caller may not see.
        """
        caller = exchange.identity
        require_scope(caller, *RUN_DATA_SCOPES)
        found = await self._approvals.get(exchange.path_params["id"])
        role = await self._check_visible(found, caller)
        shown = approval_to_json(found, caller, may_write=role == "write")
        if self._inbox is not None and caller.bounds is None and parse_flag(exchange.query, "compare"):
            shown = await InboxLister(self._inbox, caller=caller).compare(found, shown)
        await exchange.respond(200, shown)

    async def answer(self, exchange: Exchange) -> None:
        """Approve or deny with `{"approved": true | false, "reason"?}`; answer a question with `{"answer"}`.

        Each takes one answer.
        """
        caller = exchange.identity
        # A key that may only call operations would approve its own calls.
        require_scope(caller, "chat", "admin")
        try:
            body = msgspec.convert(await exchange.read_json(MAX_BODY), ApprovalBody)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the body is invalid: {error}", hint=BODY_HINT) from None
        parse_answer(body, None)  # a wrong body says nothing about an approval that the caller may not see
        approval = await self._find_for_answer(exchange.path_params["id"], caller)
        approved, reason = parse_answer(body, approval)
        found = await self._answer(approval.id, approved=approved, by=caller, reason=reason)
        await exchange.respond(200, approval_to_json(found, caller))

    async def answer_many(self, exchange: Exchange) -> None:
        """Approve or deny several at once; each has its own result. Questions cannot be answered this way."""
        caller = exchange.identity
        require_scope(caller, "chat", "admin")
        try:
            body = msgspec.convert(await exchange.read_json(MAX_BODY), BulkBody)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the body is invalid: {error}", hint=BULK_HINT) from None
        reason = validate_reason(body.reason)
        results = [
            await self._answer_one(id, approved=body.approved, reason=reason, caller=caller)
            for id in dict.fromkeys(body.ids)
        ]
        await exchange.respond(200, {"results": results})

    async def _answer_one(
        self, id: str, *, approved: bool, reason: str | None, caller: Identity
    ) -> dict[str, Any]:
        try:
            approval = await self._find_for_answer(id, caller)
            if approved and approval.question is not None:
                raise Conflict(f"approval {id!r} is a question: it needs an answer of its own")
            found = await self._answer(id, approved=approved, by=caller, reason=reason)
        except DragomanError as error:
            return {"id": id, "status": None, "error": error.to_json()}
        return {"id": id, "status": found.status, "error": None}

    async def _check_visible(
        self, approval: ApprovalRequest, caller: Identity
    ) -> Literal["read", "write"] | None:
        """Return the caller's role in the session of an approval. NotFound if the caller may not see it."""
        role = await self._role_in(approval.session_id, caller)
        is_visible = (
            visible_owner(caller) is None or role is not None or involves_owner(approval, caller.owner)
        )
        if not is_visible or not caller.covers(approval.session_id):
            raise approval_not_found(approval.id)
        return role

    async def _find_for_answer(self, id: str, caller: Identity) -> ApprovalRequest:
        """Return an approval that the caller may know of. Forbidden for a token that may only read."""
        approval = await self._approvals.get(id)
        await self._check_visible(approval, caller)
        require_write(caller, approval.session_id)
        return approval

    async def _find_session_id(self, id: str, caller: Identity) -> str:
        """Return the hub's id of a session that the caller may read. NotFound."""
        if self._sessions is None:
            raise session_not_found(id)
        return (await find_session(self._sessions, id, caller=caller)).id

    async def _role_in(self, session_id: str | None, caller: Identity) -> Literal["read", "write"] | None:
        if self._sessions is None or session_id is None:
            return None
        return await find_role(self._sessions, session_id, caller=caller)


def parse_answer(body: ApprovalBody, approval: ApprovalRequest | None) -> tuple[bool, str | None]:
    """Return whether the body approves, and its text. BadRequest when it does not fit `approval`."""
    if body.answer is None:
        if body.approved is None:
            raise BadRequest("the body needs `approved` or `answer`", hint=BODY_HINT)
        return body.approved, validate_reason(body.reason)
    if body.approved is False or body.reason is not None:
        raise BadRequest("an answer counts as a yes, and takes no reason", field="answer", hint=BODY_HINT)
    if approval is not None and approval.question is None:
        hint = 'it asks for yes or no: send {"approved": true} or {"approved": false}'
        raise BadRequest(f"approval {approval.id!r} is not a question", field="answer", hint=hint)
    return True, validate_answer(body.answer)


def parse_status(text: str | None) -> ApprovalStatus | None:
    """Parse `?status`; None without one. BadRequest."""
    for status in STATUSES:
        if text == status:
            return status
    if text is None:
        return None
    raise BadRequest(f"{text!r} is not a valid status", field="status", hint=f"use {', '.join(STATUSES)}")
