"""Withdraw the requests that an answer waits for, so that it does not continue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from dragoman.agent.approval_events import decline_requests
from dragoman.errors import Conflict, NotFound, RunActive
from dragoman.identity import Identity
from dragoman.messages import Message, Part, ToolPart, encode_part
from dragoman.store.connection import DatabaseConnection
from dragoman.store.runs import RunRecord
from dragoman.store.store import Store

Decline = Callable[[str, str], Awaitable[object]]
"""Declines an approval or a question, by its id, for a reason."""


async def withdraw_answer(
    store: Store, run: RunRecord, *, answer: Message, reason: str, decline: Decline
) -> None:
    """Decline all requests that an answer waits for: in its message, then in the store.

    Its last run becomes one that was stopped. Raises RunActive when it continues already.
    """
    declined, ids = decline_requests(answer, reason)
    parts = [_withdrawn_call(part, reason=reason) for part in declined.parts]
    changed = [(index, encode_part(part)) for index, part in enumerate(parts)]
    write_parts = store.messages.write_parts_job(run.session_id, answer.id, changed=changed)
    stop = store.waiting_runs.stop_job(run.id)

    def job(connection: DatabaseConnection) -> None:
        write_parts(connection)
        stop(connection)

    if not await store.runs.write_unless_running(run.session_id, job):
        raise RunActive(run.session_id, "unknown")
    for id in ids:
        try:
            await decline(id, reason)
        except (NotFound, Conflict):  # somebody has answered it at the same moment
            continue


def _withdrawn_call(part: Part, *, reason: str) -> Part:
    """Return a part; a call of a client-side tool without an output as failed."""
    if isinstance(part, ToolPart) and part.state == "input-available" and not part.provider_executed:
        return replace(part, state="output-error", error_text=reason)
    return part


def as_admin(caller: Identity) -> Identity:
    """Return the caller with the right to decline what others were asked."""
    return replace(caller, scopes=frozenset({"admin"}))
