"""Asking: how an MCP client is asked for an approval or an answer, and what it said."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dragoman.errors import BadRequest
from dragoman.operations.approval import LONGEST, Approval, Item, Question, checked
from dragoman.operations.ledger import hash_input

QUESTION = "approval"  # the name of the one thing that is asked
INPUT_LIMIT = 4_000
SEALED = 32  # bytes of the seal
FOREIGN = "the requestState is not of this request"
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "approve": {
            "type": "boolean",
            "title": "Approve",
            "description": "Whether this may be done, once.",
        },
    },
    "required": ["approve"],
}


class Said(msgspec.Struct, frozen=True):
    """What was said: `nothing` where it was neither yes nor no; `answer` is that to a question."""

    word: Literal["yes", "no", "nothing"]
    answer: str | None = None


NOTHING = Said("nothing")


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """What a state stands for: an approval, whose it is, and of which request."""

    approval_id: str
    owner: str
    tool: str
    input_hash: str


class Seal:
    """Makes states that only this hub can make, until it ends; clients keep them, and bring them back."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def close(self, claim: Claim) -> str:
        """The claim as a text that nobody else can make."""
        raw = msgspec.json.encode(claim)
        return base64.urlsafe_b64encode(self._sign(raw) + raw).decode()

    def open(self, state: str) -> Claim:
        """The claim in a state. BadRequest when this hub has not made it."""
        try:
            raw = base64.urlsafe_b64decode(state.encode())
            if not hmac.compare_digest(raw[:SEALED], self._sign(raw[SEALED:])):
                raise BadRequest(FOREIGN)
            return msgspec.json.decode(raw[SEALED:], type=Claim)
        except (ValueError, msgspec.DecodeError):
            raise BadRequest(FOREIGN) from None

    def _sign(self, raw: bytes) -> bytes:
        return hmac.new(self._key, raw, hashlib.sha256).digest()


def claim_of(approval_id: str, owner: str, *, tool: str, input: Mapping[str, Any]) -> Claim:
    """The claim of a request for a tool with this input."""
    return Claim(approval_id, owner, tool, hash_input(input))


def form(approval: Approval) -> dict[str, Any]:
    """The parameters of `elicitation/create` that ask for an approval, or for the answer to a question."""
    question = approval.question
    if question is not None:
        told = "\n".join([question.text, *asked_by(approval.items[0])])
        return {"mode": "form", "message": told, "requestedSchema": fields(question)}
    lines = ["May this be done?"]
    for item in approval.items:
        lines.append(f"{item.operation} with {shorten(item.input)}")
        lines += [f"({item.reason})"] if item.reason else []
        lines += asked_by(item)
    return {"mode": "form", "message": "\n".join(lines), "requestedSchema": SCHEMA}


def asked_by(item: Item) -> list[str]:
    """Whose model asks, where that is a sub-agent."""
    return [f"(asked by the agent {item.agent})"] if item.agent else []


def fields(question: Question) -> dict[str, Any]:
    """The schema of an answer. Forms know no list to which one can add: `other` takes what is not in it."""
    text = {"type": "string", "minLength": 1, "maxLength": LONGEST}
    if not question.options:
        answer = {**text, "title": "Answer", "description": "What you answer."}
        return {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}
    answer = {
        "type": "string",
        "title": "Answer",
        "description": "One of these.",
        "enum": list(question.options),
    }
    other = {**text, "title": "Another answer", "description": "Instead of those above."}
    return {"type": "object", "properties": {"answer": answer, "other": other}}


def shorten(input: Any) -> str:
    """An input as JSON; of a long one the beginning, and how much is left out."""
    text = msgspec.json.encode(input).decode()
    over = len(text) - INPUT_LIMIT
    return text if over <= 0 else f"{text[:INPUT_LIMIT]}… ({over} more characters)"


def said_in(response: Any, approval: Approval) -> Said:
    """What an answer to the form says; `nothing` where it says neither, as when it was dismissed.

    BadRequest when it is too long.
    """
    if not isinstance(response, Mapping):
        return NOTHING
    match response.get("action"), response.get("content"):
        case "decline", _:
            return Said("no")
        case "accept", Mapping() as content if approval.question is not None:
            return answer_in(content)
        case "accept", {"approve": True}:
            return Said("yes")
        case "accept", {"approve": False}:
            return Said("no")
        case _:
            return NOTHING


def answer_in(content: Mapping[str, Any]) -> Said:
    """The answer to a question: the one that somebody wrote, or else the one that was picked."""
    for name in ("other", "answer"):
        given = content.get(name)
        if isinstance(given, str) and given.strip():
            return Said("yes", checked(given))
    return NOTHING
