"""Forks: a session that continues by itself from a message of another one."""

from __future__ import annotations

import time
from functools import partial

from msgspec.structs import replace

from dragoman.agent.approval_events import WITHDRAWN, decline_requests
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.session_ids import hub_session_id
from dragoman.store.sessions.branches import message_not_found
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store

MAX_ATTEMPTS = 2  # to find a message: shared messages move when the session that owns them is deleted


async def fork_session(
    store: Store, source: Session, *, message_id: str, id: str | None = None, by: Identity
) -> Session:
    """Create a session of `by`'s owner with the messages of `source` up to this one, and return it.

    The messages before it are shared, so that this takes the same time for a long session as for a short one.
    What waits for an approval or an answer in the source is declined in the fork. `id` is the client's.
    Raises NotFound, Conflict when the id is taken, RunActive while the message is being written.
    """
    for _ in range(MAX_ATTEMPTS):
        location = await store.branches.find(source.id, message_id)
        last = await store.messages.get(location.session_id, location.id)
        if last is not None:
            break
    else:
        raise message_not_found(message_id, source.id)
    now = time.time()
    fork = replace(
        source,
        id=hub_session_id(id, owner=by.owner) if id else new_id("ses"),
        owner=by.owner,
        created_at=now,
        updated_at=now,
        archived_at=None,
        runner_host=None,
    )
    last = decline_requests(last, WITHDRAWN)[0]
    create = partial(store.branches.fork, source.id, message_id, fork=fork, last=last, by=by)
    await store.session_deletion.make_room(fork.id, create)
    return fork
