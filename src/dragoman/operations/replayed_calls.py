"""The calls of a run from before a crash, and what happens when the run makes them again.

A run that resumes after a crash makes its unfinished calls again, beginning with the outermost one. Each call
finds its entry in the ledger by its idempotency key, which is the same each time. A finished call is not
repeated: its recorded result is returned. A `read` or `idempotent` call runs again. A `once` call that had
started is *uncertain*: the user is asked whether it took effect, and nothing runs until there is an answer. A
batch and a sub-agent (`resumes`) do nothing themselves: they run again, and their own calls are looked up in
the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.errors import CallUncertain
from dragoman.operations.approval import ApprovalItem, Grant, Question
from dragoman.operations.ledger import CallCompletion, LedgerEntry
from dragoman.operations.outcome import CallFailure

DONE, NOT_DONE, TRY_AGAIN = "done", "not done", "try again"
ANSWERS = (DONE, NOT_DONE, TRY_AGAIN)
STATE_PREFIX = b"uncertain:"  # of the state of the approval request that asks about a call
MAX_QUOTED = 1_000  # characters of an answer that the model gets


class ReplayedCalls:
    """The ledger's entries of a run that was interrupted by a crash."""

    def __init__(self, entries: Iterable[LedgerEntry]) -> None:
        self._by_key: dict[str, LedgerEntry] = {}
        self._by_parent: dict[str | None, list[LedgerEntry]] = {}
        for entry in entries:
            self._by_key[entry.record.idempotency_key] = entry
            self._by_parent.setdefault(entry.record.parent_id, []).append(entry)

    def get(self, key: str) -> LedgerEntry | None:
        """Return the entry with this idempotency key."""
        return self._by_key.get(key)

    def children(self, call_id: str) -> Sequence[LedgerEntry]:
        """Return the calls directly below a call."""
        return self._by_parent.get(call_id, ())


class UncertainCall(msgspec.Struct, frozen=True):
    """The state of an approval request that asks whether a call took effect."""

    item: ApprovalItem


def is_cut_off(entry: LedgerEntry) -> bool:
    """Return whether a crash ended the call: otherwise an entry with such a status has an error."""
    return entry.status in ("aborted", "uncertain") and entry.error is None


def recorded_end(entry: LedgerEntry) -> CallCompletion | None:
    """Return the recorded end of a call; None if it had not ended."""
    if entry.status in ("pending", "running") or is_cut_off(entry):
        return None
    return CallCompletion(status=entry.status, result=entry.result, error=entry.error, notes=entry.notes)


def question_item(item: ApprovalItem) -> tuple[ApprovalItem, bytes]:
    """Return the item that asks whether a call took effect, and the state of its approval request."""
    text = (
        f"The hub stopped while {item.operation} ran, and it is not known whether it took effect."
        f' Answer "{DONE}", "{NOT_DONE}", or "{TRY_AGAIN}" to run it once more.'
    )
    state = STATE_PREFIX + msgspec.json.encode(UncertainCall(item))
    return replace(item, question=Question(text, ANSWERS)), state


def is_about_uncertain_call(grant: Grant | None) -> bool:
    """Return whether a grant is the answer to the question whether a call took effect."""
    return grant is not None and grant.state is not None and grant.state.startswith(STATE_PREFIX)


def grant_to_try_again(grant: Grant) -> Grant | None:
    """Return the grant with which an uncertain call runs again; None after another answer."""
    if not grant.approved or answer_of(grant) != TRY_AGAIN or grant.state is None:
        return None
    uncertain = msgspec.json.decode(grant.state.removeprefix(STATE_PREFIX), type=UncertainCall)
    return Grant([uncertain.item], call_id=grant.call_id)


def settled_end(grant: Grant) -> CallCompletion:
    """Return the end of an uncertain call that does not run again, by the user's answer."""
    answer, began = answer_of(grant), "The hub stopped while this call ran."
    if not grant.approved:
        why = f" ({grant.text})" if grant.text else ""
        return uncertain_end(f"{began} It is not known whether it took effect: nobody knew{why}.")
    if answer == DONE:
        text = f"{began} A person says that it took effect; its result is not known."
        return CallCompletion(status="done", result=text)
    if answer == NOT_DONE:
        text = f"{began} A person says that it did not take effect."
        return CallCompletion(status="aborted", error=CallFailure(code="aborted", message=text))
    quoted = (grant.text or "")[:MAX_QUOTED]
    return uncertain_end(f"{began} Asked whether it took effect, a person answered: {quoted}")


def uncertain_end(text: str) -> CallCompletion:
    """Return the end of a call that may have taken effect."""
    return CallCompletion(status="uncertain", error=CallFailure(code=CallUncertain.code, message=text))


def answer_of(grant: Grant) -> str:
    return (grant.text or "").strip().strip('."').lower()
