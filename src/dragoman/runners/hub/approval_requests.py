"""Questions of runners as approval requests, which people find in the inbox while a turn waits."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.errors import Conflict, DragomanError, NotFound
from dragoman.identity import Identity
from dragoman.operations.approval import ApprovalItem, ApprovalRequest, Question
from dragoman.operations.context import Context
from dragoman.operations.ledger import hash_input
from dragoman.store.store import Store
from dragoman.wire.runner.decoder import RunnerDecoder
from dragoman.wire.runner.frames import RunnerQuestion

log = logging.getLogger(__name__)
QUESTION_OPERATION = "runner.question"
TURN_OVER = "the turn that asked this is over"


class TurnRequests:
    """The approval requests of one turn, whose answer is the message `message_id`.

    A request that nobody answers expires after `seconds`.
    """

    def __init__(self, store: Store, context: Context, *, message_id: str, seconds: float) -> None:
        self._store = store
        self._context = context
        self._message_id = message_id
        self._seconds = seconds

    def id_of(self, frame: RunnerQuestion) -> str:
        """Return the id of the request that stands for a question: the same one after a crash."""
        name = f"{self._context.session_id}\0{self._message_id}\0{frame.question_id}"
        return f"apr_{hashlib.sha256(name.encode()).hexdigest()[:20]}"

    async def create(self, frame: RunnerQuestion, decoder: RunnerDecoder) -> None:
        """Store a question or a call to approve as an approval request. Raises StoreError, Unavailable."""
        context = self._context
        call_id = frame.call_id if frame.approval else f"question-{frame.question_id}"
        input = {"questionId": frame.question_id, "text": frame.text, "callId": call_id}
        operation = QUESTION_OPERATION
        question: Question | None = Question(frame.text, tuple(frame.options))
        if frame.approval:
            operation, question = f"runner.{decoder.call_name(call_id or '')}", None
            input["args"] = decoder.call_input(call_id or "")
        item = ApprovalItem(operation, input, hash_input(input), question=question)
        now = time.time()
        request = ApprovalRequest(
            id=self.id_of(frame),
            owner=context.identity.owner,
            operation=operation,
            input=input,
            input_hash=item.input_hash,
            items=(item,),
            created_at=now,
            expires_at=now + self._seconds,
            run_id=context.run_id,
            session_id=context.session_id,
            tool_call_id=call_id,
            agent=context.agent,
            key_id=context.identity.key_id,
        )
        await self._store.approvals.create(request)

    async def withdraw(self, ids: Sequence[str]) -> None:
        """Decline requests that nothing waits for any more, unless they are answered."""
        await decline_all(self._store, ids, by=self._context.identity)


async def decline_all(store: Store, ids: Sequence[str], *, by: Identity) -> None:
    """Decline the requests of a turn that is over, unless they are answered. `by` is who began the turn."""
    by = replace(by, scopes=frozenset({"admin"}))  # it may not be among those who may answer them
    for id in ids:
        try:
            await store.approvals.answer(id, approved=False, by=by, reason=TURN_OVER)
        except (NotFound, Conflict):
            continue
        except DragomanError as error:
            log.warning("the request %s of a turn that is over stays open: %s", id, error.message)
