"""Recovery: what a crash cut off is closed into a valid message, from what the ledger knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.fold import merge
from dragoman.messages import FINAL_STATES, Message, Part, ReasoningPart, TextPart, ToolPart, encode_part
from dragoman.operations.ledger import Entry
from dragoman.store import runs as rows
from dragoman.store.store import Store

REASON = "interrupted"


async def recover(store: Store, *, clock: Callable[[], float] = time.time) -> int:
    """Mark every unfinished run as interrupted, its message closed; how many there were.

    All calls that were under way are ended with it, those of no run too. For a store that nobody else uses.
    """
    unfinished = await store.runs.unfinished()
    for run in unfinished:
        await _close(store, run, now=clock())
    await store.calls.interrupt(clock())
    return len(unfinished)


async def _close(store: Store, run: rows.Run, *, now: float) -> None:
    calls = await store.calls.for_run(run.id)
    message = await store.messages.get(run.session_id, run.message_id)
    job = None
    if message is not None:
        closed = close_message(message, calls)
        job = store.messages.put_parts(
            run.session_id,
            run.message_id,
            changed=[(index, encode_part(part)) for index, part in enumerate(closed.parts)],
            count=len(closed.parts),
            metadata=msgspec.json.encode(closed.metadata),
        )
    outcome = rows.Ending(status="interrupted", finished_at=now, error="the hub stopped in mid-run")
    await store.runs.finish(run.id, outcome, also=job)


def close_message(message: Message, calls: Sequence[Entry]) -> Message:
    """The message after a crash: blocks closed, every call with the output that the ledger kept."""
    ended = {call.record.tool_call_id: call for call in calls if _is_root(call, calls)}
    parts = tuple(_closed(part, ended, calls=calls) for part in message.parts)
    return replace(message, parts=parts, metadata=merge(message.metadata, {"finishReason": REASON}))


def _is_root(call: Entry, calls: Sequence[Entry]) -> bool:
    return call.record.parent_id not in {other.record.id for other in calls}


def _closed(part: Part, ended: Mapping[str | None, Entry], *, calls: Sequence[Entry]) -> Part:
    match part:
        case TextPart(state="streaming") | ReasoningPart(state="streaming"):
            return replace(part, state="done")
        case ToolPart() if part.state not in FINAL_STATES or part.preliminary:
            return _answered(part, ended.get(part.tool_call_id), calls=calls)
        case _:
            return part


def _answered(part: ToolPart, call: Entry | None, *, calls: Sequence[Entry]) -> ToolPart:
    if part.state == "approval-requested" or (
        part.state == "approval-responded" and (call is None or call.status == "pending")
    ):
        return part  # it was not begun, and still can be
    raw = part.raw_input if isinstance(part.raw_input, str) else None
    shown = part.input if part.input is not msgspec.UNSET else raw
    part = replace(part, input=shown, raw_input=msgspec.UNSET, preliminary=None, output=msgspec.UNSET)
    if call is not None and call.status == "done":
        return replace(part, state="output-available", output=call.result)
    if call is not None and call.error is not None:
        return replace(part, state="output-error", error_text=call.error.message)
    return replace(part, state="output-error", error_text=_told(part, call, calls=calls))


def _told(part: ToolPart, call: Entry | None, *, calls: Sequence[Entry]) -> str:
    """What the model is told of a call that was cut off, so that it does not repeat what was done."""
    if part.input is msgspec.UNSET or call is None:
        return "not run: the hub stopped before this call began"
    below = [other for other in calls if other.record.parent_id == call.record.id]
    done = [f"{c.record.operation} gave {_brief(c.result)}" for c in below if c.status == "done"]
    unknown = [c.record.operation for c in (below or [call]) if c.status == "running"]
    said = ["the hub stopped while this call ran"]
    if done:
        said.append("finished before that, do not repeat: " + "; ".join(done))
    if unknown:
        said.append("not known whether it took effect: " + ", ".join(unknown))
    return ". ".join(said)


def _brief(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else text[:200] + "…"
