"""Find the run, or the stored answer, of a request that was made before (see `deduplication.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dragoman.errors import RunActive
from dragoman.messages import Message
from dragoman.runs.active_run import ActiveRun, StartedRun, hash_action
from dragoman.runs.deduplication import (
    StoredAnswer,
    has_failed_early,
    has_same_content,
    missed_position,
    repeated_message,
)
from dragoman.runs.history_changes import is_repeat, make_plan
from dragoman.runs.preparation import StoredSession, continued_position
from dragoman.runs.run import HubRun
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.unfold import START_POSITION, FoldPosition
from dragoman.wire.ui.client_request import ChatAction, ChatRequest, ContinueAnswer, NewMessage


class RepeatedRequests:
    """Finds what an earlier request of the same content began."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(
        self, request: ChatRequest, session: Session | None, *, active: ActiveRun | None
    ) -> tuple[StartedRun | StoredAnswer | None, StoredSession | None]:
        """Return the run or the answer of a request that was made before, None for a new one; and the
        session.

        That has its messages if no run was writing one; `active` is the run of the session that does. Raises
        RunActive for an old tab's continuation, Conflict, NotFound.
        """
        if session is None:
            return None, None
        session_id, action = request.session_id, request.action
        earlier = self._earlier_answer(action, session_id)
        stored, answered = await asyncio.gather(self._store.messages.list(session_id), earlier)
        found = await self._find(request, active, stored=stored, answered=answered)
        return found, StoredSession(session, stored if active is None else None)

    async def _find(
        self,
        request: ChatRequest,
        active: ActiveRun | None,
        *,
        stored: Sequence[Message],
        answered: Message | None,
    ) -> StartedRun | StoredAnswer | None:
        session_id, action = request.session_id, request.action
        # It ended meanwhile: its last parts are not in these.
        if isinstance(active, HubRun) and active.done.is_set():
            active, stored = None, await self._store.messages.list(session_id)
        if isinstance(action, ContinueAnswer):
            if active is not None:
                return find_running_continuation(action, stored, active=active)
            return await self._find_stored_continuation(action, stored, session_id=session_id)
        answer = repeated_message(action, stored)
        if answer is None:
            return None if answered is None else await self._stored_answer(session_id, answered)
        if active is not None and active.row.message_id == answer.id:
            return StartedRun(active, replay="message")
        return await self._stored_answer(session_id, answer)

    async def _earlier_answer(self, action: ChatAction, session_id: str) -> Message | None:
        """Return the answer of a message that an earlier branch has with the same content; None without one.

        A client that asks for an edit wants another answer.
        """
        if not isinstance(action, NewMessage):
            return None
        for id, answer_id in await self._store.branches.versions(session_id, action.message.id):
            question = await self._store.messages.get(session_id, id)
            if question is not None and has_same_content(question, action.message):
                answer = await self._store.messages.get(session_id, answer_id)
                if answer is not None and answer.role == "assistant" and not has_failed_early(answer):
                    return answer
        return None

    async def _find_stored_continuation(
        self, action: ContinueAnswer, stored: Sequence[Message], *, session_id: str
    ) -> StoredAnswer | None:
        if not stored or stored[-1].id != action.message_id or not is_repeat(action, stored[-1]):
            return None
        position = missed_position(action, stored[-1])
        if position is None:
            return None
        return await self._stored_answer(session_id, stored[-1], position=position)

    async def _stored_answer(
        self, session_id: str, message: Message, *, position: FoldPosition = START_POSITION
    ) -> StoredAnswer:
        """Return the answer of the message's last run; of a fork, or an imported session, without a run."""
        run = await self._store.runs.get_last(session_id, message_id=message.id)
        return StoredAnswer(run.id if run else "", message, position, run.error if run else None)


def find_running_continuation(
    action: ContinueAnswer, stored: Sequence[Message], *, active: ActiveRun
) -> StartedRun | None:
    """Return the active run if this continuation began it. Raises RunActive when it is of an old tab."""
    if active.action_hash == hash_action(action):
        return StartedRun(active, replay="run")
    position = continued_position(action, active)
    if position is not None:
        return StartedRun(active, replay=position)
    earlier = [message for message in stored if message.id != active.row.message_id]
    plan = make_plan(action, [*earlier, active.message()], new_id="")
    if not plan.input_events:  # an old tab must not stop the run
        raise RunActive(active.row.session_id, active.row.id)
    return None
