"""The calls that a run had made before a crash: what each of them is when the run makes it again.

A run that goes on after a crash makes its unfinished calls again, from the outermost one on. Each call finds
its entry in the ledger by its idempotency key, which is the same each time. A finished call is not repeated:
its recorded result is returned. One that only reads, or may be repeated, runs again. One that acts (`once`)
and had begun is *uncertain*: its person is asked what became of it, and nothing runs until there is an
answer. A batch and a sub-agent (`resumes`) do nothing themselves: they are entered again, and their own calls
are looked up in the same way.
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
STATE_PREFIX = b"uncertain:"  # of the state of the approval by which a person is asked
MAX_QUOTED = 1_000  # characters of an answer that the model is told


class ReplayedCalls:
    """The ledger's entries of a run that a crash cut off."""

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
    """The state of an approval that asks what became of a call."""

    item: ApprovalItem


def is_cut_off(entry: LedgerEntry) -> bool:
    """Return whether a crash ended the call: every other end of these has an error."""
    return entry.status in ("aborted", "uncertain") and entry.error is None


def recorded_end(entry: LedgerEntry) -> CallCompletion | None:
    """Return how a call had ended; None if it had not."""
    if entry.status in ("pending", "running") or is_cut_off(entry):
        return None
    return CallCompletion(status=entry.status, result=entry.result, error=entry.error, notes=entry.notes)


def question_item(item: ApprovalItem) -> tuple[ApprovalItem, bytes]:
    """Return the item that asks what became of a call, and the state of its approval."""
    text = (
        f"The hub stopped while {item.operation} ran, and it is not known whether it took effect."
        f' Answer "{DONE}", "{NOT_DONE}", or "{TRY_AGAIN}" to run it once more.'
    )
    state = STATE_PREFIX + msgspec.json.encode(UncertainCall(item))
    return replace(item, question=Question(text, ANSWERS)), state


def is_about_uncertain_call(grant: Grant | None) -> bool:
    """Return whether a grant is the answer to the question what became of a call."""
    return grant is not None and grant.state is not None and grant.state.startswith(STATE_PREFIX)


def grant_to_try_again(grant: Grant) -> Grant | None:
    """Return the grant by which an uncertain call runs again; None if its person answered otherwise."""
    if not grant.approved or answer_of(grant) != TRY_AGAIN or grant.state is None:
        return None
    uncertain = msgspec.json.decode(grant.state.removeprefix(STATE_PREFIX), type=UncertainCall)
    return Grant([uncertain.item], call_id=grant.call_id)


def settled_end(grant: Grant) -> CallCompletion:
    """Return the end of an uncertain call that is not made again, by what its person answered."""
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
    """Return the end of a call of which it is not known whether it took effect."""
    return CallCompletion(status="uncertain", error=CallFailure(code=CallUncertain.code, message=text))


def answer_of(grant: Grant) -> str:
    return (grant.text or "").strip().strip('."').lower()
